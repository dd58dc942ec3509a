"""`soap compare`: two suite runs on the same images, protocol by protocol."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from soap.cli.console import Console, command, table
from soap.cli.options import DataOptions, RunName
from soap.evaluation.comparison import ProtocolComparison, RunComparison, compare_runs
from soap.evaluation.run_folder import open_run
from soap.evaluation.summary import WORST
from soap.evaluation.verdict import DASH, headline
from soap.recipes.run_request import python_advice, read_request
from soap.report.result_json import comparison_json

SecondRun = Annotated[Path, typer.Argument(metavar="RUN_B", help="The folder of another run.", readable=False)]


@command("compare", example="soap compare runs/mnist-fcn-dr-full runs/mnist-cnn-dr-full")
def compare_command(console: Console, *, run_a: RunName, run_b: SecondRun, images: DataOptions) -> None:
    """Compare two runs of `soap evaluate --suite` on the same images and under the same threat.

    For each protocol of both runs and for the worst case: the accuracies, their difference with a 95 % interval, and
    the p value of McNemar's exact test. Both are paired: they count images that exactly one of the defences classifies
    correctly. The p values are not corrected for the number of protocols. A random defence has none.
    """
    folder = open_run(run_a)
    request = read_request(folder, data=images.data)
    with python_advice(folder, f"soap.evaluation.compare_runs({str(run_a)!r}, {str(run_b)!r}, data=data)"):
        data = request.images(images.data_root, folder.plan()["classes"])
    found = compare_runs(run_a, run_b, data=data)
    console.result(comparison_json(found), _view(found))


def _view(found: RunComparison) -> Group:
    parts: list[RenderableType] = []
    for name, report in (("A", found.a), ("B", found.b)):
        model, run = report.summary.plan["target"]["name"], report.folder.path
        parts.append(Text(f"{name}: {model}, {run}: {headline(report.summary, report.verdict)}"))
        if report.verdict.note:
            parts.append(Text(f"{name}: {report.verdict.note}"))
    view = table("protocol", "A, %", "B, %", "A - B, points", "only A", "only B", "p", right=("only A", "only B", "p"))
    for line in found.lines:
        view.add_row(*_cells(line))
    parts.append(view)
    other = [line.protocol for line in found.lines if not line.same_attacks and line.protocol != WORST]
    if other:
        parts.append(Text(f"The runs made different attacks in: {', '.join(other)}."))
    for name, missing in (("A", found.missing_in_a), ("B", found.missing_in_b)):
        if missing:
            parts.append(Text(f"{name} has no {', '.join(missing)}: the worst cases are over different protocols."))
    return Group(*parts)


def _cells(line: ProtocolComparison) -> tuple[str, ...]:
    accuracies = [DASH if share is None else f"{100 * share:.1f}" for share in (line.accuracy_a, line.accuracy_b)]
    difference = DASH
    if line.difference is not None and line.low is not None and line.high is not None:
        difference = f"{100 * line.difference:+.1f} [{100 * line.low:+.1f}, {100 * line.high:+.1f}]"
    counts = [DASH if count is None else str(count) for count in (line.only_a, line.only_b)]
    return line.protocol, *accuracies, difference, *counts, DASH if line.p_value is None else f"{line.p_value:.2g}"
