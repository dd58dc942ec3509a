"""`soap tune`: choose purifier settings for a model on images of the user."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import rich.table
import typer
from rich.console import Group
from rich.text import Text

from soap import data as library
from soap import zoo
from soap._files import atomic
from soap.cli.console import Console, command
from soap.cli.options import DataOptions, ModelName, default, number
from soap.cli.tables import percent, table
from soap.evaluation.tuning import Tuning
from soap.evaluation.tuning import tune as find_settings
from soap.recipes.attacks import paper_radius
from soap.recipes.naming import class_names
from soap.report import UPPER_BOUND


def tune_command(
    console: Console,
    *,
    model: ModelName,
    images: DataOptions,
    split: Annotated[
        str, typer.Option("--split", metavar="NAME", help="train or test; do not tune on the images you test on.")
    ] = "train",
    eps: Annotated[
        float | None,
        typer.Option(
            "--eps",
            metavar="X",
            parser=number,
            help=f"Radius of the attack to defend against, e.g. 0.3 or 8/255. {default('that of the paper')}",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Number of images, drawn by --seed.")] = 100,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Images processed at a time.")] = 100,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help=f"Folder for tune.json and its plot. {default('runs/tune-MODEL')}"),
    ] = None,
) -> None:
    """Choose gamma, T and the radii for a model on your images, and plot the paper's Figure 3 for them.

    Images are attacked, then purified with each step size, number of steps and radius. The auxiliary loss falls with
    the radius until the attack is undone. The elbow is where the curve is furthest below its chord; it should be near
    the radius of the attack. Radii up to twice the elbow are kept, with the gamma and T of highest accuracy.
    """
    from soap.report.tuning_curve import save  # imported here because matplotlib is slow to import

    network, recipe = zoo.load(model, device=console.device), zoo.recipe(model)
    network.auxiliary  # noqa: B018  # raises before the work if the model has no task
    folder = out or Path("runs") / f"tune-{network.name}"
    atomic.check_writable(folder)
    data = library.load(images.data or recipe.data, split, root=images.data_root)
    data = data.numbered_by(class_names(recipe, network.classes)).to(console.device)
    radius = paper_radius(data.name, recipe, network) if eps is None else eps
    with console.progress() as show:
        found = find_settings(network, data, radius, limit=limit, batch=batch, seed=console.seed, watch=show)
    paths, best = save(found, folder), found.best
    content = {
        "model": found.model,
        "data": found.data,
        "n": found.n,
        "eps_adv": found.eps_adv,
        "elbow": best.elbow,
        "purifier": asdict(found.purification),
        "helps": found.helps,
        "accuracy": {
            "clean": {"bare": found.bare_clean, "purified": best.clean_accuracy},
            "attacked": {"bare": found.bare_attacked, "purified": best.attacked_accuracy},
        },
        "files": paths,
    }
    console.result(content, Group(_candidates(found), Text(_conclusion(found)), Text(_recipe_section(found))))
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


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "tune", example="soap tune mnist-fcn-dr --data digits/ --eps 0.3 --out runs/tune")(tune_command)
