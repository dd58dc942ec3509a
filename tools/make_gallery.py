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
from soap.serve.trajectories import (
    AttackClassifier,
    Predict,
    Purify,
    Trajectory,
    run_operation,
)

STATIC = Path(__file__).resolve().parents[1] / "soap" / "serve" / "static"
DATA, BATCH_SIZE = "mnist-mini", 200
MIN_PROBABILITY = 0.8
"""Probability that an entry needs for its class at each stage, so that rounding elsewhere does not change it."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The class of a digit, and its predictions clean, attacked and purified."""

    label: int
    clean: int
    attacked: int | None
    purified: int | None


@dataclass(frozen=True, kw_only=True)
class GalleryEntry:
    """A gallery entry to find: the first digit of class `label` (None: any) for which `holds` is true."""

    model: str
    outcome: str
    description: str
    holds: Callable[[Stages], bool]
    attack: str | None = "pgd"
    eps: float | None = 0.3
    label: int | None = None


def restored(stages: Stages) -> bool:
    """The attack succeeds, and purification restores the prediction."""
    return stages.clean == stages.label != stages.attacked and stages.purified == stages.label


def stays_wrong(stages: Stages) -> bool:
    """The attack succeeds, and purification does not help."""
    return stages.clean == stages.label != stages.attacked == stages.purified


def third_class(stages: Stages) -> bool:
    """Purification leads to a third class."""
    return stages.clean == stages.label != stages.attacked and stages.purified not in (stages.label, stages.attacked)


def made_wrong(stages: Stages) -> bool:
    """A correct prediction becomes wrong by purification."""
    return stages.clean == stages.label != stages.purified


def no_purifier(stages: Stages) -> bool:
    """The attack succeeds, and there is no purifier."""
    return stages.clean == stages.label != stages.attacked


def attack_fails(stages: Stages) -> bool:
    """The attack fails."""
    return stages.clean == stages.label == stages.attacked


RESTORED = "{attack} turns {label} into {attacked}; purification brings {label} back."
STAYS_WRONG = (
    "{attack} turns {label} into {attacked}, and purification leaves it there: the wrong class is plausible, too."
)
THIRD_CLASS = "{attack} turns {label} into {attacked}; purification moves it on to {purified}, which is wrong, too."
WANTED = (
    GalleryEntry(model="mnist-cnn-dr", outcome="works", description=RESTORED, holds=restored, label=4),
    GalleryEntry(model="mnist-cnn-dr", outcome="works", description=RESTORED, holds=restored, attack="fgsm", label=5),
    GalleryEntry(model="mnist-cnn-dr", outcome="works", description=RESTORED, holds=restored, eps=0.4, label=2),
    GalleryEntry(model="mnist-fcn-dr", outcome="works", description=RESTORED, holds=restored, label=3),
    GalleryEntry(model="mnist-fcn-dr", outcome="works", description=RESTORED, holds=restored, eps=0.2, label=8),
    GalleryEntry(
        model="mnist-cnn-pgd-at", outcome="works", holds=attack_fails, label=6,
        description="{attack} fails: this network was trained on attacked digits, and has no purifier to circumvent.",
    ),
    GalleryEntry(model="mnist-cnn-dr", outcome="fails", description=STAYS_WRONG, holds=stays_wrong, label=9),
    GalleryEntry(model="mnist-cnn-dr", outcome="fails", description=THIRD_CLASS, holds=third_class, label=8),
    GalleryEntry(model="mnist-fcn-dr", outcome="fails", description=STAYS_WRONG, holds=stays_wrong, label=7),
    GalleryEntry(model="mnist-fcn-dr", outcome="fails", description=THIRD_CLASS, holds=third_class, label=0),
    GalleryEntry(
        model="mnist-fcn-dr", outcome="fails", holds=made_wrong, attack=None, eps=None, label=9,
        description="Without an attack, purification turns {label} into {purified}. Press Purify at once to see it.",
    ),
    GalleryEntry(
        model="mnist-fcn-no-def", outcome="fails", holds=no_purifier, label=1,
        description="{attack} turns {label} into {attacked}, and a network without an auxiliary task has no way back.",
    ),
)  # fmt: skip
TITLES = {"fgsm": "FGSM", "pgd": "PGD"}


