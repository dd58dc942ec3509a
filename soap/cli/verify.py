"""`soap verify`: score the stored images of a run again and compare with its report."""

from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from soap.cli.console import EXIT_INTERRUPTED, Console, command, stop_on_signal, table
from soap.cli.options import DataOptions, ModuleName, RunName, option
from soap.errors import InputError
from soap.evaluation.plan import suite_defence_spec
from soap.evaluation.run_folder import open_run
from soap.evaluation.suite import COMMAND_FACT
from soap.evaluation.verdict import DASH
from soap.evaluation.verification import Verification, verify_run
from soap.recipes.run_request import python_advice, read_request
from soap.report.result_json import verification_json
from soap.results import defence_from_json
from soap.specs import call_text

EXIT_DOES_NOT_HOLD = 1


@command("verify", example="soap verify runs/mnist-fcn-dr-quick")
def verify_command(
    console: Console,
    *,
    run: RunName,
    model: Annotated[
        str | None, option("NAME", "A bundled model, or the path of a .safetensors file, if that of the run has moved.")
    ] = None,
    module: ModuleName = None,
    images: DataOptions,
) -> None:
    """Score the stored images of a run again, and print whether its report holds.

    Weights and data must be those of the run, each stored image must be inside the ball, and the results must be
    reproduced. Another device may classify a few images differently; they are counted. Exit code 1 if the report does
    not hold.
    """
    folder = open_run(run)
    request = read_request(folder, model=model, data=images.data)
    with python_advice(folder, f"soap.evaluation.verify_run(defence, data, {str(run)!r})"):
        defence = request.defence(console.device, module)
        data = request.images(images.data_root, folder.plan()["classes"]).to(console.device)
        stated = defence_from_json(folder.plan()["target"]["defence"])
        if folder.read_fact(COMMAND_FACT) is None and suite_defence_spec(defence) != stated:
            raise InputError(f"its purifier is {call_text(stated)}.")
    with stop_on_signal() as stop, console.progress() as show:
        found = verify_run(defence, data, run, watch=show, stop=stop)
    if found is None:
        console.info("Stopped before all images were scored: no result.")
        raise typer.Exit(EXIT_INTERRUPTED)
    console.result({"run": run, **verification_json(found)}, _view(found))
    if not found.holds:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _view(found: Verification) -> Group:
    view = table("protocol", "classifier", "reported, %", "found, %", "", right=("reported, %", "found, %"))
    for one in found.comparisons:
        counts = [_percent(count if found.shows(one) else None, one.row.n) for count in (one.reported, one.row.correct)]
        defence = "defended" if one.row.defence.purifies else "bare"
        view.add_row(one.row.attack.name, defence, *counts, "holds" if one.holds else "DOES NOT HOLD")
    lines = [f"{found.changed:,} of {found.labels:,} stored predictions differ now.", *found.problems]
    lines += [found.note] if found.note else []
    end = "The report holds." if found.holds else "The report DOES NOT HOLD."
    return Group(*([view] if found.comparisons else []), *(Text(line) for line in (*lines, end)))


def _percent(correct: int | None, n: int) -> str:
    return DASH if correct is None else f"{100 * correct / n:.1f} ({correct:,} of {n:,})"
