"""What all commands share: common options, output, tables, progress bars, signals, errors, and a decorator.

A command is a function whose first parameter is a `Console`; `command` replaces it by the common options, and a
parameter whose type is a dataclass by one option for each field. Results go to standard output, as tables or with
--json as one JSON object; everything else goes to standard error.
"""

import dataclasses
import functools
import inspect
import json
import signal
import sys
import threading
import traceback
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from types import FrameType
from typing import Annotated, Any, Literal, Protocol

import rich.box
import rich.console
import torch
import typer
from rich.table import Table

from soap import report
from soap._runtime import devices, distributed
from soap._runtime.progress import progress_bar
from soap.cli import EXIT_INTERRUPTED as EXIT_INTERRUPTED
from soap.errors import InputError, SoapError
from soap.results import Row

JSON_SCHEMA = "soap/1"
"""Version of the printed JSON; it changes when a field changes its meaning or is removed."""

PIPE_WIDTH = 10_000  # columns; a pipe has no width, so no cell is folded

COMMON_PANEL = "Options of every command"

PLAIN_TEXT: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
"""rich settings that print names of files and models unchanged, whatever they contain."""


class ShowProgress(Protocol):
    """Updates a progress bar: the current work, how much of it is done, the total, and a note."""

    def __call__(self, what: str, done: float, total: float | None, note: str = "") -> None:
        """Update the bar."""


def _standard_error() -> rich.console.Console:
    return rich.console.Console(stderr=True, **PLAIN_TEXT)  # rich honours NO_COLOR


def _common(*names: str, help: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=COMMON_PANEL, **settings)


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options of every command."""

    device: Annotated[str, _common("--device", help="auto (a GPU if there is one), cpu, cuda, cuda:N or mps.")] = "auto"
    seed: Annotated[int, _common("--seed", min=0, help="Seed of all random numbers.")] = 0
    batch_size: Annotated[
        int, _common("--batch-size", min=1, help="Images processed at a time; affects speed and memory.")
    ] = 500
    json: Annotated[bool, _common("--json", help="Print the result as one JSON object.")] = False
    verbose: Annotated[int, _common("--verbose", "-v", count=True, help="Print more messages.", show_default=False)] = 0
    quiet: Annotated[bool, _common("--quiet", "-q", help="Print only the result.")] = False
    debug: Annotated[bool, _common("--debug", help="Print the traceback of an error.")] = False


@dataclass(frozen=True, kw_only=True)
class Console:
    """The common options of one command, and its output."""

    command: str
    device: torch.device
    seed: int
    batch_size: int
    json: bool
    verbose: int
    quiet: bool
    silent: bool = False  # one of several processes, of which another prints
    errors: rich.console.Console = field(default_factory=_standard_error, repr=False)

    def info(self, message: str, *, level: int = 0) -> None:
        """Print a message on standard error: level 0 unless -q, level 1 with -v, level 2 with -vv."""
        if not self.silent and not self.quiet and self.verbose >= level:
            self.errors.print(message, soft_wrap=True)

    def result(self, content: dict[str, Any], view: rich.console.RenderableType) -> None:
        """Print the command's result on standard output: `content` with --json, else the table or text `view`."""
        if self.silent:
            return
        if self.json:
            printed = {"schema": JSON_SCHEMA, "command": self.command, **content}
            sys.stdout.write(json.dumps(printed, indent=2, default=str, allow_nan=False) + "\n")
        elif isinstance(view, str):
            sys.stdout.write(view + "\n")
        else:
            console = rich.console.Console(**PLAIN_TEXT)
            if not console.is_terminal:
                console.width = PIPE_WIDTH
            console.print(view)
        sys.stdout.flush()  # a closed pipe raises here, not at the exit of the interpreter

    @contextmanager
    def progress(self) -> Iterator[ShowProgress]:
        """Progress bars on standard error, removed at the end; none with -q and none without a terminal."""
        with progress_bar(not self.silent and not self.quiet, self.errors) as show:
            yield show


def table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """An empty table; `right` names right-aligned columns, `whole` others that a narrow terminal does not fold."""
    made = Table(box=rich.box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=column in right + whole)
    return made


def percent(share: float) -> str:
    """0.9312 -> '93.1 %'."""
    return f"{100 * share:.1f} %"


