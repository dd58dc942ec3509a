"""`soap tune`: purifier settings for a model on data of one's own."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import rich.table
import typer
from rich.console import Group
from rich.text import Text

from soap import data as library
from soap import zoo
from soap.cli.options import DataName, DataRoot, ModelName, number, paper_attacks
from soap.cli.outputs import check_folder
from soap.cli.shell import Shell, command
from soap.cli.tables import class_names, percent, table
from soap.evaluation.tuning import Tuning
from soap.evaluation.tuning import tune as find
from soap.report import UPPER_BOUND


def tune(
    shell: Shell,
    model: ModelName,
    data: DataName = None,
    split: Annotated[
        str, typer.Option("--split", metavar="NAME", help="train or test; test images should stay unseen.")
    ] = "train",
    eps: Annotated[
        float | None,
        typer.Option(
            "--eps",
            metavar="X",
            parser=number,
            help="Radius of the attack to defend against, e.g. 0.3 or 8/255. [dim]\\[default: the paper's][/dim]",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many images, drawn by --seed.")] = 100,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Images handled at a time.")] = 100,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for tune.json and its picture. [dim]\\[default: runs/tune-MODEL][/dim]",
        ),
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Choose gamma, T and the radii for a model on your images, and draw the paper's Figure 3 for them.

    Images are attacked, then purified with every step size, number of steps and radius. The auxiliary loss falls with
    the radius until the attack is undone; where its curve lies furthest below its chord is the elbow, which should be
    near the attack's radius. Radii up to twice the elbow are kept, with the gamma and T of highest accuracy.
    """
    network, recipe = zoo.load(model, device=shell.device), zoo.recipe(model)
    network.auxiliary  # noqa: B018  # a model without a task is refused before anything is read
    place = out or Path("runs") / f"tune-{network.name}"
    check_folder(place)
    images = library.load(data or recipe.data, split, root=data_root)
    images = images.numbered_by(class_names(recipe, network.classes)).to(shell.device)
    if eps is None:
        eps = paper_attacks(shell, images.name, recipe, network)["pgd"].eps  # type: ignore[attr-defined]
    with shell.progress() as show:
        found = find(network, images, eps, limit=limit, batch=batch, seed=shell.seed, watch=show)
    from soap.report.tuning_curve import save  # not above: matplotlib takes its time

    paths = save(found, place)
    best = found.best
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
    shell.result(content, Group(_tried(found), Text(_words(found)), Text(_section(found))))
    shell.say(f"The curve and all figures: {', '.join(map(str, paths))}.")


def _tried(found: Tuning) -> rich.table.Table:
    view = table("gamma", "T", "elbow", "clean", "attacked", right=("gamma", "T", "elbow"))
    view.add_row("", "none", "", percent(found.bare_clean), percent(found.bare_attacked))
    for one in found.candidates:
        mark = "  chosen" if one is found.best else ""
        accuracies = percent(one.clean_accuracy), percent(one.attacked_accuracy) + mark
        view.add_row(f"{one.step_size:.4g}", str(one.steps), f"{one.elbow:.4g}", *accuracies)
    return view


def _words(found: Tuning) -> str:
    """What the choice is worth."""
    if not found.helps:
        return (
            "Purification does not help this model on these images: no setting is better than none. Where the attack "
            "does harm all the same, train the auxiliary task longer, or take another."
        )
    return f"The loss bends at {found.best.elbow:.4g}; the attack's radius is {found.eps_adv:.4g}. {UPPER_BOUND}"


def _section(found: Tuning) -> str:
    """The choice as a recipe has it."""
    chosen = found.purification
    grid = ", ".join(map(repr, chosen.grid))
    return f"\n[purifier]\nstep_size = {chosen.step_size!r}\nsteps = {chosen.steps}\ngrid = [{grid}]"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "tune", example="soap tune mnist-fcn-dr --data digits/ --eps 0.3 --out runs/tune")(tune)
