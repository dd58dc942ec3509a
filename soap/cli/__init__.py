"""The command line `soap`: each command parses its options, calls one library function and prints the result."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from soap import __version__
from soap.cli.console import EXIT_INTERRUPTED

COMMANDS = {
    "demo": "soap.cli.demo",
    "predict": "soap.cli.predict",
    "attack": "soap.cli.attack",
    "purify": "soap.cli.purify",
    "evaluate": "soap.cli.evaluate",
    "report": "soap.cli.report",
    "verify": "soap.cli.verify",
    "reproduce": "soap.paper.command",
    "train": "soap.cli.train",
    "tune": "soap.cli.tune",
    "bench": "soap.bench.command",
    "models": "soap.cli.models",
    "data": "soap.cli.data",
    "serve": "soap.serve.command",
    "export": "soap.export.command",
}
"""The module of each command; its function `register(app)` adds the command."""


class LazyCommands(Mapping[str, Any]):
    """The commands by name; a command's module is imported when the command is used."""

    def __getitem__(self, name: str) -> Any:
        holder = typer.Typer(add_completion=False, rich_markup_mode="rich")
        holder.callback()(lambda: None)
        importlib.import_module(COMMANDS[name]).register(holder)
        return typer.main.get_command(holder).commands[name]  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, without importing the modules."""
        return list(COMMANDS)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments` (None: those of this process) and return the exit code."""
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
