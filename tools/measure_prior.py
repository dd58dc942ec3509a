"""Measure a trained generative model; the row goes to results/priors.jsonl and from there to docs/purifiers.md.

    python tools/measure_prior.py runs/NAME/last.safetensors runs/NAME/metrics.jsonl --trained-on "NVIDIA H200"

The bits per dimension are those of test images, of models that have a likelihood. What the training took is read from
its history.
"""

import argparse
import datetime
import json
import math
from pathlib import Path
from typing import Any

import torch

from soap import data, zoo
from soap._runtime import devices
from soap.evaluation.provenance import commit, fingerprint
from soap.models.pixelcnn import PixelCNN

ROWS = Path(__file__).resolve().parents[1] / "results" / "priors.jsonl"


def measured(
    weights: Path, history: Path, *, trained_on: str, limit: int | None, device: torch.device, root: Path | None
) -> dict[str, Any]:
    """The row of one model. trained_on: the machine of the training. limit: the first so many test images."""
    recipe, model = zoo.prior_recipe(weights), zoo.load_prior(weights, device=device)
    epochs = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    trained = data.load(recipe.data, "train", root=root)
    row: dict[str, Any] = {
        "prior": recipe.name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "bytes": weights.stat().st_size,
        "epochs": len(epochs),
        # The speed of the last epoch's line is the mean over the whole run.
        "training_seconds": round(len(epochs) * len(trained) / epochs[-1]["images_per_second"], 1),
        "trained_on": trained_on,
        "weights_sha256": fingerprint(model),
        "commit": commit(),
        "device": devices.describe_device(device),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "torch": str(torch.__version__),
    }
    if isinstance(model, PixelCNN):
        images = data.load(recipe.data, "test", root=root).take(limit)
        with torch.no_grad():
            bits = torch.cat([model.bits_per_dim(part.to(device)).cpu() for part in torch.split(images.x, 100)])
        error = float(bits.std()) / math.sqrt(len(bits))
        row |= {"bits_per_dim": float(bits.mean()), "standard_error": error, "images": f"0..{len(bits) - 1} of test"}
        row |= {"data_sha256": images.sha256}
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure a trained generative model.")
    parser.add_argument("weights", type=Path, help="its .safetensors file")
    parser.add_argument("history", type=Path, help="metrics.jsonl of its training")
    parser.add_argument("--trained-on", required=True, help="the machine of the training, for the page")
    parser.add_argument("--limit", type=int, help="the first so many test images only")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--data-root", type=Path, help="where data sets lie")
    given = parser.parse_args()
    chosen = devices.pick_device(given.device)
    options = {"trained_on": given.trained_on, "limit": given.limit, "device": chosen, "root": given.data_root}
    row = measured(given.weights, given.history, **options)
    with ROWS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")
    print(json.dumps(row, indent=2, sort_keys=True))