def entry(wanted: GalleryEntry, number: int, digits: soap.data.Dataset, out: Path) -> dict[str, Any]:
    """Find the digit of an entry and write its pictures; returns the entry for gallery.json."""
    served = open_model(wanted.model)
    for x, y in zip(digits.x.split(BATCH_SIZE), digits.y.split(BATCH_SIZE), strict=True):
        rows = list(range(len(x))) if wanted.label is None else (y == wanted.label).nonzero()[:, 0].tolist()
        for label, trajectories in zip(
            y[rows].tolist(), _trajectories(served, wanted, x[rows], y[rows].tolist()), strict=True
        ):
            stages = Stages(label=label, **{name: _prediction(trajectory) for name, trajectory in trajectories.items()})
            sure = all(
                trajectory is None or trajectory.probabilities[-1].max() >= MIN_PROBABILITY
                for trajectory in trajectories.values()
            )
            if sure and wanted.holds(stages):
                return _entry(served, wanted, stages, trajectories, number, out)
    raise SystemExit(f"no digit is as wanted by {wanted}")


def _trajectories(
    served: TrainedModel, wanted: GalleryEntry, x: torch.Tensor, labels: list[int]
) -> list[dict[str, Trajectory | None]]:
    """Run the stages as the service does: the attacked picture is rounded to 8 bits."""
    model, images = served.model, list(x)
    nothing: list[Trajectory | None] = [None] * len(images)
    clean = run_operation(Predict(), model, images, labels)
    attacked, purified = nothing, nothing
    if wanted.attack is not None:
        attacked = run_operation(
            AttackClassifier(attack=served.attack(wanted.attack, settings={"eps": wanted.eps})), model, images, labels
        )
        images = [trajectory.points[-1] for trajectory in attacked]
    if model.purifiable:
        purified = run_operation(Purify.of(model), model, images, labels)
    found = zip(clean, attacked, purified, strict=True)
    return [dict(zip(("clean", "attacked", "purified"), three, strict=True)) for three in found]


def _prediction(trajectory: Trajectory | None) -> int | None:
    return None if trajectory is None else int(trajectory.probabilities[-1].argmax())


def _entry(
    served: TrainedModel,
    wanted: GalleryEntry,
    stages: Stages,
    trajectories: dict[str, Trajectory | None],
    number: int,
    out: Path,
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for stage, name in {"clean": "input", "attacked": "attacked", "purified": "purified"}.items():
        trajectory = trajectories[stage]
        if trajectory is None:
            made[name] = None
            continue
        file = f"{number:02d}-{name}.png"
        (out / file).write_bytes(encode_png(trajectory.points[-1]))
        made[name] = {
            "file": file,
            "class": _prediction(trajectory),
            "name": served.classes[int(trajectory.probabilities[-1].argmax())],
        }
    attack = wanted.attack and f"{TITLES[wanted.attack]} of strength {wanted.eps:g}"
    description = wanted.description.format(
        attack=attack, label=stages.label, attacked=stages.attacked, purified=stages.purified
    )
    return {
        "model": wanted.model,
        "attack": wanted.attack or "pgd",
        "eps": wanted.eps,
        "eps_pfy": "min-aux",
        "label": stages.label,
        "outcome": wanted.outcome,
        "description": description,
        **made,
    }


def examples(digits: soap.data.Dataset, out: Path) -> list[dict[str, Any]]:
    """The first digit of each class."""
    found = []
    for label in range(10):
        file = f"digit-{label}.png"
        (out / file).write_bytes(encode_png(digits.x[int((digits.y == label).nonzero()[0, 0])]))
        found.append({"label": label, "file": file})
    return found


def write(path: Path, content: object) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else STATIC
    gallery = folder / "gallery"
    gallery.mkdir(parents=True, exist_ok=True)
    digits = soap.data.load(DATA)
    entries = [entry(wanted, number, digits, gallery) for number, wanted in enumerate(WANTED, 1)]
    write(gallery / "gallery.json", {"digits": examples(digits, gallery), "entries": entries})
    print(sum(path.stat().st_size for path in gallery.iterdir()), "bytes in", gallery)
