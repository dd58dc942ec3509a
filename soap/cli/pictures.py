"""`soap predict`, `soap attack` and `soap purify`: the user's own pictures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from soap import zoo
from soap.cli.console import Console, command, table
from soap.cli.options import (
    PICTURE_FILES,
    AttackOptions,
    ModelOptions,
    OutputOptions,
    Prior,
    PurifierOptions,
    ReadingOptions,
    attack_names,
    completion,
    option,
)
from soap.errors import InputError
from soap.pictures import (
    PictureOptions,
    PictureReport,
    attack_pictures,
    class_text,
    predict_pictures,
    purify_pictures,
)
from soap.recipes.purifiers import BY_CLASSIFIER, BY_PRIOR, SOAP_NAME, parse_radius


@contextmanager
def _working(
    console: Console, reading: ReadingOptions, module: str | None, *, force: bool = False
) -> Iterator[PictureOptions]:
    """Show progress while pictures are read, changed and written with these options."""
    shared: dict[str, Any] = {"seed": console.seed, "device": console.device, "batch_size": console.batch_size}
    with console.progress() as show:
        yield PictureOptions(force=force, module=module, watch=show, **vars(reading), **shared)


@command("predict", example="soap predict mnist-cnn-dr scan.png digits/ --resize --invert")
def predict_command(
    console: Console,
    *,
    model: ModelOptions,
    files: Annotated[list[Path], PICTURE_FILES],
    purify: Annotated[
        bool | None,
        typer.Option(
            "--purify/--no-purify",
            help="Purify first (min-aux). [dim]\\[default: if the model has an auxiliary task][/dim]",
        ),
    ] = None,
    reading: ReadingOptions,
) -> None:
    """Classify pictures, and show the effect of purification.

    For each picture: the prediction of the bare classifier, the prediction after purification, the chosen radius eps,
    and the auxiliary loss before and after. Colour is converted to grey or RGB as the model needs; the size only with
    --resize.
    """
    with _working(console, reading, model.module) as options:
        done = predict_pictures(model.model, files, options, purify=purify)
    view = table("picture", "bare", "purified", "eps", "auxiliary loss", right=("eps",))
    if done.method is None:
        view = table("picture", "prediction")
    images = []
    for one in done.images:
        purified = {key: one[key] for key in ("eps", "loss_before", "loss_after") if key in one}
        content = {"file": one["file"], **one["before"]}
        images.append(content | ({"purified": {**one["after"], **purified}} if purified else {}))
        shown = (class_text(one["after"]), f"{one['eps']:.3g}", _losses(one)) if purified else ()
        view.add_row(one["file"], class_text(one["before"]), *shown)
    console.result({"model": done.model, "purifier": done.method, "images": images}, view)
    if done.hint:
        console.info(done.hint)


@command("attack", example="soap attack mnist-cnn-dr digits/ --attack pgd --out attacked")
def attack_command(
    console: Console,
    *,
    model: ModelOptions,
    files: Annotated[list[Path], PICTURE_FILES],
    output: OutputOptions,
    attack: Annotated[str, option("NAME", "fgsm, pgd, cw or df.", autocompletion=attack_names)] = "pgd",
    label: Annotated[
        int | None,
        option(
            "N",
            "The true class of all pictures.",
            default="y of the .npz, else the name of the class folder, else the prediction",
        ),
    ] = None,
    settings: AttackOptions,
    reading: ReadingOptions,
) -> None:
    """Make adversarial pictures: almost unchanged to the eye, but misclassified.

    The settings are the paper's for the data set of the model. Image files become 8-bit PNG files, rounded towards the
    input, so that they stay in the attack's ball; those of cw and df, which are minimal, are rounded away from it. An
    .npz stays an .npz of floats. Predictions are those of the files as written. side-by-side.png shows the first
    pictures: input, adversarial picture, and the difference.
    """
    with _working(console, reading, model.module, force=output.force) as options:
        done = attack_pictures(
            model.model, files, output.out, options, attack=attack, settings=settings.settings(), label=label
        )
    view = table("picture", "true class", "input", "attacked", "Linf", "L2", "written to", right=("Linf", "L2"))
    for one in done.images:
        truth = f"{one['label_name']} (from {one['label_from']})"
        classes, change = map(class_text, (one["before"], one["after"])), (f"{one['linf']:.3f}", f"{one['l2']:.2f}")
        view.add_row(one["file"], truth, *classes, *change, str(one["output"]))
    _print_written(console, {"model": done.model, "attack": done.method}, done, view)
    fooled = sum(one["fooled"] for one in done.images)
    console.info(f"{fooled} of {len(done.images)} are misclassified by the bare model ({done.method}).")


@command("purify", example="soap purify mnist-cnn-dr attacked/ --out purified")
def purify_command(
    console: Console,
    *,
    model: ModelOptions,
    output: OutputOptions,
    files: Annotated[list[Path] | None, PICTURE_FILES] = None,
    purifier: Annotated[
        str | None,
        option(
            "NAME",
            "Purify with a generative model instead of a classifier: defense-gan, pixeldefend, autoencoder or "
            "diffusion. Then there is no MODEL: all arguments are FILES.",
            "--with",
            autocompletion=completion(lambda: BY_PRIOR),
        ),
    ] = None,
    prior: Prior = None,
    eps_pfy: Annotated[
        str | None, option("CHOICE", "Radius: min-aux (chosen for each picture), or a number.", default="min-aux")
    ] = None,
    settings: PurifierOptions,
    reading: ReadingOptions,
) -> None:
    """Purify pictures: minimise the auxiliary loss inside a small ball, and write the results.

    Image files become 8-bit PNG files, rounded towards the input; an .npz stays an .npz of floats. Predictions and
    losses are those of the files as written (with --with, losses are those that the purifier reports). side-by-side.png
    shows the first pictures: input, purified picture, and the difference.
    """
    pictures = files or []
    if purifier is not None:
        if purifier in BY_CLASSIFIER:
            instead = f"try `soap evaluate MODEL --purifier {purifier}`"
            instead = "omit --with and name a model" if purifier == SOAP_NAME else instead
            raise InputError(f"--with {purifier} needs a classifier; {instead}, or use {' or '.join(BY_PRIOR)}.")
        if model.model in zoo.names() and not Path(model.model).exists():
            raise InputError(f"--with {purifier} uses no classifier, so {model.model} is read as a file; remove it.")
        pictures = [Path(model.model), *pictures]
    elif prior is not None:
        raise InputError("--prior is the generative model of --with; add --with, or omit --prior.")
    elif not pictures:
        raise InputError(f"no pictures; name FILES after the model {model.model}, or add --with defense-gan.")
    given = {"eps": None if eps_pfy is None else parse_radius(eps_pfy), **vars(settings)}
    chosen = {key: value for key, value in given.items() if value is not None}
    with _working(console, reading, model.module, force=output.force) as options:
        done = purify_pictures(
            model.model if purifier is None else None,
            pictures,
            output.out,
            options,
            purifier=purifier or SOAP_NAME,
            prior=prior,
            settings=chosen,
        )
    predictions = ("input", "purified") if purifier is None else ()
    eps, loss = ("eps", "auxiliary loss") if purifier is None else ("largest change", "loss")
    view = table("picture", *predictions, eps, loss, "written to", right=(eps,))
    for one in done.images:
        shown = map(class_text, (one["before"], one["after"])) if purifier is None else ()
        view.add_row(one["file"], *shown, f"{one['eps']:.3g}", _losses(one), str(one["output"]))
    content = {"model" if purifier is None else "prior": done.model, "purifier": done.method}
    _print_written(console, content, done, view)


def _losses(image: dict[str, Any]) -> str:
    return f"{image['loss_before']:.3g} -> {image['loss_after']:.3g}"


def _print_written(console: Console, content: dict[str, Any], done: PictureReport, view: Any) -> None:
    console.result({**content, "images": done.images, "sheet": done.comparison}, view)
    console.info(f"Side by side: {done.comparison}")
    if done.hint:
        console.info(done.hint)
