"""Compare exported files with torch on attacked images: agreement and time.

A sign step turns a last-bit difference of a gradient near zero into a pixel that moves the other way. So equal pixels
are only counted, and equal labels decide. If too few labels agree, both are compared with torch in double precision,
which distinguishes rounding from a wrong graph: torch in single precision differs by rounding as well.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from soap._runtime.isolation import isolated
from soap.auxiliary import JointModel
from soap.bench.batches import same_pixels
from soap.bench.results import append, provenance
from soap.data import Dataset
from soap.errors import FileError, InputError
from soap.evaluation import fingerprint
from soap.onnx_export.onnx_files import (
    MANIFEST,
    MANIFEST_SCHEMA,
    ExportedFiles,
    OnnxModel,
    import_onnx_modules,
    open_onnx,
)
from soap.purifiers import SOAP
from soap.recipes.trained_model import TrainedModel
from soap.shapes import Float, Tensor

MIN_AGREEMENT = 0.999
"""Share of images on which a file must agree with torch."""

ATTACK_BATCH = 250
"""Images attacked at a time."""

LOSS_TOLERANCE = 1e-4
"""Losses this close (relative) agree."""

Outputs = tuple[Tensor, ...]
Run = Callable[[Tensor, Tensor], Outputs]
Watch = Callable[[str, float, float | None], None]


@dataclass(frozen=True, kw_only=True)
class PartAgreement:
    """Agreement of one part with torch.

    agree: share of images with the same label (for the part loss: the same loss). pixels: share of equal pixels, None
    for a part without image output. Seconds are for all images, measured alternately batch by batch. double_torch,
    double_onnx: share of images on which torch and the file agree with torch in double precision; None if the file
    agrees with torch on enough images.
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
        """The time of torch divided by that of onnxruntime."""
        return self.seconds_torch / self.seconds_onnx

    @property
    def holds(self) -> bool:
        """Whether the part agrees with torch on enough images."""
        return self.agree >= MIN_AGREEMENT

    def as_json(self) -> dict[str, Any]:
        """The JSON form, without the name of the part and the number of images."""
        found = {**asdict(self), "ratio": self.ratio}
        return {name: value for name, value in found.items() if name not in ("part", "images")}


