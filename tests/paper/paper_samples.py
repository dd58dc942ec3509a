"""Material of our own choosing for every figure: files, rows and timings whose values a test can ask for again."""

from pathlib import Path

import numpy as np
from report_samples import PROVENANCE

from soap.paper import figure_records
from soap.paper.figure_data import FigureData
from soap.paper.figure_records import Examples, RadiusCurve, record_path
from soap.paper.sweeps import BETAS, CROSS_ENTROPY, GAMMAS, GRADIENT_ATTACKS, STEPS
from soap.paper.sweeps import GRADIENT_VARIANTS as VARIANTS
from soap.purifiers.soap import soap_spec
from soap.results import Row
from soap.specs import BARE, AttackSpec, AttackStep, DefenceSpec

TASKS = ("mnist-fcn-dr", "cifar10-resnet18-rp", "cifar10-resnet18-lc")
PICTURED = (
    "mnist-fcn-dr", "mnist-cnn-dr", "cifar10-resnet18-rp", "cifar10-resnet18-lc", "cifar10-wide-resnet28-rp",
    "cifar10-wide-resnet28-lc",
)  # fmt: skip
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def scale(model: str) -> float:
    """The model's gamma; the attack's radius is 3 or 2 of them."""
    return 0.1 if model.startswith("mnist") else 4 / 255


def row(
    model: str,
    attack: str,
    defence: DefenceSpec,
    correct: int,
    *,
    method: str = "PGD",
    beta: float | None = None,
    **changes,
) -> Row:
    settings = {"eps": 0.3 if model.startswith("mnist") else 8 / 255} | ({} if beta is None else {"beta": beta})
    content = {
        "protocol": "transfer", "model": model, "data": model.split("-")[0], "defence": defence,
        "attack": AttackSpec(name=attack, steps=(AttackStep(name=method, settings=settings),)),
        "n": 1000, "correct": correct, "seconds": 1.0, "provenance": PROVENANCE,
    }  # fmt: skip
    return Row(**(content | changes))


def sample_rows() -> list[Row]:
    rows = []
    for model in TASKS:
        gamma = scale(model)
        own = soap_spec("min-aux", (0.0, gamma), gamma, 5)
        for k, beta in enumerate(BETAS):
            for defence, correct in ((BARE, 5 + 60 * abs(k - 5)), (own, 500 + 50 * abs(k - 5))):
                own_protocol = {"protocol": "auxiliary-aware", "method": "AuxiliaryAwarePGD", "beta": beta}
                rows.append(row(model, f"beta={beta:g}", defence, correct, **own_protocol))
        for k, factor in enumerate(GAMMAS):
            for j, steps in enumerate(STEPS):
                defence = soap_spec("min-aux", (0.0, gamma), gamma * factor, steps)
                rows.append(row(model, "pgd", defence, 1000 - 90 * abs(k - 2) - 120 * abs(j - 2)))
        for k in range(11):
            defence = soap_spec(k * gamma / 2, (), gamma, 5)
            rows.append(row(model, "pgd", defence, 60 * min(k, 7)))
    entropy = soap_spec("min-aux", (0.0, scale("cifar10")), scale("cifar10"), 5, loss=CROSS_ENTROPY)
    squared = soap_spec("min-aux", (0.0, scale("cifar10")), scale("cifar10"), 5)
    for attack, defence, correct, eps in (
        ("none", squared, 720, 9), ("none", entropy, 730, 4), ("pgd", squared, 1000, 10), ("pgd", entropy, 310, 5),
    ):  # fmt: skip
        rows.append(row(TASKS[1], attack, defence, correct, measures={"mean_eps_pfy": eps / 255}))
    for k, gradient in enumerate(VARIANTS):
        defence = soap_spec("min-aux", (0.0, scale("cifar10")), scale("cifar10"), 5, gradient=gradient)
        for j, attack in enumerate(GRADIENT_ATTACKS):
            rows.append(row(TASKS[2], attack, defence, 1000 - 130 * k - 80 * j))
    for k, network in enumerate(("mnist-fcn", "mnist-cnn", "cifar10-resnet18", "cifar10-wide-resnet28")):
        rows.append(row(f"{network}-fgsm-at", "none", BARE, 800 - 20 * k))
        rows.append(row(f"{network}-fgsm-at", "fgsm", BARE, 700 + 60 * k))
    return rows


def sample_timings() -> list[dict]:
    networks = {"mnist-fcn": "dr", "mnist-cnn": "dr", "cifar10-resnet18": "rp lc", "cifar10-wide-resnet28": "rp lc"}
    return [
        timing(f"{network}-{method}", 1.0 + k + 10 * j, steps=100 if "wide" in network else 390)
        for k, (network, own) in enumerate(networks.items())
        for j, method in enumerate(("no-def", "fgsm-at", "pgd-at", *own.split()))
    ]


def timing(
    model: str, seconds: float, *, device: str = "a GPU", precision: str = "fp32", date: str = "2026",
    epochs: int = 30, steps: int = 390, old: bool = False, processor: str = "a CPU",
) -> dict:  # fmt: skip
    """A row with the mean `seconds` and a tenth of it as deviation; an old one has the median alone."""
    spread = {"median": seconds, "repeats": epochs}
    if not old:
        spread |= {"median": 2 * seconds, "mean": seconds, "deviation": seconds / 10}
    return {
        "what": "train", "model": model, "paths": {"ours": {"seconds": spread}},
        "case": {"precision": precision, "compiled": "false", "batch_size": 128, "steps": steps, "epoch_steps": 390},
        "provenance": {"device": device, "processor": processor, "date": date},
    }  # fmt: skip


def sample_curve(model: str) -> RadiusCurve:
    radii = tuple(k * scale(model) for k in range(11))
    return RadiusCurve(
        model=model, data=model.split("-")[0], attack="PGD", n=1000, eps_adv=radii[3], clean=0.2, adversarial=1.0,
        radii=radii, purified=(1.0, 0.6, 0.4, 0.23, *[0.2] * 7), provenance={"weights_sha256": "0"},
    )  # fmt: skip


def sample_examples(model: str) -> Examples:
    """Clean answers right, attacked ones wrong and the longest word, purified ones right but for the first class."""
    digits = model.startswith("mnist")
    columns = ("clean", *(f"{a}{p}" for a in ("fgsm", "pgd", "cw", "df") for p in ("", ", purified")))
    truth = tuple(range(10))
    answers = tuple(truth if k == 0 else (1, 0, *[1] * 8) if k % 2 else (1, *truth[1:]) for k in range(9))
    shape = (9, 10, 28, 28, 1) if digits else (9, 10, 32, 32, 3)
    images = np.random.default_rng(len(model)).integers(0, 256, shape, dtype=np.uint8)
    return Examples(
        model=model, data=model.split("-")[0], classes=tuple(map(str, range(10))) if digits else CIFAR, places=truth,
        truth=truth, columns=columns, predictions=answers, images=images,
        decoded=255 - images if digits else np.empty(0, np.uint8), provenance={"weights_sha256": "0"},
    )  # fmt: skip


def sample_material(folder: Path) -> FigureData:
    for model in TASKS:
        figure_records.save(record_path(folder, "curve", model), sample_curve(model))
    for model in PICTURED:
        figure_records.save(record_path(folder, "examples", model), sample_examples(model))
    return FigureData(folder=folder, rows=sample_rows(), timings=sample_timings())
