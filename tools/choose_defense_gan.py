"""Choose the steps of Defense-GAN on training images; the rows go to results/defense-gan-steps.jsonl and to the docs.

    python tools/choose_defense_gan.py defense-gan-mnist
    python tools/choose_defense_gan.py runs/NAME/last.safetensors

Of every setting: the share right of the bare MNIST classifiers, clean and under the paper's attacks on them. The last
line names the setting whose worst column falls least short of the paper's figures.
"""

import argparse
import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from soap import data, zoo
from soap._runtime import devices
from soap.evaluation import PAPER
from soap.evaluation.provenance import commit, fingerprint
from soap.purifiers import DefenseGAN

ROWS = Path(__file__).resolve().parents[1] / "results" / "defense-gan-steps.jsonl"
WANTED = {"fcn none": 95, "fcn fgsm": 79, "fcn pgd": 84, "cnn none": 95, "cnn fgsm": 90, "cnn pgd": 91}
"""Per cent right in Table 1 of SOAP's authors, rounded down."""

GRID: list[dict[str, Any]] = [
    {"steps": steps, "starts": starts, "step_size": size}
    for starts in (10, 20, 40)
    for size in (3.0, 10.0, 30.0)
    for steps in (25, 50, 100, 200)
    if starts == 10 or (size > 3 and starts * steps <= 2000)  # the passes of the authors' 200 steps from 10
]


def attacked(images: data.Dataset, device: torch.device) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Names as in `WANTED`, the bare classifier of each, and the images as it is shown them."""
    x, y = images.x.to(device), images.y.to(device)
    for network in ("fcn", "cnn"):
        model = zoo.load(f"mnist-{network}-no-def", device=device)
        for attack in ("none", "fgsm", "pgd"):
            yield f"{network} {attack}", model, PAPER["mnist"][attack](model, x, y)


def short(row: Mapping[str, Any]) -> float:
    """By how many points the worst column misses what is wanted; negative where all are reached."""
    return max(float(wanted - row["found"][name]) for name, wanted in WANTED.items())


def measured(prior: str, images: data.Dataset, device: torch.device) -> Iterator[dict[str, Any]]:
    """A row for every setting of the grid."""
    recipe, generator = zoo.prior_recipe(prior), zoo.load_prior(prior, device=device)
    shown, y = [*attacked(images, device)], images.y.to(device)
    for settings in GRID:
        purify, found = DefenseGAN(generator, momentum=recipe.purifier["momentum"], **settings), {}
        for name, model, x in shown:
            with torch.no_grad():
                right = model(purify(x).x).argmax(1) == y
            found[name] = round(100 * float(right.float().mean()), 2)
        yield {
            "prior": recipe.name,
            "latent": recipe.model["latent"],
            "settings": settings,
            "found": found,
            "images": f"0..{len(y) - 1} of {images.split}",
            "data_sha256": images.sha256,
            "weights_sha256": fingerprint(generator),
            "commit": commit(),
            "device": devices.describe_device(device),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "torch": str(torch.__version__),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Choose the steps of Defense-GAN on training images.")
    parser.add_argument("prior", help="the name of a bundled generator, or its .safetensors file")
    parser.add_argument("--limit", type=int, default=1000, help="the first so many training images")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--data-root", type=Path, help="where data sets lie")
    parser.add_argument("--results", type=Path, default=ROWS, help="where the rows go")
    given = parser.parse_args()
    pictures, rows = data.load("mnist", "train", root=given.data_root).take(given.limit), []
    for row in measured(given.prior, pictures, devices.pick_device(given.device)):
        rows.append(row)
        with given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")
        print(row["settings"], row["found"], f"{short(row):+.1f} points short", flush=True)
    print("best:", min(rows, key=short)["settings"])
