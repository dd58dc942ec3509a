"""Measure how far answers depend on how many images are asked for at once, by what small batches are padded to.

    python tools/measure_padding.py

Attacked test images, which lie at the brink, are purified and classified in one batch and in smaller ones, cuDNN being
deterministic as in a run of the suite. A row for every purifier and every padding: how many images get the same logits
to the bit, how many another label, and what small batches cost. Only on a GPU does it say anything. Defense-GAN is not
padded, since it computes every image by itself: one row.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from soap import Defence, data, zoo
from soap._runtime import cuda_graphs, devices
from soap.bench.row import provenance
from soap.bench.timing import seconds_of
from soap.evaluation import PAPER
from soap.evaluation.provenance import fingerprint
from soap.recipes import purifiers
from soap.recipes.purifiers import SOAP_NAME

RESULTS = Path(__file__).resolve().parents[1] / "results" / "padding.jsonl"
PADDED = (1, 16, 32, 64, 128)
NEVER = (None,)
CASES: tuple[tuple[str, str, dict[str, str], tuple[int | None, ...]], ...] = (
    ("cifar10-resnet18-lc", "soap", {}, PADDED),
    ("cifar10-resnet18-lc", "soap", {"gradient": "stop"}, PADDED),
    ("cifar10-resnet18-rp", "soap", {}, PADDED),
    ("cifar10-resnet18-lc", "hedge", {}, PADDED),
    ("cifar10-resnet18-pgd-at", "anti-adversary", {}, PADDED),
    ("mnist-cnn-dr", "soap", {}, PADDED),
    ("mnist-fcn-no-def", "defense-gan", {}, NEVER),
    ("mnist-cnn-no-def", "defense-gan", {}, NEVER),
)
PARTS = (1, 7, 32, 100)
CALLS, REPEATS = 37, 5
SHOWN = ("model", "purifier", "padded", "found", "milliseconds")


def measured(
    model: str,
    purifier: str,
    options: dict[str, str],
    paddings: tuple[int | None, ...],
    n: int,
    device: torch.device,
) -> list[dict[str, Any]]:
    """The rows of one case, of the first `n` test images."""
    network = zoo.load(model, device=device, **options)
    source = "mnist" if model.startswith("mnist") else "cifar10"
    images = data.load(source, "test").take(n)
    x = PAPER[source]["pgd"](network, images.x.to(device), images.y.to(device))
    settings = {"eps": "min-aux"} if purifier == SOAP_NAME else {}
    stated = provenance(device)
    stated["command"] = stated["command"].replace("soap", "python tools/measure_padding.py", 1)
    rows, before = [], cuda_graphs.MIN_ROWS_DETERMINISTIC
    try:
        for padded in paddings:
            cuda_graphs.MIN_ROWS_DETERMINISTIC = padded or before
            cuda_graphs.release_graphs(network)
            robust = Defence(network, purifiers.for_model(network, purifier, settings))
            with torch.no_grad(), devices.cudnn_deterministic():
                whole = robust(x)
                found = {size: _compared(robust, x[: CALLS * size], whole, size) for size in PARTS}
                cost = {size: _milliseconds(robust, x[:size], device) for size in PARTS}
            rows.append(
                {"model": model, "purifier": purifier, **options, "padded": padded, "images": n, "found": found}
                | {"milliseconds": cost, "weights_sha256": fingerprint(network), "data_sha256": images.sha256}
                | {"provenance": stated}
            )
    finally:
        cuda_graphs.MIN_ROWS_DETERMINISTIC = before
    return rows


def _compared(robust: Defence, x: Tensor, whole: Tensor, size: int) -> dict[str, int]:
    """Of the images asked for `size` at a time: how many, how many with the same logits, with another label."""
    parts = torch.cat([robust(part) for part in torch.split(x, size)])
    whole = whole[: len(x)]
    same, other = (parts == whole).all(1), parts.argmax(1) != whole.argmax(1)
    return {"images": len(x), "same": int(same.sum()), "other": int(other.sum())}


def _milliseconds(robust: Defence, x: Tensor, device: torch.device) -> float:
    """The fastest of several calls; the first ones load kernels and record."""
    return round(1000 * min(seconds_of(lambda: robust(x), device) for _ in range(REPEATS)), 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="the JSONL file that rows are added to")
    parser.add_argument("--images", type=int, default=256, help="the first so many test images")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--only", default="", help="cases whose model or purifier has this in its name")
    given = parser.parse_args()
    for model, purifier, options, paddings in CASES:
        if given.only in f"{model} {purifier}":
            for row in measured(model, purifier, options, paddings, given.images, devices.pick_device(given.device)):
                with given.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, sort_keys=True) + "\n")
                print({name: row[name] for name in SHOWN}, flush=True)
