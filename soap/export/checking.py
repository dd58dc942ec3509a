"""Exported files against torch, on attacked images: whether they say the same, and how long each takes.

A sign step turns a last-bit difference of a gradient near zero into a pixel that moved the other way, so pixels are
counted, and labels decide. Where too few agree, both are held against torch in double precision, which tells rounding
from a wrong graph: of rounding, torch in single precision has its own share.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from soap._runtime.isolation import isolated
from soap.auxiliary import JointModel
from soap.bench.agreement import same_pixels
from soap.errors import FileError, InputError
from soap.evaluation import fingerprint
from soap.export.opening import MANIFEST, Opened, opened
from soap.purifiers import SOAP
from soap.shapes import Float, Tensor

ENOUGH = 0.999
"""The share of images on which a file must agree with torch."""

ALIKE = 1e-4
"""Losses this close (relative) agree."""

Outputs = tuple[Tensor, ...]
Run = Callable[[Tensor, Tensor], Outputs]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How a part compares with torch.

    agree: share of images with the same label (the loss: the same loss). pixels: share of equal pixels, None where
    none come out. Seconds are those of all images, measured in turns batch by batch.
    double_torch, double_onnx: on what share torch and the file agree with torch in double precision; None where the
    file agrees with torch on enough images.
    """

    part: str
    images: int
    agree: float
    pixels: float | None
    seconds_torch: float
    seconds_onnx: float
    double_torch: float | None = None
    double_onnx: float | None = None

    @property
    def ratio(self) -> float:
        """How many times as long torch takes."""
        return self.seconds_torch / self.seconds_onnx

    @property
    def holds(self) -> bool:
        """Whether they agree on enough images."""
        return self.agree >= ENOUGH


def check(
    model: JointModel,
    folder: Path,
    x: Float[Tensor, "n *shape"],
    *,
    purifier: SOAP | None = None,
    batch: int = 32,
    watch: Callable[[str, float, float | None], None] = lambda what, done, total: None,
) -> list[Agreement]:
    """Run every part in `folder` and its like in torch on `x`, `batch` images at a time.

    `purifier` has the settings of the whole; as many steps are taken, each image at a radius of its grid, in turn.
    """
    files = opened(folder)
    if files.manifest["weights_sha256"] != fingerprint(model):
        raise FileError(f"{folder / MANIFEST} is of other weights than those of {model.name}; export again.")
    if purifier is None and set(files.sessions) != {"classifier"}:
        raise InputError(f"{folder} holds parts of a purifier; give the purifier that they are to agree with.")
    if purifier is not None and files.manifest["settings"]["label"] != repr(purifier):
        raise InputError(f"{folder} was exported with {files.manifest['settings']['label']}, not with {purifier!r}.")
    with isolated(model), torch.no_grad():
        grid = (0.0,) if purifier is None else purifier.grid
        eps = x.new_tensor(grid).repeat(-(-len(x) // len(grid)))[: len(x)]
        return [_compared(name, model, files, purifier, x, eps, batch=batch, watch=watch) for name in files.sessions]


def _by_torch(name: str, model: JointModel, purifier: SOAP | None) -> Run:
    """A part by torch; what matters comes first in the outputs: logits, losses or images."""
    if name == "classifier":
        return lambda x, eps: (model(x),)
    if purifier is None or name == "loss":
        return lambda x, eps: (model.auxiliary.loss(model, x),)
    if name == "step":
        return lambda x, eps: (purifier.trajectory(x, eps)[-1],)

    def purified(x: Tensor, eps: Tensor) -> Outputs:
        images = purifier(x).x
        return images, model(images)

    return purified


def _by_file(name: str, files: Opened, purifier: SOAP | None) -> Run:
    """The same part by onnxruntime."""

    def run(*inputs: Tensor) -> Outputs:
        return tuple(torch.from_numpy(np.asarray(out)) for out in files.run(name, *(x.numpy() for x in inputs)))

    if name != "step" or purifier is None:
        return lambda x, eps: run(x)[:2]

    def steps(x: Tensor, eps: Tensor) -> Outputs:
        point = x
        for _ in range(purifier.steps):
            (point,) = run(point, x, torch.tensor(purifier.step_size), eps)
        return (point,)

    return steps


def _compared(
    name: str,
    model: JointModel,
    files: Opened,
    purifier: SOAP | None,
    x: Tensor,
    eps: Tensor,
    *,
    batch: int,
    watch: Callable[[str, float, float | None], None],
) -> Agreement:
    """Both on every batch in turns, after one batch to warm up; then in double precision, if that must be known."""
    runs = (_by_torch(name, model, purifier), _by_file(name, files, purifier))
    for run in runs:
        run(x[:batch], eps[:batch])
    seconds = [0.0, 0.0]
    said: list[list[Tensor]] = [[], []]
    pixels = []
    for start in range(0, len(x), batch):
        rows = slice(start, start + batch)
        outputs = []
        for which, run in enumerate(runs):
            began = time.perf_counter()
            outputs.append(run(x[rows], eps[rows]))
            seconds[which] += time.perf_counter() - began
            said[which].append(_said(name, model, outputs[-1]))
        if name in ("step", "whole"):
            pixels.append(same_pixels(outputs[0][0], outputs[1][0]) * len(outputs[0][0]))
        watch(f"checking {name}", min(start + batch, len(x)), len(x))
    by_torch, by_file = map(torch.cat, said)
    found = Agreement(
        part=name,
        images=len(x),
        agree=_alike(name, by_torch, by_file),
        pixels=sum(pixels) / len(x) if pixels else None,
        seconds_torch=seconds[0],
        seconds_onnx=seconds[1],
    )
    if found.holds:
        return found
    exact = _in_double(name, model, purifier, x, eps, batch=batch, watch=watch)
    return replace(found, double_torch=_alike(name, exact, by_torch), double_onnx=_alike(name, exact, by_file))


def _in_double(
    name: str,
    model: JointModel,
    purifier: SOAP | None,
    x: Tensor,
    eps: Tensor,
    *,
    batch: int,
    watch: Callable[[str, float, float | None], None],
) -> Tensor:
    """What torch says in double precision."""
    model = copy.deepcopy(model).double()
    if purifier is not None:
        settings = {key: getattr(purifier, key) for key in ("eps", "step_size", "steps", "grid", "bounds")}
        purifier = SOAP(model, **settings)
    run = _by_torch(name, model, purifier)
    said = []
    for start in range(0, len(x), batch):
        rows = slice(start, start + batch)
        said.append(_said(name, model, run(x[rows].double(), eps[rows].double())))
        watch(f"checking {name} in double precision", min(start + batch, len(x)), len(x))
    return torch.cat(said)


def _said(name: str, model: JointModel, outputs: Outputs) -> Tensor:
    """What decides: the loss, or the label, of every image."""
    if name == "loss":
        return outputs[0]
    return (model(outputs[0]) if name == "step" else outputs[-1]).argmax(1)


def _alike(name: str, wanted: Tensor, got: Tensor) -> float:
    """The share of images on which two agree."""
    same = (got - wanted).abs() <= ALIKE * wanted.abs() if name == "loss" else got == wanted
    return float(same.double().mean())
