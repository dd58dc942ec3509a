"""`soap detect`: how well a score detects attacks, and the robust accuracy of a defence that rejects by it."""

from typing import Annotated

import rich.table
from rich.console import Group
from rich.text import Text

from soap.cli.console import Console, command, percent, table
from soap.cli.options import ImageOptions, ModelOptions, RowsOptions, completion, number, option
from soap.defence import Defence
from soap.detection_scores import SCORES
from soap.evaluation.detection import DETECTION_NOTE, DetectionReport, evaluate_detection
from soap.purifiers import SOAP


@command("detect", example="soap detect mnist-cnn-dr --data mnist-mini --limit 100")
def detect_command(
    console: Console,
    *,
    model: ModelOptions,
    images: ImageOptions,
    score: Annotated[str, option("NAME", f"{', '.join(SCORES)}.", autocompletion=completion(lambda: SCORES))] = "loss",
    eps: Annotated[
        float | None, option("X", "Radius of the attacks (Linf).", default="that of the paper", parser=number)
    ] = None,
    rule: Annotated[
        str, option("NAME", "Gradient rule by which adaptive attacks see the purifier.")
    ] = "straight-through",
    steps: Annotated[int, option("N", "Steps of each attack.", min=1)] = 100,
    rows: RowsOptions,
) -> None:
    """Measure how well a score detects attacks, and the accuracy of a defence that rejects by it.

    Attacks: PGD on the bare classifier (transfer), and three that know purifier and score (adaptive): Lagrangian,
    selective and orthogonal PGD. Thresholds give 1 % and 5 % false positives on the clean images. A clean image that is
    rejected counts as an error, as does an attacked one that is accepted and misclassified.
    """
    trained = model.open(console.device)
    defence = Defence(trained.model, SOAP(trained.model))
    data = images.load(trained)
    rows.check()
    with console.progress() as show:
        report = evaluate_detection(
            defence,
            data,
            eps=trained.radius(data.name) if eps is None else eps,
            score=score,
            rule=rule,
            steps=steps,
            seed=console.seed,
            batch_size=console.batch_size,
            watch=show,
        )
    rows.append(report.rows)
    console.result({**report.as_json(), "note": DETECTION_NOTE}, Group(_view(report), Text(DETECTION_NOTE)))


def _view(report: DetectionReport) -> rich.table.Table:
    right = ("AUROC", "FPR", "TPR", "clean, accepted")
    view = table("attack", *right, "robust, with rejection", "adversarial", right=(*right, "adversarial"))
    for one in report.results:
        low, high = one.interval
        view.add_row(
            one.attack if one.adaptive else f"{one.attack} (not adaptive)",
            "-" if one.auroc is None else f"{one.auroc:.3f}",
            percent(one.fpr),
            "-" if one.tpr is None else percent(one.tpr),
            percent(one.clean_accuracy),
            f"{percent(one.robust_accuracy)} [{100 * low:.1f}, {100 * high:.1f}]",
            f"{one.n_adversarial:,} of {one.n:,}",
        )
    return view
