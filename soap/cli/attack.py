"""`soap attack`: write adversarial versions of pictures."""

from typing import Annotated

import typer

from soap.cli.console import Console, command
from soap.cli.options import (
    AttackOptions,
    ModelName,
    OutputOptions,
    PictureFiles,
    Resize,
    attack_names,
    default,
)
from soap.cli.tables import table
from soap.pictures import attack_pictures


def attack_command(
    console: Console,
    *,
    model: ModelName,
    files: PictureFiles,
    output: OutputOptions,
    attack: Annotated[
        str, typer.Option("--attack", metavar="NAME", help="fgsm, pgd, cw or df.", autocompletion=attack_names)
    ] = "pgd",
    label: Annotated[
        int | None,
        typer.Option(
            "--label",
            metavar="N",
            help="The true class of all pictures. "
            f"{default('y of the .npz, else the name of the class folder, else the prediction')}",
        ),
    ] = None,
    settings: AttackOptions,
    resize: Resize = False,
) -> None:
    """Make adversarial pictures: almost unchanged to the eye, but misclassified.

    The settings are the paper's for the data set of the model. Image files become 8-bit PNG files, rounded towards the
    input, so that they stay in the attack's ball; those of cw and df, which are minimal, are rounded away from it. An
    .npz stays an .npz of floats. Predictions are those of the files as written. side-by-side.png shows the first
    pictures: input, adversarial picture, and the difference.
    """
    with console.progress() as show:
        done = attack_pictures(
            model,
            files,
            output.out,
            attack=attack,
            settings=settings.settings(),
            label=label,
            resize=resize,
            force=output.force,
            seed=console.seed,
            device=console.device,
            batch=console.batch,
            watch=show,
        )
    view = table("picture", "true class", "input", "attacked", "Linf", "L2", "written to", right=("Linf", "L2"))
    for one in done.images:
        truth = f"{one.label_name} (from {one.label_source})"
        change = (f"{one.linf:.3f}", f"{one.l2:.2f}")
        view.add_row(one.file, truth, str(one.before), str(one.after), *change, str(one.output))
    images = [one.as_json() for one in done.images]
    console.result({"model": done.model, "attack": done.method, "images": images, "sheet": done.comparison}, view)
    fooled = sum(one.fooled for one in done.images)
    console.info(f"{fooled} of {len(images)} are misclassified by the bare model ({done.method}).")
    console.info(f"Side by side: {done.comparison}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "attack", example="soap attack mnist-cnn-dr digits/ --attack pgd --out attacked")(attack_command)
