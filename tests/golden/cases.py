"""The recorded cases: inputs, and functions that compute each case anew; the tests and `record.py` share them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import adapter
import numpy as np
import torch
from torch.nn import functional as F

HERE = Path(__file__).parent
N = 50
CANDIDATES = 1000
"""Digits among which those of the attacks are chosen."""
IMAGES = 6
"""Purified images that are kept whole; of all others, numbers are."""

GAN = {"short": (N, {"steps": 20, "starts": 4}), "full": (2, {})}
"""Defense-GAN: inputs and settings; with the recipe's own settings it takes half a second an image."""
GAN_MODELS = tuple(
    f"mnist-{net}-{method}" for net in ("cnn", "fcn") for method in ("dr", "fgsm-at", "no-def", "pgd-at")
)
"""Classifiers whose labels of its images are recorded."""
DENOISERS = ("autoencoder", "diffusion")
PIXEL_DEFEND = 8
"""Inputs of PixelDefend, which visits one pixel after another."""

EVALUATIONS = {
    "paper": ("mnist-cnn-dr", ()),
    "radii": ("mnist-cnn-dr", ("--attack", "pgd", *(f"--eps-pfy={one}" for one in ("oracle", "min-aux-batch", "0.2")))),
    "rivals": ("mnist-fcn-pgd-at", ("--attack", "fgsm", "--purifier", "hedge", "--purifier", "anti-adversary")),
    "minimal": ("mnist-fcn-dr", ("--attack", "df")),
}
SUITES = {
    "full": {"steps": 12, "queries": 100, "eps": 0.32},
    "quick": {"steps": 12, "queries": 100, "eps": 0.32},
}
EXPORTED = ("mnist-cnn-dr", 8)
EXPORTED_PURIFIER = "mnist-cnn-dr/soap"

EVERY_MODEL = ("fgsm", "pgd", "apgd ce")
"""Attacks that are recorded for every bundled model; all attacks are for those of `ATTACKED`."""
ATTACKED = ("mnist-fcn-dr", "mnist-cnn-dr", f"{adapter.RESNET}-lc")
ON_CNN, ON_RESNET = 16, 10
"""Inputs of an attack on a purifying CNN, and of an attack on a ResNet; all others have N."""
FEW = 4
"""Inputs of a slow attack on a ResNet."""
WHOLE_BATCH = ("pgd best", "pgd dlr l2 random")
"""Attacks whose random starts are drawn for the whole batch, so their results depend on its size."""

Arrays = dict[str, np.ndarray]


@cache
def recorded(name: str) -> Any:
    """A file of the golden data: the arrays of an .npz, by case, or the content of a .json."""
    path = HERE / name
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    cases: dict[str, Arrays] = {}
    with np.load(path) as archive:
        for key in archive.files:
            case, _, field = key.rpartition("/")
            cases.setdefault(case, {})[field] = archive[key]
    return cases


@cache
def synthetic(n: int = N) -> np.ndarray:
    """Smooth random colour images [n, 3, 32, 32] with a little noise, as bytes.

    Computed in double precision from uniform draws, so that rounding to bytes is the same on every machine.
    """
    generator = torch.Generator().manual_seed(2021)
    coarse = torch.rand(n, 3, 6, 6, generator=generator, dtype=torch.float64)
    noise = torch.rand(n, 3, 32, 32, generator=generator, dtype=torch.float64) - 0.5
    smooth = F.interpolate(coarse, size=32, mode="bilinear", align_corners=False)
    return ((smooth + 0.1 * noise).clamp(0, 1) * 255).round().byte().numpy()


