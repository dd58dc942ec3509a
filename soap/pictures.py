"""Classify, attack and purify the user's own pictures: image files, folders of them, and .npz files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from soap._runtime.isolation import isolated
from soap.attacks import MinimalL2
from soap.balls import row_norms
from soap.data.picture_files import COMPARISON_NAME, PictureFile, as_written, check_outputs, read_files, write_files
from soap.data.pictures import is_light
from soap.errors import InputError
from soap.purifiers import SOAP, Purified
from soap.recipes.purifiers import SOAP_NAME, by_prior
from soap.recipes.trained_model import TrainedModel, open_model
from soap.report.comparison_image import draw_comparison
from soap.shapes import Float, Tensor

Watch = Callable[[str, float, float | None], None]
"""Called with the current work, how much of it is done, and the total."""


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """How pictures are read, processed and written.

    module: as in `soap.load`, for the weights of your own network. resize: scale them to the input size of the model.
    invert: swap dark and light. force: overwrite files, but no input file. seed: of random attacks and purifiers.
    """

    resize: bool = False
    invert: bool = False
    force: bool = False
    seed: int = 0
    device: torch.device | str = "cpu"
    batch_size: int = 500
    module: str | None = None
    watch: Watch = lambda what, done, total: None


def class_text(prediction: Mapping[str, Any]) -> str:
    """A predicted class as text: '4 (99.1 %)'."""
    return f"{prediction['name']} ({100 * prediction['confidence']:.1f} %)"


@dataclass(frozen=True, kw_only=True)
class PictureReport:
    """What happened to the pictures; `method` is the attack or purifier, `comparison` the side-by-side image.

    images: one JSON object for each image. file; before, after: the predicted class (label, name, confidence); output:
    the written file; eps, loss_before, loss_after: of purification; label, label_name, label_from: the true class for
    an attack and where it came from; linf, l2: size of the attack's change; fooled: whether the attacked image is
    misclassified. hint: advice about pictures that are probably inverted; empty without any.
    """

    model: str
    method: str | None
    images: list[dict[str, Any]]
    comparison: Path | None = None
    hint: str = ""


def predict_pictures(
    model: str, files: Sequence[Path], options: PictureOptions, *, purify: bool | None = None
) -> PictureReport:
    """Classify pictures without and with min-aux purification.

    purify: None purifies if the model has an auxiliary task.
    """
    classifier = open_model(model, device=options.device, module=options.module)
    purifier = SOAP(classifier.model) if (classifier.model.purifiable if purify is None else purify) else None
    found, x = _read(files, classifier.model, options)
    columns: dict[str, Sequence[Any]] = {"before": _predict(classifier, x, options.batch_size)}
    if purifier is not None:
        done = _purify_in_batches(purifier, x, options)
        columns |= {"after": _predict(classifier, done.x, options.batch_size), **_purification_columns(done)}
    method = None if purifier is None else repr(purifier)
    return _report(classifier.model, method, found, columns, options)


def attack_pictures(
    model: str,
    files: Sequence[Path],
    out: Path,
    options: PictureOptions,
    *,
    attack: str = "pgd",
    settings: Mapping[str, float] | None = None,
    label: int | None = None,
) -> PictureReport:
    """Attack pictures and write the adversarial ones below `out`; predictions are those of the files as written.

    label: the true class of all pictures; None takes the file's label, else the model's prediction. Image files are
    rounded to 8 bits: towards the input, so that they stay in the attack's ball, and away from it for minimal attacks.
    """
    classifier, batch_size = open_model(model, device=options.device, module=options.module), options.batch_size
    method = classifier.attack(attack, seed=options.seed, settings=settings)
    found, x = _read(files, classifier.model, options, classes=classifier.classes)
    check_outputs(found, out, force=options.force)
    before = _predict(classifier, x, batch_size)
    labels, sources = _true_labels(classifier.model.classes, found, before, label)
    y = torch.tensor(labels, device=x.device)
    parts: list[Tensor] = []
    for part, classes in zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True):
        parts.append(method(classifier.model, part, classes))
        options.watch(attack, sum(map(len, parts)), len(x))
    written = as_written(found, torch.cat(parts), away=isinstance(method, MinimalL2))
    after = _predict(classifier, written, batch_size)
    delta = written - x
    columns: dict[str, Sequence[Any]] = {
        "before": before,
        "after": after,
        "output": _write(found, written, out, _captions("attacked", before, after), labels=y),
        "label": labels,
        "label_name": [classifier.classes[one] for one in labels],
        "label_from": sources,
        "linf": delta.flatten(1).abs().amax(1).tolist(),
        "l2": row_norms(delta).tolist(),
        "fooled": [one["label"] != label for one, label in zip(after, labels, strict=True)],
    }
    return _report(classifier.model, repr(method), found, columns, options, out)


def purify_pictures(
    model: str | None,
    files: Sequence[Path],
    out: Path,
    options: PictureOptions,
    *,
    purifier: str = SOAP_NAME,
    prior: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> PictureReport:
    """Purify pictures with SOAP, or with a generative model and no classifier, and write them below `out`.

    model: the classifier of SOAP; None for the generative model `prior` of `purifier`. settings: of the purifier, e.g.
    {"eps": 0.3}. With a classifier, predictions and losses are those of the written files; otherwise losses are the
    purifier's own.
    """
    given, classifier, batch_size = dict(settings or {}), None, options.batch_size
    network: Any
    purify: Callable[[Tensor], Purified]
    if model is None:
        network, purify = by_prior(purifier, given, prior=prior, device=options.device, seed=options.seed)
    else:
        if given.get("eps") == "oracle":
            raise InputError("eps 'oracle' needs the true labels: it is a bound, not a defence; see `soap evaluate`.")
        classifier = open_model(model, device=options.device, module=options.module)
        network = classifier.model
        purify = SOAP(network, **given)
    found, x = _read(files, network, options)
    check_outputs(found, out, force=options.force)
    done = _purify_in_batches(purify, x, options)
    written = as_written(found, done.x)
    columns, captions = _purification_columns(done), [("input", "purified")] * len(x)
    if classifier is not None:
        before, after = _predict(classifier, x, batch_size), _predict(classifier, written, batch_size)
        with isolated(network), torch.no_grad():
            losses = torch.cat([network.auxiliary.loss(network, part) for part in torch.split(written, batch_size)])
        columns |= {"before": before, "after": after, "loss_after": losses.tolist()}
        captions = _captions("purified", before, after)
    columns["output"] = _write(found, written, out, captions)
    return _report(network, repr(purify), found, columns, options, out)


def _read(
    files: Sequence[Path], model: Any, options: PictureOptions, classes: Sequence[str] = ()
) -> tuple[list[PictureFile], Tensor]:
    found = read_files(files, model, classes=classes, resize=options.resize, invert=options.invert)
    return found, torch.cat([file.x for file in found])


def _predict(classifier: TrainedModel, x: Float[Tensor, "n *shape"], batch_size: int) -> list[dict[str, Any]]:
    found = []
    for part in torch.split(x, batch_size):
        with isolated(classifier.model), torch.no_grad():
            confidences, labels = classifier.model(part).softmax(1).max(1)
        for label, share in zip(labels.tolist(), confidences.tolist(), strict=True):
            found.append({"label": label, "name": classifier.classes[label], "confidence": round(share, 6)})
    return found


def _captions(
    what: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    pairs = zip(map(class_text, before), map(class_text, after), strict=True)
    return [(f"input: {one}", f"{what}: {two}") for one, two in pairs]


def _purify_in_batches(
    purifier: Callable[[Tensor], Purified], x: Float[Tensor, "n *shape"], options: PictureOptions
) -> Purified:
    """All images purified, one batch after another."""
    parts: list[Purified] = []
    for part in torch.split(x, options.batch_size):
        parts.append(purifier(part))
        options.watch("purifying", sum(len(done.x) for done in parts), len(x))
    names = ("x", "eps", "loss_before", "loss_after")
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    return Purified(**{name: torch.cat(column) for name, column in columns.items()})


def _purification_columns(done: Purified) -> dict[str, Sequence[Any]]:
    return {name: getattr(done, name).tolist() for name in ("eps", "loss_before", "loss_after")}


def _report(
    model: Any,
    method: str | None,
    files: Sequence[PictureFile],
    columns: Mapping[str, Sequence[Any]],
    options: PictureOptions,
    out: Path | None = None,
) -> PictureReport:
    """One result for each image, from columns of values, and a hint for grey pictures that look like ink on paper."""
    names = [name for file in files for name in file.names]
    rows = zip(names, *columns.values(), strict=True)
    images = [dict(zip(("file", *columns), values, strict=True)) for values in rows]
    light = sum(int(is_light(file.x).sum()) for file in files) if model.input_shape[0] == 1 else 0
    before, advice = (" after --invert", "omit it") if options.invert else ("", "add --invert")
    hint = f"{light} of {len(images)} pictures are dark on light{before}; MNIST digits are light on dark: {advice}."
    return PictureReport(
        model=model.name,
        method=method,
        images=images,
        comparison=None if out is None else out / COMPARISON_NAME,
        hint=hint if light else "",
    )


def _true_labels(
    classes: int, files: Sequence[PictureFile], predictions: Sequence[Mapping[str, Any]], label: int | None
) -> tuple[list[int], list[str]]:
    """The true class of each image, and where it came from."""
    if label is not None:
        if not 0 <= label < classes:
            raise InputError(f"label is {label}, expected a class from 0 to {classes - 1}.")
        return [label] * len(predictions), ["--label"] * len(predictions)
    labels, sources = [one["label"] for one in predictions], ["the model"] * len(predictions)
    first = 0
    for file in files:
        if file.y is not None:
            places = slice(first, first + len(file.x))
            labels[places], sources[places] = file.y.tolist(), [file.label_source] * len(file.x)
        first += len(file.x)
    return labels, sources


def _write(
    files: Sequence[PictureFile],
    written: Tensor,
    out: Path,
    captions: Sequence[tuple[str, str]],
    labels: Tensor | None = None,
) -> list[Path]:
    """Write the changed images and the side-by-side image; return the written file of each image."""
    targets = write_files(files, written, out, labels=labels)
    draw_comparison(out / COMPARISON_NAME, torch.cat([file.x for file in files]), written, captions)
    return [target for file, target in zip(files, targets, strict=True) for _ in file.names]
