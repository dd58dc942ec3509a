"""What every command shares: its common options, its output, its progress bar, and its errors.

A command is a function whose first parameter is a `Shell`; `command` puts the common options in its place.
Results go to standard output, as tables or with --json as one JSON object; everything else to standard error.
"""

import functools
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import rich.console
import rich.progress
import torch
import typer
from rich.table import Column

from soap._runtime import devices, distributed
from soap.errors import InputError, SoapError

SCHEMA = "soap/1"
"""Version of the JSON that commands print; it changes when a field changes its meaning or goes away."""

INTERRUPTED = 130
UNFOLDED = 10_000  # columns; a pipe has no width, so no cell is folded


class Show(Protocol):
    """Moves a progress bar: what is being done, how much of it, of how much, and a word about it."""

    def __call__(self, what: str, done: float, total: float | None, note: str = "") -> None:
        """Show it."""


PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
"""Names of files and models are shown as they are, whatever is in them."""


def _errors() -> rich.console.Console:
    return rich.console.Console(stderr=True, **PLAIN)  # rich honours NO_COLOR


@dataclass(frozen=True, kw_only=True)
class Shell:
    """One command's common options and the ways it speaks."""

    command: str
    device: torch.device
    seed: int
    batch: int
    json: bool
    verbose: int
    quiet: bool
    silent: bool = False  # one of several processes, of which another speaks
    errors: rich.console.Console = field(default_factory=_errors, repr=False)

    def say(self, message: str, *, level: int = 0) -> None:
        """A line for a person on standard error: level 0 unless -q, level 1 with -v, level 2 with -vv."""
        if not self.silent and not self.quiet and self.verbose >= level:
            self.errors.print(message, soft_wrap=True)

    def result(self, content: dict[str, Any], view: rich.console.RenderableType) -> None:
        """The command's answer on standard output: `content` with --json, else the table or text `view`."""
        if self.silent:
            return
        if self.json:
            answer = {"schema": SCHEMA, "command": self.command, **content}
            sys.stdout.write(json.dumps(answer, indent=2, default=str, allow_nan=False) + "\n")
        elif isinstance(view, str):
            sys.stdout.write(view + "\n")
        else:
            console = rich.console.Console(**PLAIN)
            if not console.is_terminal:
                console.width = UNFOLDED
            console.print(view)
        sys.stdout.flush()  # a pipe that was closed is noticed here, not in the interpreter's last moments

    @contextmanager
    def progress(self) -> Iterator[Show]:
        """Bars on standard error; silent with -q and off a terminal, and gone when the work is done."""
        bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(bar_width=10),
            rich.progress.TaskProgressColumn(),
            rich.progress.TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            rich.progress.TextColumn("{task.fields[note]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            expand=True,  # the note gets what the terminal has left, and is the first to be cut
            console=self.errors,
            disable=self.silent or self.quiet or not self.errors.is_terminal,
            transient=True,
        )
        tasks: dict[str, rich.progress.TaskID] = {}

        def show(what: str, done: float, total: float | None, note: str = "") -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total, note=note)
            bar.update(tasks[what], completed=done, total=total, note=note)

        with bar:
            yield show


PANEL = "Options of every command"


def _common(*names: str, help: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=PANEL, **settings)


COMMON: dict[str, tuple[Any, Any]] = {
    "device": (
        Annotated[str, _common("--device", help="auto (a GPU if there is one), cpu, cuda, cuda:N or mps.")],
        "auto",
    ),
    "seed": (Annotated[int, _common("--seed", min=0, help="Seed of every random draw.")], 0),
    "batch": (Annotated[int, _common("--batch", min=1, help="Images handled at a time: speed and memory.")], 500),
    "json": (Annotated[bool, _common("--json", help="Print one JSON object for machines.")], False),
    "verbose": (Annotated[int, _common("--verbose", "-v", count=True, help="Say more.", show_default=False)], 0),
    "quiet": (Annotated[bool, _common("--quiet", "-q", help="Say nothing but the result.")], False),
    "debug": (Annotated[bool, _common("--debug", help="Show the traceback of an error.")], False),
}
"""Annotation and default of every common option."""


def command(
    app: typer.Typer, name: str, *, example: str, without: tuple[str, ...] = (), shared: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as `soap NAME`, with the common options instead of its first parameter.

    `name` may be two words, e.g. "data list": the last is the command's name within `app`. `example` is shown at
    the end of the help text. A common option is left out when it is named in `without`, and replaced when the
    function has a parameter of its name. shared: several processes, started by a launcher, may do its work together.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        absent = {*without, *(parameter.name for parameter in own)}
        options = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for key, (kind, default) in COMMON.items()
            if key not in absent
        ]

        @functools.wraps(function)
        def run(**given: Any) -> None:
            common = {key: default if key in absent else given.pop(key) for key, (_, default) in COMMON.items()}
            with _explained(common.pop("debug")):
                if distributed.launched_count() > 1 and not shared:
                    raise InputError(
                        f"soap {name} runs in one process, WORLD_SIZE is {distributed.launched_count()}; start it "
                        "without a launcher."
                    )
                device = devices.pick_device(common.pop("device"))
                left: typer.Exit | None = None
                with distributed.process_group(device) as group:
                    try:
                        function(Shell(command=name, device=device, silent=not group.is_main, **common), **given)
                    except typer.Exit as exit:  # not an error: the group parts in order
                        left = exit
                if left is not None:
                    raise left

        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        run.__signature__ = inspect.Signature([*keyword, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*keyword, *options]}
        # Typer keeps the line ends of the source within a paragraph; terminals have other widths.
        paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(function) or "").split("\n\n")]
        epilog = f"Example: [bold]{example}[/bold]"
        return app.command(name.split()[-1], help="\n\n".join(paragraphs), epilog=epilog)(run)

    return register


@contextmanager
def _explained(debug: bool) -> Iterator[None]:
    """Errors as one line and an exit code: 2 for bad usage, 130 for Ctrl-C, 1 for the rest."""
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        number = distributed.launched_rank()
        if number == 0 or not isinstance(error, distributed.PeerLostError):  # whose cause another process tells
            typer.echo(f"{f'process {number}: ' if number else ''}error: {_message(error)}", err=True)
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from None


def _message(error: Exception) -> str:
    if isinstance(error, SoapError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out of memory; use a smaller --batch."
    return (
        f"unexpected {type(error).__name__}: {' '.join(str(error).split())}. "
        "This is a defect of soap: please run again with --debug and report it."
    )
