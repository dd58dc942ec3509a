"""`soap purify`: write purified versions of pictures."""

from pathlib import Path
from typing import Annotated, Any

import typer

from soap.cli.console import Console, command
from soap.cli.options import ModelName, OutputOptions, Prior, PurifierOptions, Resize, completion, default
from soap.cli.tables import table
from soap.errors import InputError
from soap.pictures import PictureReport, PurifiedPicture, purify_pictures, purify_pictures_by_prior
from soap.recipes.purifiers import BY_PRIOR, parse_radius


def purify_command(
    console: Console,
    *,
    model: ModelName,
    output: OutputOptions,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES...",
            help="Image files (PNG, JPEG, WebP, BMP), folders of them, or .npz files with x.",
            readable=False,  # reading reports it, with exit code 1 as for every other file
        ),
    ] = None,
    purifier: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="NAME",
            help="Purify with a generative model instead of a classifier: defense-gan or pixeldefend. "
            "Then there is no MODEL: all arguments are FILES.",
            autocompletion=completion(lambda: BY_PRIOR),
        ),
    ] = None,
    prior: Prior = None,
    eps_pfy: Annotated[
        str | None,
        typer.Option(
            "--eps-pfy",
            metavar="CHOICE",
            help=f"Radius: min-aux (chosen for each picture), or a number. {default('min-aux')}",
        ),
    ] = None,
    settings: PurifierOptions,
    resize: Resize = False,
) -> None:
    """Purify pictures: minimise the auxiliary loss inside a small ball, and write the results.

    Image files become 8-bit PNG files, rounded towards the input; an .npz stays an .npz of floats. Predictions and
    losses are those of the files as written (with --with, losses are those that the purifier reports). side-by-side.png
    shows the first pictures: input, purified picture, and the difference.
    """
    steps: dict[str, Any] = {"step_size": settings.step_size, "steps": settings.steps}
    shared: dict[str, Any] = {
        "resize": resize, "force": output.force, "device": console.device, "batch": console.batch,
    }  # fmt: skip
    with console.progress() as show:
        if purifier is not None:
            given = {"eps": None if eps_pfy is None else parse_radius(eps_pfy), **steps}
            done = purify_pictures_by_prior(
                purifier,
                [Path(model), *(files or [])],
                output.out,
                prior=prior,
                settings={key: value for key, value in given.items() if value is not None},
                seed=console.seed,
                watch=show,
                **shared,
            )
        else:
            if prior is not None:
                raise InputError("--prior is the generative model of --with; add --with, or omit --prior.")
            if not files:
                raise InputError(f"no pictures; name FILES after the model {model}, or add --with defense-gan.")
            eps = parse_radius(eps_pfy or "min-aux")
            done = purify_pictures(model, files, output.out, eps=eps, watch=show, **steps, **shared)
    name = "prior" if purifier is not None else "model"
    images = [one.as_json() for one in done.images]
    content = {name: done.model, "purifier": done.method, "images": images, "sheet": done.comparison}
    console.result(content, _view(done, predicted=purifier is None))
    console.info(f"Side by side: {done.comparison}")


def _view(done: PictureReport[PurifiedPicture], *, predicted: bool) -> Any:
    predictions = ("input", "purified") if predicted else ()
    eps, loss = ("eps", "auxiliary loss") if predicted else ("largest change", "loss")
    view = table("picture", *predictions, eps, loss, "written to", right=(eps,))
    for one in done.images:
        shown = (str(one.before), str(one.after)) if predicted else ()
        losses = f"{one.loss_before:.3g} -> {one.loss_after:.3g}"
        view.add_row(one.file, *shown, f"{one.eps:.3g}", losses, str(one.output))
    return view


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "purify", example="soap purify mnist-cnn-dr attacked/ --out purified")(purify_command)
