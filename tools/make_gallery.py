"""Make the data files of the page of `soap serve`: its gallery, example digits and worst cases.

    python tools/make_gallery.py [OUT]

Writes OUT/gallery/ (small PNGs and gallery.json) from the bundled digits and models, and OUT/adaptive.json from the
runs under results/adaptive; OUT is soap/serve/static of this clone unless given. The output is deterministic.
"""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import soap
from soap.data.pictures import encode_png
from soap.paper.pages.adaptive import committed_runs
from soap.serve.operations import (
    AttackClassifier,
    Predict,
    Purify,
    ServedModel,
    Trajectory,
    load_served_model,
    run_operation,
)

STATIC = Path(__file__).resolve().parents[1] / "soap" / "serve" / "static"
RUNS = Path(__file__).resolve().parents[1] / "results" / "adaptive"
DATA, AT_ONCE = "mnist-mini", 200
MIN_PROBABILITY = 0.8
"""Probability that an entry needs for its class at each stage, so that rounding elsewhere does not change it."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The class of a digit, and its predictions clean, attacked and purified."""

    label: int
    seen: int
    attacked: int | None
    purified: int | None


@dataclass(frozen=True, kw_only=True)
class GalleryEntry:
    """A gallery entry to find: the first digit of class `label` (None: any) for which `holds` is true."""

    model: str
    outcome: str
    said: str
    holds: Callable[[Stages], bool]
    attack: str | None = "pgd"
    eps: float | None = 0.3
    label: int | None = None


def back(it: Stages) -> bool:
    """The attack succeeds, and purification restores the prediction."""
    return it.seen == it.label != it.attacked and it.purified == it.label


def stuck(it: Stages) -> bool:
    """The attack succeeds, and purification does not help."""
    return it.seen == it.label != it.attacked == it.purified


def elsewhere(it: Stages) -> bool:
    """Purification leads to a third class."""
    return it.seen == it.label != it.attacked and it.purified not in (it.label, it.attacked)


def spoilt(it: Stages) -> bool:
    """A correct prediction becomes wrong by purification."""
    return it.seen == it.label != it.purified


def helpless(it: Stages) -> bool:
    """The attack succeeds, and there is no purifier."""
    return it.seen == it.label != it.attacked


def unmoved(it: Stages) -> bool:
    """The attack fails."""
    return it.seen == it.label == it.attacked


BACK = "{attack} turns {label} into {attacked}; purification brings {label} back."
STUCK = "{attack} turns {label} into {attacked}, and purification leaves it there: the wrong answer is plausible, too."
ELSEWHERE = "{attack} turns {label} into {attacked}; purification walks on to {purified}, which is no better."
WANTED = (
    GalleryEntry(model="mnist-cnn-dr", outcome="works", said=BACK, holds=back, label=4),
    GalleryEntry(model="mnist-cnn-dr", outcome="works", said=BACK, holds=back, attack="fgsm", label=5),
    GalleryEntry(model="mnist-cnn-dr", outcome="works", said=BACK, holds=back, eps=0.4, label=2),
    GalleryEntry(model="mnist-fcn-dr", outcome="works", said=BACK, holds=back, label=3),
    GalleryEntry(model="mnist-fcn-dr", outcome="works", said=BACK, holds=back, eps=0.2, label=8),
    GalleryEntry(
        model="mnist-cnn-pgd-at", outcome="works", holds=unmoved, label=6,
        said="{attack} fails: this network was trained on attacked digits, and has no purifier to be circumvented.",
    ),
    GalleryEntry(model="mnist-cnn-dr", outcome="fails", said=STUCK, holds=stuck, label=9),
    GalleryEntry(model="mnist-cnn-dr", outcome="fails", said=ELSEWHERE, holds=elsewhere, label=8),
    GalleryEntry(model="mnist-fcn-dr", outcome="fails", said=STUCK, holds=stuck, label=7),
    GalleryEntry(model="mnist-fcn-dr", outcome="fails", said=ELSEWHERE, holds=elsewhere, label=0),
    GalleryEntry(
        model="mnist-fcn-dr", outcome="fails", holds=spoilt, attack=None, eps=None, label=9,
        said="Nobody attacks, and purification alone turns {label} into {purified}. Press Purify at once to see it.",
    ),
    GalleryEntry(
        model="mnist-fcn-no-def", outcome="fails", holds=helpless, label=1,
        said="{attack} turns {label} into {attacked}, and a network without an auxiliary task has no way back.",
    ),
)  # fmt: skip
TITLES = {"fgsm": "FGSM", "pgd": "PGD"}


