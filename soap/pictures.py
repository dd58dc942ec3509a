"""Classify, attack and purify the user's own pictures: image files, folders of them, and .npz files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch

from soap import zoo
from soap._runtime.isolation import isolated
from soap.attacks import MinimalL2
from soap.auxiliary import JointModel
from soap.balls import row_norms
from soap.data.picture_files import (
    COMPARISON_NAME,
    PictureFile,
    TakesImages,
    as_written,
    check_outputs,
    read_files,
    write_files,
)
from soap.errors import InputError
from soap.evaluation import PAPER
from soap.purifiers import SOAP, Purified
from soap.recipes import Recipe
from soap.recipes.attacks import attacks_by_name, paper_data_set
from soap.recipes.naming import class_names
from soap.recipes.purifiers import BY_CLASSIFIER, BY_PRIOR, SOAP_NAME, by_prior
from soap.report.comparison_image import draw_comparison
from soap.shapes import Float, Tensor

Watch = Callable[[str, float, float | None], None]
"""Called with the current work, how much of it is done, and the total."""


def _ignore(what: str, done: float, total: float | None) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class ClassPrediction:
    """The predicted class of one image: its number, its name and its probability."""

    label: int
    name: str
    confidence: float

    def __str__(self) -> str:
        return f"{self.name} ({100 * self.confidence:.1f} %)"

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {"label": self.label, "name": self.name, "confidence": round(self.confidence, 6)}


@dataclass(frozen=True, kw_only=True)
class PredictedPicture:
    """The prediction for one image, without and with purification; the latter is None if nothing was purified."""

    file: str
    bare: ClassPrediction
    purified: ClassPrediction | None = None
    eps: float | None = None
    loss_before: float | None = None
    loss_after: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        content: dict[str, Any] = {"file": self.file, **self.bare.as_json()}
        if self.purified is not None:
            losses = {"eps": self.eps, "loss_before": self.loss_before, "loss_after": self.loss_after}
            content["purified"] = {**self.purified.as_json(), **losses}
        return content


@dataclass(frozen=True, kw_only=True)
class AttackedPicture:
    """One attacked image as written: its true class and where that came from, predictions, and size of the change."""

    file: str
    output: Path
    label: int
    label_name: str
    label_source: str
    before: ClassPrediction
    after: ClassPrediction
    linf: float
    l2: float

    @property
    def fooled(self) -> bool:
        """Whether the attacked image is misclassified."""
        return self.after.label != self.label

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "file": self.file,
            "output": self.output,
            "label": self.label,
            "label_from": self.label_source,
            "before": self.before.as_json(),
            "after": self.after.as_json(),
            "fooled": self.fooled,
            "linf": self.linf,
            "l2": self.l2,
        }


@dataclass(frozen=True, kw_only=True)
class PurifiedPicture:
    """One purified image as written: predictions (None without a classifier), radius, and losses before and after."""

    file: str
    output: Path
    before: ClassPrediction | None
    after: ClassPrediction | None
    eps: float
    loss_before: float
    loss_after: float

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        predictions = {"before": self.before, "after": self.after}
        return {
            "file": self.file,
            "output": self.output,
            **{key: value.as_json() for key, value in predictions.items() if value is not None},
            "eps": self.eps,
            "loss_before": self.loss_before,
            "loss_after": self.loss_after,
        }


Picture = TypeVar("Picture", PredictedPicture, AttackedPicture, PurifiedPicture)


@dataclass(frozen=True, kw_only=True)
class PictureReport(Generic[Picture]):
    """The results for all images; `method` is the attack or purifier, `comparison` the side-by-side image."""

    model: str
    method: str | None
    images: list[Picture]
    comparison: Path | None = None


@dataclass(frozen=True, kw_only=True)
class _NamedClassifier:
    """A model with its recipe and class names."""

    model: JointModel
    recipe: Recipe
    classes: list[str]

    @classmethod
    def load(cls, name: str, device: torch.device | str) -> "_NamedClassifier":
        model, recipe = zoo.load(name, device=device), zoo.recipe(name)
        return cls(model=model, recipe=recipe, classes=class_names(recipe, model.classes))

    def predict(self, x: Float[Tensor, "n *shape"], batch: int) -> list[ClassPrediction]:
        found = []
        for part in torch.split(x, batch):
            with isolated(self.model), torch.no_grad():
                confidences, labels = self.model(part).softmax(1).max(1)
            pairs = zip(labels.tolist(), confidences.tolist(), strict=True)
            found += [
                ClassPrediction(label=label, name=self.classes[label], confidence=share) for label, share in pairs
            ]
        return found


def predict_pictures(
    model: str,
    files: Sequence[Path],
    *,
    purify: bool | None = None,
    resize: bool = False,
    device: torch.device | str = "cpu",
    batch: int = 500,
    watch: Watch = _ignore,
) -> PictureReport[PredictedPicture]:
    """Classify pictures without and with min-aux purification.

    purify: None purifies if the model has an auxiliary task.
    """
    classifier = _NamedClassifier.load(model, device)
    purifier = SOAP(classifier.model) if (classifier.model.purifiable if purify is None else purify) else None
    found = read_files(files, classifier.model, resize=resize)
    names, x = [name for file in found for name in file.names], torch.cat([file.x for file in found])
    bare = classifier.predict(x, batch)
    images = [PredictedPicture(file=name, bare=one) for name, one in zip(names, bare, strict=True)]
    if purifier is not None:
        done = purify_in_batches(purifier, x, batch, watch)
        after = classifier.predict(done.x, batch)
        columns = (done.eps.tolist(), done.loss_before.tolist(), done.loss_after.tolist())
        images = [
            PredictedPicture(file=name, bare=one, purified=two, eps=eps, loss_before=first, loss_after=last)
            for name, one, two, eps, first, last in zip(names, bare, after, *columns, strict=True)
        ]
    return PictureReport(model=classifier.model.name, method=repr(purifier) if purifier else None, images=images)


def attack_pictures(
    model: str,
    files: Sequence[Path],
    out: Path,
    *,
    attack: str = "pgd",
    settings: Mapping[str, float] | None = None,
    label: int | None = None,
    resize: bool = False,
    force: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch: int = 500,
    watch: Watch = _ignore,
) -> PictureReport[AttackedPicture]:
    """Attack pictures and write the adversarial ones below `out`; predictions are those of the files as written.

    label: the true class of all pictures; None takes the file's label, else the model's prediction. Image files are
    rounded to 8 bits: towards the input, so that they stay in the attack's ball, and away from it for minimal attacks.
    """
    classifier = _NamedClassifier.load(model, device)
    paper = PAPER[paper_data_set(classifier.recipe.data, classifier.recipe, classifier.model)]
    method = attacks_by_name(paper, [attack], seed=seed, settings=settings)[attack]
    found = read_files(files, classifier.model, classes=classifier.classes, resize=resize)
    check_outputs(found, out, force=force)
    x = torch.cat([file.x for file in found])
    before = classifier.predict(x, batch)
    labels, sources = _true_labels(classifier.model.classes, found, before, label)
    y = torch.tensor(labels, device=x.device)
    parts: list[Tensor] = []
    for part, classes in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
        parts.append(method(classifier.model, part, classes))
        watch(attack, sum(map(len, parts)), len(x))
    written = as_written(found, torch.cat(parts), away=isinstance(method, MinimalL2))
    after = classifier.predict(written, batch)
    captions = [(f"input: {one}", f"attacked: {two}") for one, two in zip(before, after, strict=True)]
    outputs = _write(found, written, out, captions, labels=y)
    delta = written - x
    linf, l2 = delta.flatten(1).abs().amax(1).tolist(), row_norms(delta).tolist()
    images = [
        AttackedPicture(
            file=name,
            output=target,
            label=labels[k],
            label_name=classifier.classes[labels[k]],
            label_source=sources[k],
            before=before[k],
            after=after[k],
            linf=linf[k],
            l2=l2[k],
        )
        for k, (name, target) in enumerate(outputs)
    ]
    return PictureReport(
        model=classifier.model.name, method=repr(method), images=images, comparison=out / COMPARISON_NAME
    )


def purify_pictures(
    model: str,
    files: Sequence[Path],
    out: Path,
    *,
    eps: float | str = "min-aux",
    step_size: float | None = None,
    steps: int | None = None,
    resize: bool = False,
    force: bool = False,
    device: torch.device | str = "cpu",
    batch: int = 500,
    watch: Watch = _ignore,
) -> PictureReport[PurifiedPicture]:
    """Purify pictures with `SOAP` and write them below `out`; predictions and losses are those of the written files."""
    if eps == "oracle":
        raise InputError("eps 'oracle' needs the true labels: it is a bound, not a defence; see `soap evaluate`.")
    classifier = _NamedClassifier.load(model, device)
    purifier = SOAP(classifier.model, eps, step_size=step_size, steps=steps)
    found = read_files(files, classifier.model, resize=resize)
    check_outputs(found, out, force=force)
    x = torch.cat([file.x for file in found])
    done = purify_in_batches(purifier, x, batch, watch)
    written = as_written(found, done.x)
    network = classifier.model
    with isolated(network), torch.no_grad():
        losses = torch.cat([network.auxiliary.loss(network, part) for part in torch.split(written, batch)])
    before, after = classifier.predict(x, batch), classifier.predict(written, batch)
    captions = [(f"input: {one}", f"purified: {two}") for one, two in zip(before, after, strict=True)]
    outputs = _write(found, written, out, captions)
    images = [
        PurifiedPicture(
            file=name,
            output=target,
            before=before[k],
            after=after[k],
            eps=done.eps[k].item(),
            loss_before=done.loss_before[k].item(),
            loss_after=losses[k].item(),
        )
        for k, (name, target) in enumerate(outputs)
    ]
    return PictureReport(model=network.name, method=repr(purifier), images=images, comparison=out / COMPARISON_NAME)


def purify_pictures_by_prior(
    name: str,
    files: Sequence[Path],
    out: Path,
    *,
    prior: str | None = None,
    settings: Mapping[str, Any] | None = None,
    resize: bool = False,
    force: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch: int = 500,
    watch: Watch = _ignore,
) -> PictureReport[PurifiedPicture]:
    """Purify pictures with a generative model (Defense-GAN, PixelDefend), without a classifier.

    The losses are those that the purifier reports.
    """
    if name in BY_CLASSIFIER:
        instead = (
            "omit --with and name a model" if name == SOAP_NAME else f"try `soap evaluate MODEL --purifier {name}`"
        )
        raise InputError(f"--with {name} needs a classifier; {instead}, or purify with {' or '.join(BY_PRIOR)}.")
    if str(files[0]) in zoo.names() and not files[0].exists():
        raise InputError(f"--with {name} uses no classifier, so {files[0]} is read as a file; remove it.")
    model, purifier = by_prior(name, settings or {}, prior=prior, device=device, seed=seed)
    found = read_files(files, cast(TakesImages, model), resize=resize)
    check_outputs(found, out, force=force)
    x = torch.cat([file.x for file in found])
    done = purify_in_batches(purifier, x, batch, watch)
    written = as_written(found, done.x)
    outputs = _write(found, written, out, [("input", "purified")] * len(x))
    columns = (done.eps.tolist(), done.loss_before.tolist(), done.loss_after.tolist())
    images = [
        PurifiedPicture(file=one, output=target, before=None, after=None, eps=eps, loss_before=first, loss_after=last)
        for (one, target), eps, first, last in zip(outputs, *columns, strict=True)
    ]
    return PictureReport(model=str(model.name), method=repr(purifier), images=images, comparison=out / COMPARISON_NAME)


def purify_in_batches(
    purifier: Callable[[Tensor], Purified], x: Float[Tensor, "n *shape"], batch: int, watch: Watch = _ignore
) -> Purified:
    """All images purified, `batch` of them at a time."""
    parts: list[Purified] = []
    for part in torch.split(x, batch):
        parts.append(purifier(part))
        watch("purifying", sum(len(done.x) for done in parts), len(x))
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Purified)}
    return Purified(**{name: torch.cat(column) for name, column in columns.items()})


def _true_labels(
    classes: int, files: Sequence[PictureFile], predictions: Sequence[ClassPrediction], label: int | None
) -> tuple[list[int], list[str]]:
    """The true class of each image, and where it came from."""
    if label is not None:
        if not 0 <= label < classes:
            raise InputError(f"label is {label}, expected a class from 0 to {classes - 1}.")
        return [label] * len(predictions), ["--label"] * len(predictions)
    labels, sources = [one.label for one in predictions], ["the model"] * len(predictions)
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
) -> list[tuple[str, Path]]:
    """Write the changed images and the side-by-side image; the name and the written file of each image."""
    targets = write_files(files, written, out, labels=labels)
    draw_comparison(out / COMPARISON_NAME, torch.cat([file.x for file in files]), written, captions)
    return [(name, target) for file, target in zip(files, targets, strict=True) for name in file.names]
