"""Ctrl-C and SIGTERM as a request to stop at the next safe point."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from soap._runtime import distributed


class StopRequest:
    """Whether Ctrl-C (or a termination signal) has asked the work to stop at its next safe point."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """True once a stop was asked for."""
        return self.requested


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop; a second one interrupts at once.

    Unless there are several processes, for their launcher passes on what they got already; it ends those that take
    too long.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.requested and not distributed.here().many:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