def check_export(
    model: JointModel,
    folder: Path,
    x: Float[Tensor, "n *shape"],
    *,
    purifier: SOAP | None = None,
    batch_size: int = 32,
    watch: Watch = lambda what, done, total: None,
) -> list[PartAgreement]:
    """Run each part in `folder` and the same computation in torch on `x`, `batch_size` images at a time.

    `purifier` has the settings of the whole. The part step runs as many steps; the images cycle through the radii of
    its grid.
    """
    files = open_onnx(folder)
    if files.manifest["weights_sha256"] != fingerprint(model):
        raise FileError(
            f"{folder / MANIFEST} was exported from other weights than those of {model.name}; export again."
        )
    if purifier is None and set(files.sessions) != {"classifier"}:
        raise InputError(f"{folder} contains parts of a purifier; pass the purifier to compare them with.")
    if purifier is not None and files.manifest["settings"]["label"] != repr(purifier):
        raise InputError(f"{folder} was exported with {files.manifest['settings']['label']}, not with {purifier!r}.")
    with isolated(model), torch.no_grad():
        grid = (0.0,) if purifier is None else purifier.grid
        eps = x.new_tensor(grid).repeat(-(-len(x) // len(grid)))[: len(x)]
        comparison = _Comparison(
            model=model, files=files, purifier=purifier, x=x, eps=eps, batch_size=batch_size, watch=watch
        )
        return [comparison.compare(name) for name in files.sessions]


@dataclass(frozen=True, kw_only=True)
class ExportCheck:
    """Agreement of all parts with torch on the attacked images of a data set."""

    data: str
    data_sha256: str
    images: int
    attack: str
    batch_size: int
    parts: list[PartAgreement]

    @property
    def holds(self) -> bool:
        """Whether every part agrees with torch on enough images."""
        return all(one.holds for one in self.parts)

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        parts = {one.part: one.as_json() for one in self.parts}
        return {**asdict(self), "holds": self.holds, "parts": parts}

    def append_to(self, path: Path, **described: Any) -> None:
        """Append a row to a JSONL file: what was exported, this check, and version, machine, time and command."""
        origin = {**provenance(torch.device("cpu")), "onnxruntime": import_onnx_modules("onnxruntime")[0].__version__}
        append(path, {"schema": MANIFEST_SCHEMA, **described, **self.as_json(), "provenance": origin})


def check_attacked_images(
    trained: TrainedModel,
    made: ExportedFiles,
    images: Dataset,
    *,
    seed: int = 0,
    batch_size: int = 32,
    watch: Watch = lambda what, done, total: None,
) -> ExportCheck:
    """Attack the bare classifier by the paper's PGD and compare the files with torch on the attacked images."""
    attack = trained.attacks(["pgd"], data_name=images.name, seed=seed)["pgd"]
    attacked: list[Tensor] = []
    for x, y in zip(*(torch.split(each, ATTACK_BATCH) for each in (images.x, images.y)), strict=True):
        attacked.append(attack(trained.model, x, y))
        watch("attacking", sum(map(len, attacked)), len(images))
    x = torch.cat(attacked)
    return ExportCheck(
        data=images.name,
        data_sha256=images.sha256,
        images=len(images),
        attack=repr(attack),
        batch_size=batch_size,
        parts=check_export(trained.model, made.folder, x, purifier=made.purifier, batch_size=batch_size, watch=watch),
    )


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The parts of one folder and torch, on the same images `x` with the radii `eps` for the part step."""

    model: JointModel
    files: OnnxModel
    purifier: SOAP | None
    x: Tensor
    eps: Tensor
    batch_size: int
    watch: Watch

    def compare(self, name: str) -> PartAgreement:
        """Run both alternately on each batch, after one batch to warm up; in double precision too if they disagree."""
        runs = (_torch_run(name, self.model, self.purifier), self._onnx_run(name))
        for run in runs:
            run(self.x[: self.batch_size], self.eps[: self.batch_size])
        outputs, seconds, pixels = self._run_batches(name, runs, self.model, f"checking {name}")
        found = PartAgreement(
            part=name,
            images=len(self.x),
            agree=_share_equal(name, *outputs),
            pixels=pixels if name in ("step", "whole") else None,
            seconds_torch=seconds[0],
            seconds_onnx=seconds[1],
        )
        if found.holds:
            return found
        model, purifier = copy.deepcopy(self.model).double(), None
        if self.purifier is not None:
            settings = {key: getattr(self.purifier, key) for key in ("eps", "step_size", "steps", "grid", "bounds")}
            purifier = SOAP(model, **settings)
        double = replace(self, x=self.x.double(), eps=self.eps.double())
        what = f"checking {name} in double precision"
        (exact,), _, _ = double._run_batches(name, [_torch_run(name, model, purifier)], model, what)
        single, file = (_share_equal(name, exact, output) for output in outputs)
        return replace(found, double_torch=single, double_onnx=file)

    def _run_batches(
        self, name: str, runs: Sequence[Run], model: JointModel, what: str
    ) -> tuple[list[Tensor], list[float], float]:
        """Losses or labels of each run, its seconds, and the share of pixels equal in the first and the last run."""
        decisive: list[list[Tensor]] = [[] for _ in runs]
        seconds, pixels = [0.0] * len(runs), 0.0
        for x, eps in zip(*(torch.split(each, self.batch_size) for each in (self.x, self.eps)), strict=True):
            outputs = []
            for which, run in enumerate(runs):
                began = time.perf_counter()
                outputs.append(run(x, eps))
                seconds[which] += time.perf_counter() - began
                decisive[which].append(_decisive_output(name, model, outputs[-1]))
            pixels += same_pixels(outputs[0][0], outputs[-1][0]) * len(x) / len(self.x)
            self.watch(what, sum(map(len, decisive[0])), len(self.x))
        return [torch.cat(each) for each in decisive], seconds, pixels

    def _onnx_run(self, name: str) -> Run:
        """A part run by onnxruntime; the part step runs all steps of the purifier."""

        def run(*inputs: Tensor) -> Outputs:
            outputs = self.files.run(name, *(x.numpy() for x in inputs))
            return tuple(torch.from_numpy(np.asarray(out)) for out in outputs)

        purifier = self.purifier
        if name != "step" or purifier is None:
            return lambda x, eps: run(x)[:2]

        def steps(x: Tensor, eps: Tensor) -> Outputs:
            point = x
            for _ in range(purifier.steps):
                (point,) = run(point, x, torch.tensor(purifier.step_size), eps)
            return (point,)

        return steps


def _torch_run(name: str, model: JointModel, purifier: SOAP | None) -> Run:
    """The torch computation of a part; the first output is logits, losses or images."""
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


def _decisive_output(name: str, model: JointModel, outputs: Outputs) -> Tensor:
    """The loss or the label of each image."""
    if name == "loss":
        return outputs[0]
    return (model(outputs[0]) if name == "step" else outputs[-1]).argmax(1)


def _share_equal(name: str, expected: Tensor, got: Tensor) -> float:
    """The share of images on which two outputs agree."""
    same = (got - expected).abs() <= LOSS_TOLERANCE * expected.abs() if name == "loss" else got == expected
    return float(same.double().mean())
