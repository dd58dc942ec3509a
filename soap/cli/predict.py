"""`soap predict`: what a model sees in pictures, as they are and purified."""

from typing import Annotated, Any

import torch
import typer

from soap.cli import pictures, subject
from soap.cli.options import ModelName, PictureFiles, Resize
from soap.cli.shell import Shell, command
from soap.cli.tables import table
from soap.purifiers import SOAP


def predict(
    shell: Shell,
    model: ModelName,
    files: PictureFiles,
    purify: Annotated[
        bool | None,
        typer.Option("--purify/--no-purify", help="Purify first (min-aux). [dim]\\[default: if the model can][/dim]"),
    ] = None,
    resize: Resize = False,
) -> None:
    """Classify pictures, and say what purification changes.

    For each picture: the bare classifier's answer, the answer after purification, the radius eps that was chosen,
    and the auxiliary loss before and after. Colour is converted to what the model takes; size only with --resize.
    """
    who = subject.load(shell, model)
    purifier = SOAP(who.model) if (who.model.purifiable if purify is None else purify) else None
    found = pictures.read(files, who.model, resize=resize)
    names = [name for picture in found for name in picture.names]
    x = torch.cat([picture.x for picture in found])
    bare = who.answers(x, batch=shell.batch)
    images: list[dict[str, Any]] = [
        {"file": name, **answer.as_json()} for name, answer in zip(names, bare, strict=True)
    ]
    if purifier is None:
        view = table("picture", "answer")
        for name, answer in zip(names, bare, strict=True):
            view.add_row(name, str(answer))
    else:
        done = subject.purified(shell, purifier, x)
        view = table("picture", "bare", "purified", "eps", "auxiliary loss", right=("eps",))
        for k, answer in enumerate(who.answers(done.x, batch=shell.batch)):
            eps, before, after = done.eps[k].item(), done.loss_before[k].item(), done.loss_after[k].item()
            view.add_row(names[k], str(bare[k]), str(answer), f"{eps:.3g}", f"{before:.3g} -> {after:.3g}")
            images[k]["purified"] = {**answer.as_json(), "eps": eps, "loss_before": before, "loss_after": after}
    shell.result({"model": who.model.name, "purifier": repr(purifier) if purifier else None, "images": images}, view)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "predict", example="soap predict mnist-cnn-dr digit.png photos/ --resize")(predict)
