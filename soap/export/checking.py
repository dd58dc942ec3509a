"""Exported files against torch, on attacked images: whether they say the same, and how long each takes.

A sign step turns a last-bit difference of a gradient near zero into a pixel that moved the other way, so pixels are
counted, and labels decide.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from soap.auxiliary import JointModel
from soap.bench.agreement import same_pixels
from soap.errors import FileError, InputError
from soap.evaluation import fingerprint
from soap.export.opening import MANIFEST, Opened, opened
from soap.isolation import untouched
from soap.purify import Purifier
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
    """

    part: str
    images: int
    agree: float
    pixels: float | None
    seconds_torch: float
    seconds_onnx: float

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
    purifier: Purifier | None = None,
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
    found = []
    with untouched(model), torch.no_grad():
        grid = (0.0,) if purifier is None else purifier.grid
        eps = x.new_tensor(grid).repeat(-(-len(x) // len(grid)))[: len(x)]
        for name in files.sessions:
            pair = _pair(name, model, files, purifier)
            found.append(_compared(name, model, x, eps, *pair, batch=batch, watch=watch))
    return found


def _pair(name: str, model: JointModel, files: Opened, purifier: Purifier | None) -> tuple[Run, Run]:
    """A part by torch and by onnxruntime; what matters comes first in the outputs: logits, losses or images."""

    def run(*inputs: Tensor) -> Outputs:
        return tuple(torch.from_numpy(np.asarray(out)) for out in files.run(name, *(x.numpy() for x in inputs)))

    if name == "classifier":
        return lambda x, eps: (model(x),), lambda x, eps: run(x)
    if purifier is None or name == "loss":
        return lambda x, eps: (model.auxiliary.loss(model, x),), lambda x, eps: run(x)
    own = purifier
    if name == "step":

        def steps(x: Tensor, eps: Tensor) -> Outputs:
            point = x
            for _ in range(own.steps):
                (point,) = run(point, x, torch.tensor(own.step_size), eps)
            return (point,)

        return lambda x, eps: (own.trajectory(x, eps)[-1],), steps

    def purified(x: Tensor, eps: Tensor) -> Outputs:
        images = own(x).x
        return images, model(images)

    return purified, lambda x, eps: run(x)[:2]


def _compared(
    name: str,
    model: JointModel,
    x: Tensor,
    eps: Tensor,
    torch_runs: Run,
    onnx_runs: Run,
    *,
    batch: int,
    watch: Callable[[str, float, float | None], None],
) -> Agreement:
    """Both on every batch in turns, after one batch to warm up."""
    for run in (torch_runs, onnx_runs):
        run(x[:batch], eps[:batch])
    seconds = [0.0, 0.0]
    agreed, pixels = [], []
    for start in range(0, len(x), batch):
        rows = slice(start, start + batch)
        outputs = []
        for which, run in enumerate((torch_runs, onnx_runs)):
            began = time.perf_counter()
            outputs.append(run(x[rows], eps[rows]))
            seconds[which] += time.perf_counter() - began
        one, two = outputs
        if name == "loss":
            agreed.append((one[0] - two[0]).abs() <= ALIKE * one[0].abs())
        else:
            labels = [(out[-1] if name != "step" else model(out[0])).argmax(1) for out in outputs]
            agreed.append(labels[0] == labels[1])
        if name in ("step", "whole"):
            pixels.append(same_pixels(one[0], two[0]) * len(one[0]))
        watch(f"checking {name}", min(start + batch, len(x)), len(x))
    return Agreement(
        part=name,
        images=len(x),
        agree=float(torch.cat(agreed).double().mean()),
        pixels=sum(pixels) / len(x) if pixels else None,
        seconds_torch=seconds[0],
        seconds_onnx=seconds[1],
    )
