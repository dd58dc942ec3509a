"""`soap verify`: does the report of a run hold?"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from soap._runtime import interrupts
from soap.cli.options import DataName, DataRoot
from soap.cli.runs import asked
from soap.cli.shell import INTERRUPTED, Shell, command
from soap.cli.tables import table
from soap.evaluation.run_folder import open_run
from soap.evaluation.verification import RowComparison, Verification, verify_run
from soap.report.row_text import defence_text

DOES_NOT_HOLD = 1

RunName = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run of `soap evaluate --suite`.", readable=False)
]


def verify(
    shell: Shell,
    run: RunName,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="A bundled model, or the path of a .safetensors file, where the run's own lies elsewhere now.",
        ),
    ] = None,
    data: DataName = None,
    data_root: DataRoot = None,
) -> None:
    """Score the stored images of a run again, and say whether its report holds.

    Weights and data must be those of the run, every stored image must lie in the ball, and the figures must come out
    again; another device may answer a few images differently, and they are counted. Exit code 1 if it does not hold.
    """
    folder = open_run(run)
    wanted = asked(folder, model=model, data=data)
    defence = wanted.defence(shell)
    images = wanted.images(data_root, folder.plan()["classes"]).to(shell.device)
    with interrupts.stoppable() as stop, shell.progress() as show:
        found = verify_run(defence, images, run, watch=show, stop=stop)
    if found is None:
        shell.say("Stopped before all was scored: nothing can be said.")
        raise typer.Exit(INTERRUPTED)
    content = {
        "run": run,
        "holds": found.holds,
        "problems": list(found.problems),
        "labels": found.labels,
        "changed": found.changed,
        "rows": [
            {
                "protocol": one.name,
                "defence": defence_text(one.row.defence),
                "n": one.row.n,
                "reported": one.reported,
                "found": one.found,
                "holds": one.holds,
            }
            for one in found.comparisons
        ],
    }
    shell.result(content, _view(found))
    if not found.holds:
        raise typer.Exit(DOES_NOT_HOLD)


def _view(found: Verification) -> Group:
    view = table("protocol", "behind", "reported, %", "found, %", "", right=("reported, %", "found, %"))
    for one in found.comparisons:
        behind = "the defence" if one.row.defence.purifies else "nothing"
        reported = "-" if one.reported is None else _percent(one, one.reported)
        view.add_row(one.name, behind, reported, _percent(one, one.found), "holds" if one.holds else "DOES NOT HOLD")
    lines = [f"{found.changed:,} of {found.labels:,} stored labels differ now.", *found.problems]
    end = "The report holds." if found.holds else "The report DOES NOT HOLD."
    parts = ([view] if found.comparisons else []) + [Text(line) for line in (*lines, end)]
    return Group(*parts)


def _percent(one: RowComparison, correct: int) -> str:
    return f"{100 * correct / one.row.n:.1f} ({correct:,} of {one.row.n:,})"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "verify", example="soap verify runs/mnist-fcn-dr-quick")(verify)
