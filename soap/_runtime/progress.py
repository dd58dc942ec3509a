"""A progress bar on standard error, for terminals and notebooks; none where rich is not installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from soap._runtime import distributed

Show = Callable[..., None]
"""Called with the current work, how much of it is done, the total (None: unknown), and optionally a note."""


@contextmanager
def progress_bar(enabled: bool = True, console: Any = None) -> Iterator[Show]:
    """Yield a function that updates the bar, which is removed at the end; it does nothing without a bar.

    console: of rich; by default standard error. A notebook also needs ipywidgets. Of several processes only the main
    one shows a bar.
    """
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
