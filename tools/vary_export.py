"""Purify the same attacked images in ways that should not matter, and count how many labels come out as torch's.

    soap export cifar10-resnet18-lc --out onnx/cifar10-resnet18-lc
    python tools/vary_export.py cifar10-resnet18-lc onnx/cifar10-resnet18-lc

The rows go to results/attempts/export-agreement.jsonl and from there to docs/export.md: what bounds the agreement of an
exported purifier with torch, and what was tried to raise it.
"""

import argparse
import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor

from soap import data, recipes, zoo
from soap._runtime import devices
from soap.auxiliary import JointModel
from soap.bench.comparison import same_pixels
from soap.evaluation import PAPER
from soap.evaluation.provenance import commit
from soap.purifiers import SOAP

ROWS = Path(__file__).resolve().parents[1] / "results" / "attempts" / "export-agreement.jsonl"
BATCH = 32
LEVELS = {
    "the file": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "the file, onnxruntime's basic optimisations": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "the file, onnxruntime's optimisations off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}

Run = Callable[[Tensor], Tensor]
"""Purified images of images."""


def ways(name: str, file: Path) -> Iterator[tuple[str, Run]]:
    """Each way by its name: torch and the file, as they are and otherwise."""
    plain, compiled, exact = (zoo.load(name) for _ in range(3))
    yield "torch, 7 images at a time", lambda x: _by_torch(plain, x, 7)
    yield "torch without oneDNN", lambda x: _without_onednn(plain, x)
    compiled.encoder.compile()
    yield "torch, compiled", lambda x: _by_torch(compiled, x, BATCH)
    exact.double()
    yield "torch in double precision", lambda x: _by_torch(exact, x.double(), BATCH).float()
    for words, level in LEVELS.items():
        yield words, lambda x, level=level: _by_file(file, x, level)  # type: ignore[misc]


def _by_torch(model: JointModel, x: Tensor, batch: int) -> Tensor:
    purify = SOAP(model)
    return torch.cat([purify(part).x for part in torch.split(x, batch)])


def _without_onednn(model: JointModel, x: Tensor) -> Tensor:
    with torch.backends.mkldnn.flags(enabled=False):
        return _by_torch(model, x, BATCH)


def _by_file(file: Path, x: Tensor, level: Any) -> Tensor:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.graph_optimization_level = torch.get_num_threads(), level
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return torch.cat([torch.from_numpy(session.run(None, {"x": part.numpy()})[0]) for part in torch.split(x, BATCH)])


def measured(name: str, folder: Path, images: data.Dataset) -> Iterator[dict[str, Any]]:
    """A row for every way; all images are classified alike, by torch."""
    model, attack = zoo.load(name), PAPER[images.name]["pgd"]
    x = attack(model, images.x, images.y)
    wanted = _by_torch(model, x, BATCH)
    with torch.no_grad():
        labels = model(wanted).argmax(1)
        for words, run in ways(name, folder / "whole.onnx"):
            with torch.enable_grad():
                got = run(x)
            yield {
                "model": name,
                "way": words,
                "images": f"0..{len(x) - 1} of {images.split}",
                "labels": round(float((model(got).argmax(1) == labels).double().mean()), 5),
                "pixels": round(same_pixels(wanted, got), 6),
                "attack": repr(attack),
                "commit": commit(),
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "device": devices.describe_device(x.device),
                "torch": str(torch.__version__),
                "onnxruntime": onnxruntime.__version__,
            }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="How far an exported purifier agrees with torch.")
    parser.add_argument("model", help="a bundled model with a purifier")
    parser.add_argument("folder", type=Path, help="what `soap export` wrote for it, with the part whole")
    parser.add_argument("--limit", type=int, default=1000, help="the first so many test images")
    parser.add_argument("--data-root", type=Path, help="where data sets lie")
    parser.add_argument("--results", type=Path, default=ROWS, help="where the rows go")
    given = parser.parse_args()
    pictures = data.load(recipes.read(given.model).data, "test", root=given.data_root).take(given.limit)
    for row in measured(given.model, given.folder, pictures):
        with given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")
        print(f"{row['model']}, {row['way']}: {100 * row['labels']:.1f} % of the labels", flush=True)
