"""`soap predict`: classify pictures without and with purification."""

from typing import Annotated

import typer

from soap.cli.console import Console, command
from soap.cli.options import ModelName, PictureFiles, Resize, default
from soap.cli.tables import table
from soap.pictures import predict_pictures


def predict_command(
    console: Console,
    model: ModelName,
    files: PictureFiles,
    purify: Annotated[
        bool | None,
        typer.Option(
            "--purify/--no-purify", help=f"Purify first (min-aux). {default('if the model has an auxiliary task')}"
        ),
    ] = None,
    resize: Resize = False,
) -> None:
    """Classify pictures, and show the effect of purification.

    For each picture: the prediction of the bare classifier, the prediction after purification, the chosen radius eps,
    and the auxiliary loss before and after. Colour is converted to grey or RGB as the model needs; the size only with
    --resize.
    """
    with console.progress() as show:
        done = predict_pictures(
            model, files, purify=purify, resize=resize, device=console.device, batch=console.batch, watch=show
        )
    if done.method is None:
        view = table("picture", "prediction")
        for one in done.images:
            view.add_row(one.file, str(one.bare))
    else:
        view = table("picture", "bare", "purified", "eps", "auxiliary loss", right=("eps",))
        for one in done.images:
            losses = f"{one.loss_before:.3g} -> {one.loss_after:.3g}"
            view.add_row(one.file, str(one.bare), str(one.purified), f"{one.eps:.3g}", losses)
    content = {"model": done.model, "purifier": done.method, "images": [one.as_json() for one in done.images]}
    console.result(content, view)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "predict", example="soap predict mnist-cnn-dr digit.png photos/ --resize")(predict_command)
