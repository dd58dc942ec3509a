"""`soap purify`: pictures in, purified pictures out."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from soap._runtime.isolation import isolated
from soap.cli import outputs, pictures, purifiers, sheet, subject
from soap.cli.options import Force, Gamma, ModelName, Out, PurifierSteps, Resize, radius
from soap.cli.shell import Shell, command
from soap.cli.tables import table
from soap.errors import InputError
from soap.purifiers import SOAP
from soap.recipes.purifiers import BY_PRIOR


def purify(
    shell: Shell,
    model: ModelName,
    out: Out,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES...",
            help="Image files (PNG, JPEG, ...), folders of them, or .npz files with x.",
            readable=False,  # reading finds out, with exit code 1 as for every other file
        ),
    ] = None,
    purifier_name: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="NAME",
            help="Purify by a generative model, without a classifier: defense-gan or pixeldefend. "
            "There is no MODEL then: all that is named are FILES.",
            autocompletion=lambda incomplete: [name for name in BY_PRIOR if name.startswith(incomplete)],
        ),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            metavar="PATH",
            help="The generative model's .safetensors file. [dim]\\[default: the bundled one][/dim]",
        ),
    ] = None,
    eps_pfy: Annotated[
        str | None,
        typer.Option(
            "--eps-pfy",
            metavar="CHOICE",
            help="Radius: min-aux (chosen for each picture), or a number. [dim]\\[default: min-aux][/dim]",
        ),
    ] = None,
    step_size: Gamma = None,
    steps: PurifierSteps = None,
    resize: Resize = False,
    force: Force = False,
) -> None:
    """Purify pictures: walk down the auxiliary loss inside a small ball, and write what comes out.

    Image files become 8-bit PNG files, rounded towards the input; an .npz stays an .npz of floats. Answers and losses
    are those of the files as written (with --with, losses are those that the purifier reports). side-by-side.png shows
    the first pictures: input, purified, and the difference.
    """
    files = files or []
    if purifier_name is not None:
        given = {"eps": None if eps_pfy is None else radius(eps_pfy), "step_size": step_size, "steps": steps}
        settings = {key: value for key, value in given.items() if value is not None}
        everything = [Path(model), *files]
        purifiers.purify(
            shell, purifier_name, everything, out, prior=prior, settings=settings, resize=resize, force=force
        )
        return
    if prior is not None:
        raise InputError("--prior is the generative model of --with; add --with, or leave it out.")
    if not files:
        raise InputError(f"no pictures: name FILES after the model {model}; without one, add --with defense-gan.")
    who = subject.load(shell, model)
    eps = radius(eps_pfy or "min-aux")
    if eps == "oracle":
        raise InputError("--eps-pfy oracle needs the true labels: it is a bound, not a defence; see `soap evaluate`.")
    purifier = SOAP(who.model, eps, step_size=step_size, steps=steps)
    found = pictures.read(files, who.model, resize=resize)
    outputs.check_places(found, out, force=force)
    x = torch.cat([picture.x for picture in found])
    done = subject.purified(shell, purifier, x)
    written = outputs.as_written(found, done.x)
    with isolated(who.model), torch.no_grad():
        losses = torch.cat([who.model.auxiliary.loss(who.model, part) for part in torch.split(written, shell.batch)])
    before, after = who.answers(x, batch=shell.batch), who.answers(written, batch=shell.batch)

    targets = outputs.write(found, written, out)
    captions = [(f"input: {one}", f"purified: {two}") for one, two in zip(before, after, strict=True)]
    sheet.draw(out / pictures.SHEET, x, written, captions)
    view = table("picture", "input", "purified", "eps", "auxiliary loss", "written to", right=("eps",))
    images = []
    owners = [(name, target) for picture, target in zip(found, targets, strict=True) for name in picture.names]
    for k, (name, target) in enumerate(owners):
        radius_used, loss_before, loss_after = done.eps[k].item(), done.loss_before[k].item(), losses[k].item()
        fall = f"{loss_before:.3g} -> {loss_after:.3g}"
        view.add_row(name, str(before[k]), str(after[k]), f"{radius_used:.3g}", fall, str(target))
        images.append(
            {
                "file": name,
                "output": target,
                "before": before[k].as_json(),
                "after": after[k].as_json(),
                "eps": radius_used,
                "loss_before": loss_before,
                "loss_after": loss_after,
            }
        )
    content = {"model": who.model.name, "purifier": repr(purifier), "images": images, "sheet": out / pictures.SHEET}
    shell.result(content, view)
    shell.say(f"Side by side: {out / pictures.SHEET}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "purify", example="soap purify mnist-cnn-dr attacked/ --out purified")(purify)