def accuracy(row: Row | None) -> str:
    """Accuracy in per cent with its 95 % interval, or a dash if there is no result."""
    return "-" if row is None else report.percent(row)


def size(count: int) -> str:
    """The size of a file in kB or MB."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that is true once Ctrl-C or SIGTERM was received; a second one raises KeyboardInterrupt.

    In a run of several processes a second signal is ignored: each process may receive the same signal from the
    terminal and from the launcher, and the launcher kills processes that take too long.
    """
    # A list instead of an Event: a second signal during Event.set() would wait for its lock forever.
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received and not distributed.processes().is_distributed:
            raise KeyboardInterrupt
        received.append(number)

    on_main_thread = threading.current_thread() is threading.main_thread()
    handled = (signal.SIGINT, signal.SIGTERM) if on_main_thread else ()
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def option_parameters(options: type) -> list[inspect.Parameter]:
    """One keyword parameter for each field of a dataclass of options."""
    hints = typing.get_type_hints(options, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[one.name],
            default=inspect.Parameter.empty if one.default is dataclasses.MISSING else one.default,
        )
        for one in dataclasses.fields(options)
    ]


registered = typer.Typer(add_completion=False, rich_markup_mode="rich")
"""The commands of the modules imported so far."""

registered.callback()(lambda: None)  # with one command, it is a group as well


def command(
    name: str,
    *,
    example: str,
    app: typer.Typer = registered,
    without: tuple[str, ...] = (),
    shared: bool = False,
    environment_prefix: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated function as `soap NAME`.

    Its first parameter, the `Console`, becomes the common options, and a parameter whose type is a dataclass becomes
    one option for each field. `name` may be two words, e.g. "data list": the last is the command's name in `app`.
    `example` is shown at the end of the help. `without` omits common options; a parameter of the same name replaces
    one. shared: several processes of a launcher may run the command together. environment_prefix: every option can
    also be given as an environment variable of this prefix, `_` and the option's name.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}
        own: list[inspect.Parameter] = []
        for one in parameters:
            own += option_parameters(one.annotation) if one.name in groups else [one]
        own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        defaults = dataclasses.asdict(CommonOptions())
        absent = {*without, *(one.name for one in own)}
        common = [one for one in option_parameters(CommonOptions) if one.name not in absent]

        @functools.wraps(function)
        def run(**given: Any) -> None:
            settings = {key: default if key in absent else given.pop(key) for key, default in defaults.items()}
            for key, options in groups.items():
                given[key] = options(**{one.name: given.pop(one.name) for one in dataclasses.fields(options)})
            with _errors_as_exit_codes(settings.pop("debug")):
                if distributed.launched_count() > 1 and not shared:
                    raise InputError(
                        f"soap {name} runs in one process, WORLD_SIZE is {distributed.launched_count()}; "
                        "start it without a launcher."
                    )
                device = devices.pick_device(settings.pop("device"))
                left: typer.Exit | None = None
                with distributed.process_group(device) as group:
                    try:
                        function(Console(command=name, device=device, silent=not group.is_main, **settings), **given)
                    except typer.Exit as exit:  # not an error, so the group of processes ends normally
                        left = exit
                if left is not None:
                    raise left

        run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in [*own, *common]}
        # Typer keeps the line ends of a docstring; terminals have other widths.
        paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(function) or "").split("\n\n")]
        epilog = f"Example: [bold]{example}[/bold]"
        app.command(
            name.split()[-1],
            help="\n\n".join(paragraphs),
            epilog=epilog,
            context_settings={"auto_envvar_prefix": environment_prefix},
        )(run)
        return function

    return register


@contextmanager
def _errors_as_exit_codes(debug: bool) -> Iterator[None]:
    """Print an error as one line and exit: with 2 for bad usage, 130 for Ctrl-C, 1 for all others."""
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        number = distributed.launched_rank()
        if number == 0 or not isinstance(error, distributed.PeerLostError):  # another process prints its cause
            typer.echo(f"{f'process {number}: ' if number else ''}error: {error_message(error)}", err=True)
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from None


def error_message(error: Exception) -> str:
    """The one line that is printed for an exception."""
    if isinstance(error, SoapError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out of memory; use a smaller --batch-size."
    return (
        f"unexpected {type(error).__name__}: {' '.join(str(error).split())}. "
        "This is a bug in soap: please run again with --debug and report it."
    )
