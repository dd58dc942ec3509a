"""Make the gallery and the example digits of the page of `soap serve`.

    python tools/make_gallery.py [OUT]

Writes OUT/gallery/ (small PNGs and gallery.json) from the bundled digits and models; OUT is soap/serve/static of this
clone unless given. The output is deterministic.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import soap
from soap.data.pictures import encode_png
from soap.recipes.trained_model import TrainedModel, open_model
from soap.serve.trajectories import AttackClassifier, Predict, Purify, Trajectory, run_operation

STATIC = Path(__file__).resolve().parents[1] / "soap" / "serve" / "static"
DATA, BATCH_SIZE = "mnist-mini", 200
MIN_PROBABILITY = 0.8
"""Probability that an entry needs for its class at each stage, so that rounding elsewhere does not change it."""

Outcome = Callable[[int, int | None, int | None], bool]
"""Of a correctly classified digit: its class, and its predictions attacked and purified."""


@dataclass(frozen=True)
class Wanted:
    """A gallery entry to find: the first digit of class `label` that is correctly classified and has the outcome."""

    model: str
    label: int
    group: str
    description: str
    outcome: Outcome
    attack: str | None = "pgd"
    eps: float | None = 0.3


RESTORED = (
    "works",
    "{attack} turns {label} into {attacked}; purification brings {label} back.",
    lambda label, attacked, purified: attacked != label == purified,
)
STAYS_WRONG = (
    "fails",
    "{attack} turns {label} into {attacked}, and purification leaves it there: the wrong class is plausible, too.",
    lambda label, attacked, purified: label != attacked == purified,
)
THIRD_CLASS = (
    "fails",
    "{attack} turns {label} into {attacked}; purification moves it on to {purified}, which is wrong, too.",
    lambda label, attacked, purified: label != attacked and purified not in (label, attacked),
)
ATTACK_FAILS = (
    "works",
    "{attack} fails: this network was trained on attacked digits, and has no purifier to circumvent.",
    lambda label, attacked, purified: attacked == label,
)
MADE_WRONG = (
    "fails",
    "Without an attack, purification turns {label} into {purified}. Press Purify at once to see it.",
    lambda label, attacked, purified: purified != label,
)
NO_PURIFIER = (
    "fails",
    "{attack} turns {label} into {attacked}, and a network without an auxiliary task has no way back.",
    lambda label, attacked, purified: attacked != label,
)
WANTED = (
    Wanted("mnist-cnn-dr", 4, *RESTORED),
    Wanted("mnist-cnn-dr", 5, *RESTORED, attack="fgsm"),
    Wanted("mnist-cnn-dr", 2, *RESTORED, eps=0.4),
    Wanted("mnist-fcn-dr", 3, *RESTORED),
    Wanted("mnist-fcn-dr", 8, *RESTORED, eps=0.2),
    Wanted("mnist-cnn-pgd-at", 6, *ATTACK_FAILS),
    Wanted("mnist-cnn-dr", 9, *STAYS_WRONG),
    Wanted("mnist-cnn-dr", 8, *THIRD_CLASS),
    Wanted("mnist-fcn-dr", 7, *STAYS_WRONG),
    Wanted("mnist-fcn-dr", 0, *THIRD_CLASS),
    Wanted("mnist-fcn-dr", 9, *MADE_WRONG, attack=None, eps=None),
    Wanted("mnist-fcn-no-def", 1, *NO_PURIFIER),
)
TITLES = {"fgsm": "FGSM", "pgd": "PGD"}


def entry(wanted: Wanted, number: int, digits: soap.data.Dataset, out: Path) -> dict[str, Any]:
    """Find the digit of an entry and write its pictures; returns the entry for gallery.json."""
    served = open_model(wanted.model)
    for x, y in zip(digits.x.split(BATCH_SIZE), digits.y.split(BATCH_SIZE), strict=True):
        for stages in _stages(served, wanted, x[y == wanted.label]):
            labels = {name: one and int(one.probabilities[-1].argmax()) for name, one in stages.items()}
            sure = all(one is None or one.probabilities[-1].max() >= MIN_PROBABILITY for one in stages.values())
            correct = labels["input"] == wanted.label
            if sure and correct and wanted.outcome(wanted.label, labels["attacked"], labels["purified"]):
                made = {name: one and _picture(served, one, number, name, out) for name, one in stages.items()}
                attack = wanted.attack and f"{TITLES[wanted.attack]} of strength {wanted.eps:g}"
                return {
                    "model": wanted.model,
                    "attack": wanted.attack or "pgd",
                    "eps": wanted.eps,
                    "eps_pfy": "min-aux",
                    "label": wanted.label,
                    "outcome": wanted.group,
                    "description": wanted.description.format(attack=attack, label=wanted.label, **labels),
                    **made,
                }
    raise SystemExit(f"no digit is as wanted by {wanted}")


def _stages(served: TrainedModel, wanted: Wanted, x: torch.Tensor) -> list[dict[str, Trajectory | None]]:
    """Run the stages as the service does: the attacked picture is rounded to 8 bits."""
    images, labels = list(x), [wanted.label] * len(x)
    found: dict[str, list[Any]] = dict.fromkeys(("attacked", "purified"), [None] * len(images))
    found = {"input": run_operation(Predict(), served.model, images, labels), **found}
    if wanted.attack is not None:
        attack = AttackClassifier(attack=served.attack(wanted.attack, settings={"eps": wanted.eps}))
        found["attacked"] = run_operation(attack, served.model, images, labels)
        images = [trajectory.points[-1] for trajectory in found["attacked"]]
    if served.model.purifiable:
        found["purified"] = run_operation(Purify.of(served.model), served.model, images, labels)
    return [dict(zip(found, stages, strict=True)) for stages in zip(*found.values(), strict=True)]


def _picture(served: TrainedModel, trajectory: Trajectory, number: int, stage: str, out: Path) -> dict[str, Any]:
    file, label = f"{number:02d}-{stage}.png", int(trajectory.probabilities[-1].argmax())
    (out / file).write_bytes(encode_png(trajectory.points[-1]))
    return {"file": file, "class": label, "name": served.classes[label]}


def examples(digits: soap.data.Dataset, out: Path) -> list[dict[str, Any]]:
    """The first digit of each class."""
    for label in range(10):
        (out / f"digit-{label}.png").write_bytes(encode_png(digits.x[digits.y == label][0]))
    return [{"label": label, "file": f"digit-{label}.png"} for label in range(10)]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    gallery = (Path(sys.argv[1]) if len(sys.argv) == 2 else STATIC) / "gallery"
    gallery.mkdir(parents=True, exist_ok=True)
    digits = soap.data.load(DATA)
    entries = [entry(wanted, number, digits, gallery) for number, wanted in enumerate(WANTED, 1)]
    content = json.dumps({"digits": examples(digits, gallery), "entries": entries}, indent=1, ensure_ascii=False)
    (gallery / "gallery.json").write_text(content + "\n", encoding="utf-8")
    print(sum(path.stat().st_size for path in gallery.iterdir()), "bytes in", gallery)
