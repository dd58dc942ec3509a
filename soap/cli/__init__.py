"""The command line: thin skins that parse, call one function, and show what came back."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from soap import __version__
from soap.cli import (
    attack,
    bench,
    data,
    demo,
    evaluate,
    export,
    models,
    predict,
    purify,
    report,
    serve,
    train,
    tune,
    verify,
)
from soap.cli.shell import INTERRUPTED
from soap.paper import command as reproduce

app = typer.Typer(
    name="soap",
    help="Purify adversarial inputs with self-supervision, and see whether it really works.",
    epilog="Start with: [bold]soap demo[/bold]. Each command explains itself: [bold]soap evaluate --help[/bold]",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    demo, predict, attack, purify, evaluate, report, verify, reproduce, train, tune, bench, models, data, serve,
    export,
):  # fmt: skip
    module.register(app)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"soap {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _soap(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments`, or this process's own; the exit code comes back."""
    try:
        code = app(arguments, prog_name="soap", standalone_mode=False)
    except SystemExit as done:  # shell completion, and a reader that closed the pipe
        code = done.code
    except typer.Abort:
        code = INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own errors have it: bad usage
            raise
        return _bad_usage(error)
    return code if isinstance(code, int) else int(bool(code))


def _bad_usage(error: Any) -> int:
    """One line, like every other error."""
    message = str(error.format_message()).strip()
    if type(error).__name__ != "NoArgsIsHelpError":  # that one has shown the help already
        context = getattr(error, "ctx", None)
        place = context.command_path if context is not None else "soap"
        stop = "" if message.endswith((".", "?", "!")) else "."
        typer.echo(f"error: {message}{stop} See `{place} --help`.", err=True)
    return int(error.exit_code)
