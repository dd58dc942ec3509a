"""`soap verify`: score the stored images of a run again and compare with its report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from soap._runtime import interrupts
from soap.cli.console import EXIT_INTERRUPTED, Console, command
from soap.cli.options import DataOptions
from soap.cli.tables import table
from soap.evaluation.run_folder import open_run
from soap.evaluation.verification import Verification, verify_run
from soap.recipes.run_request import read_request
from soap.report.row_text import defence_text

EXIT_DOES_NOT_HOLD = 1

RunName = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run of `soap evaluate --suite`.", readable=False)
]


def verify_command(
    console: Console,
    *,
    run: RunName,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="A bundled model, or the path of a .safetensors file, if that of the run has moved.",
        ),
    ] = None,
    images: DataOptions,
) -> None:
    """Score the stored images of a run again, and print whether its report holds.

    Weights and data must be those of the run, each stored image must be inside the ball, and the results must be
    reproduced. Another device may classify a few images differently; they are counted. Exit code 1 if the report does
    not hold.
    """
    folder = open_run(run)
    request = read_request(folder, model=model, data=images.data)
    defence = request.defence(console.device)
    data = request.images(images.data_root, folder.plan()["classes"]).to(console.device)
    with interrupts.stop_on_signal() as stop, console.progress() as show:
        found = verify_run(defence, data, run, watch=show, stop=stop)
    if found is None:
        console.info("Stopped before all images were scored: no result.")
        raise typer.Exit(EXIT_INTERRUPTED)
    content = {
        "run": run,
        "holds": found.holds,
        "problems": list(found.problems),
        "labels": found.labels,
        "changed": found.changed,
        "rows": [
            {
                "protocol": one.row.attack.name,
                "defence": defence_text(one.row.defence),
                "n": one.row.n,
                "reported": one.reported,
                "found": one.row.correct,
                "holds": one.holds,
            }
            for one in found.comparisons
        ],
    }
    console.result(content, _view(found))
    if not found.holds:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _view(found: Verification) -> Group:
    view = table("protocol", "classifier", "reported, %", "found, %", "", right=("reported, %", "found, %"))
    for one in found.comparisons:
        counts = [_percent(count, one.row.n) for count in (one.reported, one.row.correct)]
        defence = "defended" if one.row.defence.purifies else "bare"
        view.add_row(one.row.attack.name, defence, *counts, "holds" if one.holds else "DOES NOT HOLD")
    lines = [f"{found.changed:,} of {found.labels:,} stored predictions differ now.", *found.problems]
    end = "The report holds." if found.holds else "The report DOES NOT HOLD."
    return Group(*([view] if found.comparisons else []), *(Text(line) for line in (*lines, end)))


def _percent(correct: int | None, n: int) -> str:
    return "-" if correct is None else f"{100 * correct / n:.1f} ({correct:,} of {n:,})"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "verify", example="soap verify runs/mnist-fcn-dr-quick")(verify_command)
