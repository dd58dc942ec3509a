"""`soap tune`: choose purifier settings for a model on images of the user."""

from pathlib import Path
from typing import Annotated

import rich.table
from rich.console import Group
from rich.text import Text

from soap._files import atomic
from soap.cli.console import Console, command, percent, table
from soap.cli.options import DataOptions, ModelOptions, number, option
from soap.evaluation.tuning import Tuning
from soap.evaluation.tuning import tune as find_settings
from soap.report import UPPER_BOUND
from soap.report.result_json import tuning_json


@command("tune", example="soap tune mnist-fcn-dr --data digits/ --eps 0.3 --out runs/tune")
def tune_command(
    console: Console,
    *,
    model: ModelOptions,
    images: DataOptions,
    split: Annotated[str, option("NAME", "train or test; do not tune on the images you test on.")] = "train",
    eps: Annotated[
        float | None,
        option(
            "X",
            "Radius of the attack to defend against, e.g. 0.3 or 8/255.",
            default="that of the paper",
            parser=number,
        ),
    ] = None,
    limit: Annotated[int, option("N", "Number of images, drawn by --seed.", min=1)] = 100,
    batch_size: Annotated[int, option("N", "Images processed at a time.", min=1)] = 100,
    out: Annotated[Path | None, option("DIR", "Folder for tune.json and its plot.", default="runs/tune-MODEL")] = None,
) -> None:
    """Choose gamma, T and the radii for a model on your images, and plot the paper's Figure 3 for them.

    Images are attacked, then purified with each step size, number of steps and radius. The auxiliary loss falls with
    the radius until the attack is undone. The elbow is where the curve is furthest below its chord; it should be near
    the radius of the attack. Radii up to twice the elbow are kept, with the gamma and T of highest accuracy.
    """
    from soap.report.tuning_curve import save  # imported here because matplotlib is slow to import

    trained = model.open(console.device)
    trained.model.auxiliary  # noqa: B018  # raises before the work if the model has no task
    folder = out or Path("runs") / f"tune-{trained.model.name}"
    atomic.check_writable(folder)
    data = trained.images(images.data, split, root=images.data_root)
    radius = trained.radius(data.name) if eps is None else eps
    with console.progress() as show:
        found = find_settings(
            trained.model, data, radius, limit=limit, batch_size=batch_size, seed=console.seed, watch=show
        )
    paths = save(found, folder)
    console.result(
        {**tuning_json(found), "files": paths},
        Group(_candidates(found), Text(_conclusion(found)), Text(_recipe_section(found))),
    )
    console.info(f"The curve and all results: {', '.join(map(str, paths))}.")


def _candidates(found: Tuning) -> rich.table.Table:
    view = table("gamma", "T", "elbow", "clean", "attacked", right=("gamma", "T", "elbow"))
    view.add_row("", "none", "", percent(found.bare_clean), percent(found.bare_attacked))
    for one in found.candidates:
        mark = "  chosen" if one is found.best else ""
        accuracies = percent(one.clean_accuracy), percent(one.attacked_accuracy) + mark
        view.add_row(f"{one.step_size:.4g}", str(one.steps), f"{one.elbow:.4g}", *accuracies)
    return view


def _conclusion(found: Tuning) -> str:
    """Whether purification helps."""
    if not found.helps:
        return (
            "Purification does not help this model on these images: no setting is better than none. If the attack "
            "reduces the accuracy, train the auxiliary task longer, or use another task."
        )
    return f"The elbow is at {found.best.elbow:.4g}; the attack's radius is {found.eps_adv:.4g}. {UPPER_BOUND}"


def _recipe_section(found: Tuning) -> str:
    """The chosen settings as the section [purifier] of a recipe."""
    chosen = found.purification
    grid = ", ".join(map(repr, chosen.grid))
    return f"\n[purifier]\nstep_size = {chosen.step_size!r}\nsteps = {chosen.steps}\ngrid = [{grid}]"