def clean(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of the attacks and their labels: true ones for digits, the model's own for synthetic images.

    The digits are those of the smallest margins: where a network is sure, the cross-entropy's gradient is rounding.
    """
    if adapter.family(model) == "mnist":
        x, y = adapter.digits(CANDIDATES)
        chosen = recorded("inputs.npz")[model]["digits"]
        return x[chosen], y[chosen]
    return synthetic(), recorded("inputs.npz")[model]["y"]


def attacked(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of the purifiers, attacked and rounded to bytes, as they were recorded; and their labels."""
    labels = adapter.digits(N)[1] if adapter.family(model) == "mnist" else clean(model)[1]
    return recorded("inputs.npz")[group(model)]["x"], labels


def group(model: str) -> str:
    """Models that share inputs: mnist-fcn, mnist-cnn or cifar10."""
    return "-".join(model.split("-")[:2]) if adapter.family(model) == "mnist" else "cifar10"


def changes(x: np.ndarray, found: np.ndarray) -> Arrays:
    """L2 and Linf norm of the change of every image."""
    delta = (found.astype(np.float64) - adapter.tensor(x).numpy().astype(np.float64)).reshape(len(x), -1)
    return {"l2": np.sqrt((delta**2).sum(1)), "linf": np.abs(delta).max(1)}


def purifier_cases() -> list[tuple[str, str]]:
    """Model and purifier."""
    return [(model, purifier) for model in adapter.models() for purifier in adapter.purifiers(model)]


def purified(model: str, purifier: str) -> Arrays:
    """Numbers of all images, and the first few images."""
    x, y = attacked(model)
    found = adapter.purify_images(model, purifier, x, y)
    # Hedge begins at random points, whose digits do not compress.
    images = 2 if purifier == "hedge" else IMAGES
    return _row(x, found, images)


def defense_gan(case: str) -> Arrays:
    """Numbers of all images, the first few images, and labels."""
    n, settings = GAN[case]
    x = attacked("mnist-cnn-dr")[0][:n]
    found = adapter.defense_gan(x, **settings)
    bytes_ = (found["x"] * 255).round().astype(np.uint8)
    # A class of rounded images: the generator's own last bits are not what is pinned.
    labels = np.stack([adapter.classify(model, bytes_).argmax(1) for model in GAN_MODELS], 1)
    return {**_row(x, found, IMAGES), "label": labels}


def denoised(purifier: str) -> Arrays:
    """Numbers of all images, and the first few."""
    x = attacked("mnist-cnn-dr")[0]
    return _row(x, adapter.denoise(purifier, x), IMAGES)


def pixel_defend() -> Arrays:
    """Numbers of all images, and the first few."""
    x = attacked(f"{adapter.RESNET}-lc")[0][:PIXEL_DEFEND]
    return _row(x, adapter.pixel_defend(x), 4)


def _row(x: np.ndarray, found: Arrays, images: int) -> Arrays:
    numbers = {name: part for name, part in found.items() if name != "x"}
    return {**numbers, **changes(x, found["x"]), "images": found["x"][:images]}


def attack_cases() -> list[tuple[str, str]]:
    """Model and attack."""
    return [
        (model, name)
        for model in adapter.models()
        for name in (adapter.attack_names(model) if model in ATTACKED else EVERY_MODEL)
    ]


def attacked_inputs(model: str, name: str) -> int:
    """How many inputs of a model an attack is recorded for: N of `mnist-fcn-dr`, for every attack on digits."""
    if adapter.family(model) == "cifar10" and name not in WHOLE_BATCH:
        return FEW if name in (*adapter.ADAPTIVE, "cw") else ON_RESNET
    return ON_CNN if model == "mnist-cnn-dr" and name in adapter.ADAPTIVE else N


def under_attack(model: str, name: str) -> Arrays:
    """Labels after the attack, and norms."""
    n = attacked_inputs(model, name)
    x, y = (part[:n] for part in clean(model))
    found = adapter.attack(model, name, x, y)
    return {"label": found["label"], **changes(x, found["x"])}


def trained(task: str, folder: Path) -> Arrays:
    """Losses and weights of 20 steps on 20 images."""
    color = task in ("consistency", "rotation", "fgsm", "pixelcnn")
    x, y = (synthetic()[:20], np.arange(20) % 10) if color else adapter.digits(20, "train")
    return adapter.train20(task, x, y, folder)


def exported(folder: Path) -> Arrays:
    """Outputs of the ONNX files."""
    model, n = EXPORTED
    return adapter.export_output(model, attacked(model)[0][:n], folder)


def purified_by_onnx(found: Arrays) -> Arrays:
    """The outputs of the exported purifier in the form of a purifier's case."""
    model, n = EXPORTED
    parts = {name: found[f"whole.{name}"] for name in ("eps", "loss_before", "loss_after")}
    parts |= {"x": found["whole.purified"], "label": found["whole.logits"].argmax(1)}
    return _row(attacked(model)[0][:n], parts, IMAGES)


def evaluated(case: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of `soap evaluate`."""
    model, options = EVALUATIONS[case]
    return adapter.evaluate_rows(model, folder, *options)


def suite(case: str, folder: Path) -> dict[str, Any]:
    """A run of a suite."""
    return adapter.suite_run(case, folder, **SUITES[case])
