"""The command line `soap`: each command parses its options, calls one library function and prints the result."""

import importlib
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from soap import __version__

EXIT_INTERRUPTED = 130

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time of a Linux container, or "max", and the period in which it may use them."""


class CommandEntry(NamedTuple):
    """The module that registers a command, and the command's line of `soap --help`."""

    module: str
    summary: str


COMMANDS = {
    "demo": CommandEntry("soap.cli.demo", "Attack bundled digits, purify them, and write a page with pictures."),
    "predict": CommandEntry("soap.cli.pictures", "Classify pictures, and show the effect of purification."),
    "attack": CommandEntry("soap.cli.pictures", "Make adversarial pictures: almost unchanged, but misclassified."),
    "purify": CommandEntry("soap.cli.pictures", "Purify pictures, and write the results."),
    "evaluate": CommandEntry("soap.cli.evaluate", "Measure accuracy under attack, bare and with the purifier."),
    "detect": CommandEntry("soap.cli.detect", "Measure how well a score detects attacks, transfer and adaptive."),
    "certify": CommandEntry("soap.cli.certify", "Bound the accuracy under every attack of a radius from below."),
    "report": CommandEntry("soap.cli.report", "Write a run as an HTML page, LaTeX, CSV, JSON or RobustBench file."),
    "cite": CommandEntry("soap.cli.cite", "Print a BibTeX entry of a run with its verdict."),
    "verify": CommandEntry("soap.cli.verify", "Score the stored images of a run again, and check its report."),
    "compare": CommandEntry("soap.cli.compare", "Compare two runs on the same images, protocol by protocol."),
    "merge": CommandEntry("soap.cli.merge", "Merge the shards of a run."),
    "reproduce": CommandEntry("soap.paper.command", "Show the paper's tables and figures with our numbers."),
    "train": CommandEntry("soap.cli.train", "Train a model by a recipe."),
    "tune": CommandEntry("soap.cli.tune", "Choose gamma, T and the radii of purification for a model."),
    "bench": CommandEntry("soap.bench.command", "Measure speed, against a plain reference and the floor."),
    "models": CommandEntry("soap.cli.models", "List the bundled models with their results, or show one."),
    "push": CommandEntry("soap.cli.push", "Upload a model with its results to the Hugging Face Hub."),
    "data": CommandEntry("soap.cli.data", "List, download, import or export data sets."),
    "serve": CommandEntry("soap.serve.command", "Serve predictions, attacks and purification over HTTP."),
    "export": CommandEntry("soap.onnx_export.command", "Write a model as ONNX files, which run without torch."),
}


def load_command(name: str) -> Any:
    """Import the module of a command and return the command with its options."""
    importlib.import_module(COMMANDS[name].module)
    from soap.cli.console import registered  # here, because it imports torch

    return typer.main.get_command(registered).commands[name]  # type: ignore[attr-defined]


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is used; its help needs no import."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=entry.summary) for name, entry in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to run, imported now."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else found, rest


app = typer.Typer(
    name="soap",
    cls=LazyGroup,
    help="Purify adversarial inputs with self-supervision, and measure how robust the result is.",
    epilog="Start with: [bold]soap demo[/bold]. Each command has its own help: [bold]soap evaluate --help[/bold]",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"soap {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _soap(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def set_thread_defaults() -> None:
    """Set the threads of OpenMP for small networks where the user has not; call it before torch is loaded.

    Waiting threads sleep: spinning ones slow down a busy machine. A container has a thread for each core of its quota;
    torch would start one for each core of the machine.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with suppress(OSError, ValueError):  # no such file, no quota
        quota, period = map(int, CPU_QUOTA.read_text().split())
        if math.ceil(quota / period) < (os.cpu_count() or 1):
            os.environ.setdefault("OMP_NUM_THREADS", str(math.ceil(quota / period)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments` (None: those of this process) and return the exit code."""
    set_thread_defaults()
    try:
        code = app(arguments, prog_name="soap", standalone_mode=False)
    except SystemExit as exit:  # from shell completion, and when the reader closes the pipe
        code = exit.code
    except typer.Abort:
        code = EXIT_INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # only typer's usage errors have it
            raise
        return _print_usage_error(error)
    return code if isinstance(code, int) else int(bool(code))


def _print_usage_error(error: Any) -> int:
    """Print the error as one line, like every other error."""
    message = str(error.format_message()).strip()
    if type(error).__name__ != "NoArgsIsHelpError":  # that one has printed the help
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "soap"
        stop = "" if message.endswith((".", "?", "!")) else "."
        typer.echo(f"error: {message}{stop} See `{command} --help`.", err=True)
    return int(error.exit_code)
