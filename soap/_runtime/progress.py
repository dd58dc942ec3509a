"""A progress bar on standard error, for terminals and notebooks; none where rich is not installed.

The outermost call of soap in a thread shows the bar. Calls inside it show none.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from soap._runtime import distributed

Show = Callable[..., None]
"""Called with the current work, how much of it is done, the total (None: unknown), and optionally a note."""

SHOW_AFTER_S = 2.0
"""Seconds after which a purifier shows its bar: a bar that disappears at once is of no use."""

_report: ContextVar[Callable[[int, int], None] | None] = ContextVar("soap_progress", default=None)
"""What `report` calls; None outside of every call of soap."""


@contextmanager
def progress_bar(enabled: bool = True, console: Any = None) -> Iterator[Show]:
    """Yield a function that updates the bar, which is removed at the end; it does nothing without a bar.

    console: of rich; by default standard error. A notebook also needs ipywidgets. Of several processes only the main
    one shows a bar.
    """
    with silent(), _bar(enabled, console) as show:
        yield show


@contextmanager
def silent() -> Iterator[None]:
    """Show no bar of a purifier that is called in this context: the caller shows its own, or calls it many times."""
    with _reporting(lambda done, total: None):
        yield


@contextmanager
def purifying(enabled: bool) -> Iterator[None]:
    """Show what `report` is told in this context, from `SHOW_AFTER_S` on; nothing inside another call of soap."""
    if not enabled or _report.get() is not None:
        with silent():
            yield
        return
    start, show, stack = time.monotonic(), None, ExitStack()

    def report_to_bar(done: int, total: int) -> None:
        nonlocal show
        if show is None and done < total and time.monotonic() - start > SHOW_AFTER_S:
            show = stack.enter_context(_bar(True, None))
        if show is not None:
            show("purifying", done, total)

    with _reporting(report_to_bar), stack:
        yield


def report(done: int, total: int) -> None:
    """Update the bar of the purifier that is called, if it shows one."""
    if (current := _report.get()) is not None:
        current(done, total)


@contextmanager
def _reporting(to: Callable[[int, int], None]) -> Iterator[None]:
    token = _report.set(to)
    try:
        yield
    finally:
        _report.reset(token)


@contextmanager
def _bar(enabled: bool, console: Any) -> Iterator[Show]:
    try:
        import rich.console
        import rich.errors
        import rich.progress
        from rich.table import Column
    except ImportError:
        yield lambda *arguments: None
        return
    console = console or rich.console.Console(stderr=True)
    visible = console.is_terminal or (console.is_jupyter and _installed("ipywidgets"))
    bar = rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(bar_width=10),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        rich.progress.TextColumn("{task.fields[note]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        expand=True,  # the note gets the remaining width and is cut first
        console=console,
        disable=not enabled or not visible or not distributed.processes().is_main,
        transient=True,
    )
    tasks: dict[str, rich.progress.TaskID] = {}

    def show(what: str, done: float, total: float | None, note: str = "") -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total, note=note)
        bar.update(tasks[what], completed=done, total=total, note=note)

    try:
        bar.start()
    except rich.errors.LiveError:  # the caller shows a display of its own
        bar.disable = True
    try:
        yield show
    finally:
        bar.stop()


def _installed(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None
