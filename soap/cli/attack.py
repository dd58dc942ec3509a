"""`soap attack`: pictures in, adversarial pictures out."""

from collections.abc import Sequence
from typing import Annotated

import torch
import typer

from soap.attacks import MinimalL2
from soap.balls import row_norms
from soap.cli import outputs, pictures, sheet, subject
from soap.cli.options import (
    AttackEps,
    AttackSteps,
    AttackStepSize,
    Force,
    ModelName,
    Out,
    PictureFiles,
    Resize,
    attack_names,
    chosen_attacks,
    paper_attacks,
)
from soap.cli.shell import Shell, command
from soap.cli.subject import Answer, Subject
from soap.cli.tables import table
from soap.errors import InputError
from soap.shapes import Tensor


def attack(
    shell: Shell,
    model: ModelName,
    files: PictureFiles,
    out: Out,
    attack: Annotated[
        str, typer.Option("--attack", metavar="NAME", help="fgsm, pgd, cw or df.", autocompletion=attack_names)
    ] = "pgd",
    label: Annotated[
        int | None,
        typer.Option(
            "--label",
            metavar="N",
            help="The true class of all pictures. [dim]\\[default: the .npz's y, else the name of the picture's "
            "folder within a folder, else what the model says][/dim]",
        ),
    ] = None,
    eps: AttackEps = None,
    step_size: AttackStepSize = None,
    steps: AttackSteps = None,
    resize: Resize = False,
    force: Force = False,
) -> None:
    """Make adversarial pictures: hardly changed to the eye, and classified as something else.

    The settings are the paper's for the model's data set. Image files become 8-bit PNG files, rounded towards the
    input, so that they stay in the attack's ball; those of cw and df, which go no further than they must, are rounded
    away from it. An .npz stays an .npz of floats. Answers are those of the files as written. side-by-side.png shows the
    first pictures: input, adversarial, and the difference.
    """
    who = subject.load(shell, model)
    paper = paper_attacks(shell, who.recipe.data, who.recipe, who.model)
    method = chosen_attacks(paper, [attack], seed=shell.seed, eps=eps, step_size=step_size, steps=steps)[attack]
    found = pictures.read(files, who.model, classes=who.classes, resize=resize)
    outputs.check_places(found, out, force=force)
    x = torch.cat([picture.x for picture in found])
    before = who.answers(x, batch=shell.batch)
    labels, told = _labels(who, found, before, label)
    y = torch.tensor(labels, device=x.device)
    parts: list[Tensor] = []
    with shell.progress() as show:
        for part, classes in zip(torch.split(x, shell.batch), torch.split(y, shell.batch), strict=True):
            parts.append(method(who.model, part, classes))
            show(attack, sum(map(len, parts)), len(x))
    written = outputs.as_written(found, torch.cat(parts), outwards=isinstance(method, MinimalL2))
    after = who.answers(written, batch=shell.batch)

    targets = outputs.write(found, written, out, labels=y)
    captions = [(f"input: {one}", f"attacked: {two}") for one, two in zip(before, after, strict=True)]
    sheet.draw(out / pictures.SHEET, x, written, captions)
    delta = written - x
    linf, l2 = delta.flatten(1).abs().amax(1).tolist(), row_norms(delta).tolist()
    view = table("picture", "true class", "input", "attacked", "Linf", "L2", "written to", right=("Linf", "L2"))
    images = []
    owners = [(name, target) for picture, target in zip(found, targets, strict=True) for name in picture.names]
    for k, (name, target) in enumerate(owners):
        truth = f"{who.classes[labels[k]]} (by {told[k]})"
        view.add_row(name, truth, str(before[k]), str(after[k]), f"{linf[k]:.3f}", f"{l2[k]:.2f}", str(target))
        images.append(
            {
                "file": name,
                "output": target,
                "label": labels[k],
                "label_from": told[k],
                "before": before[k].as_json(),
                "after": after[k].as_json(),
                "fooled": after[k].label != labels[k],
                "linf": linf[k],
                "l2": l2[k],
            }
        )
    content = {"model": who.model.name, "attack": repr(method), "images": images, "sheet": out / pictures.SHEET}
    shell.result(content, view)
    shell.say(f"{sum(image['fooled'] for image in images)} of {len(images)} fool the bare model ({method}).")
    shell.say(f"Side by side: {out / pictures.SHEET}")


def _labels(
    who: Subject, found: Sequence[pictures.Pictures], answers: Sequence[Answer], label: int | None
) -> tuple[list[int], list[str]]:
    """The true class of every image, and what told it."""
    if label is not None:
        if not 0 <= label < who.model.classes:
            raise InputError(f"--label is {label}, want a class from 0 to {who.model.classes - 1}.")
        return [label] * len(answers), ["--label"] * len(answers)
    labels, told = [answer.label for answer in answers], ["the model"] * len(answers)
    first = 0
    for picture in found:
        if picture.y is not None:
            rows = slice(first, first + len(picture.x))
            labels[rows], told[rows] = picture.y.tolist(), [picture.told] * len(picture.x)
        first += len(picture.x)
    return labels, told


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "attack", example="soap attack mnist-cnn-dr digits/ --attack pgd --out attacked")(attack)