def entry(wanted: GalleryEntry, number: int, digits: soap.data.Dataset, out: Path) -> dict[str, Any]:
    """Find the digit of an entry and write its pictures; returns the entry for gallery.json."""
    served = load_served_model(wanted.model, device="cpu")
    for x, y in zip(digits.x.split(AT_ONCE), digits.y.split(AT_ONCE), strict=True):
        rows = list(range(len(x))) if wanted.label is None else (y == wanted.label).nonzero()[:, 0].tolist()
        for label, walks in zip(
            y[rows].tolist(), _trajectories(served, wanted, x[rows], y[rows].tolist()), strict=True
        ):
            stages = Stages(label=label, **{name: _seen(walk) for name, walk in walks.items()})
            sure = all(walk is None or walk.probabilities[-1].max() >= MIN_PROBABILITY for walk in walks.values())
            if sure and wanted.holds(stages):
                return _entry(served, wanted, stages, walks, number, out)
    raise SystemExit(f"no digit is as wanted by {wanted}")


def _trajectories(
    served: ServedModel, wanted: GalleryEntry, x: torch.Tensor, labels: list[int]
) -> list[dict[str, Trajectory | None]]:
    """Run the stages as the service does: the attacked picture is rounded to 8 bits."""
    model, images = served.model, list(x)
    nothing: list[Trajectory | None] = [None] * len(images)
    seen = run_operation(Predict(), model, images, labels)
    attacked, purified = nothing, nothing
    if wanted.attack is not None:
        attacked = run_operation(
            AttackClassifier(attack=served.attack(wanted.attack, eps=wanted.eps)), model, images, labels
        )
        images = [walk.points[-1] for walk in attacked]
    if model.purifiable:
        purified = run_operation(Purify.of(model), model, images, labels)
    found = zip(seen, attacked, purified, strict=True)
    return [dict(zip(("seen", "attacked", "purified"), three, strict=True)) for three in found]


def _seen(walk: Trajectory | None) -> int | None:
    return None if walk is None else int(walk.probabilities[-1].argmax())


def _entry(
    served: ServedModel,
    wanted: GalleryEntry,
    stages: Stages,
    walks: dict[str, Trajectory | None],
    number: int,
    out: Path,
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for stage, name in {"seen": "input", "attacked": "attacked", "purified": "purified"}.items():
        walk = walks[stage]
        if walk is None:
            made[name] = None
            continue
        file = f"{number:02d}-{name}.png"
        (out / file).write_bytes(encode_png(walk.points[-1]))
        made[name] = {"file": file, "class": _seen(walk), "name": served.classes[int(walk.probabilities[-1].argmax())]}
    attack = wanted.attack and f"{TITLES[wanted.attack]} of strength {wanted.eps:g}"
    said = wanted.said.format(attack=attack, label=stages.label, attacked=stages.attacked, purified=stages.purified)
    return {
        "model": wanted.model,
        "attack": wanted.attack or "pgd",
        "eps": wanted.eps,
        "eps_pfy": "min-aux",
        "label": stages.label,
        "outcome": wanted.outcome,
        "said": said,
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


def worst_cases() -> dict[str, dict[str, Any]]:
    """Results of the full suite for each bundled model with its default settings."""
    found = {}
    for run in committed_runs(RUNS):
        row = run.rows["worst"]
        if run.name != row.model:
            continue
        words = shlex.split(run.command)
        found[run.name] = {
            "worst": row.accuracy,
            "interval": list(row.interval),
            "clean": run.rows["clean"].accuracy,
            "n": row.n,
            "eps": float(words[words.index("--eps") + 1]),
            "verdict": run.verdict,
            "date": row.provenance.date[:10],
        }
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
    write(folder / "adaptive.json", worst_cases())
    print(sum(path.stat().st_size for path in gallery.iterdir()), "bytes in", gallery)
