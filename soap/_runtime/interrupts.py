"""Turn Ctrl-C and SIGTERM into a request to stop at the next safe point."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from soap._runtime import distributed


class StopRequest:
    """Callable flag: true once Ctrl-C or SIGTERM was received."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self.requested


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a stop request; a second one raises KeyboardInterrupt.

    In a run of several processes a second signal is ignored: each process may receive the same signal from the
    terminal and from the launcher, and the launcher kills processes that take too long.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.requested and not distributed.processes().is_distributed:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
