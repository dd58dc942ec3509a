"""Compare soap's suite with foolbox, ART and pyautoattack on the same defences and images.

    python tools/compare_libraries.py --device cuda
    python tools/compare_libraries.py --only 'views/*' --only '*/foolbox/*' --images 20 --steps 20

The defences are a denoising autoencoder, diffusion, view average and randomised smoothing before `mnist-cnn-no-def`.
Each library attacks the defence as an ordinary module, whose autograd gradient is exact; see tools/library_attacks.py.
One row for each (defence, library, attack) is appended to results/libraries.jsonl. Rows that are there already are
skipped, so several processes may each run a part (--only DEFENCE/LIBRARY/ATTACK). A random defence classifies every
image in 20 draws that select and 20 other draws that report, the same for all rows (see tools/libraries_table.py).

ART is no dependency of the project: `pip install adversarial-robustness-toolbox`. A missing library is skipped.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import libraries_table
import library_attacks
import numpy as np
import torch
from libraries_table import ROWS, SCHEMA
from library_attacks import Budget
from torch import Tensor

import soap
from soap import data as library
from soap._runtime import devices
from soap.bench.results import append, provenance
from soap.data import Dataset
from soap.evaluation import PROTOCOLS, SUITES, AttackedShard, SuiteReport, fingerprint
from soap.evaluation.labels import drawn_labels
from soap.evaluation.run_folder import RunFolder
from soap.purifiers.purifier import ClassifierWrapper
from soap.recipes.purifiers import purifier_by_name

MODEL = "mnist-cnn-no-def"
DRAWS = 20
"""Draws that select, and as many that report."""

EVALUATION_SEED = 25_05


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Default effort against a defence. draws: of a random one. suites: of soap; a protocol's name runs no checks."""

    steps: int = 100
    queries: int = 1000
    draws: int = 16
    suites: tuple[str, ...] = ("full",)


DEFENCES = {
    "autoencoder": Effort(),
    "views": Effort(),
    "smoothing": Effort(),
    # 30 reverse steps for each draw: less of everything, and only the protocols that can break it.
    "diffusion": Effort(
        steps=40, queries=200, draws=4, suites=("transfer", "straight-through", "exact", "square", "decision")
    ),
}
"""Defences by the names of their purifiers."""


def main(arguments: Sequence[str]) -> int:
    """Run the chosen parts; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="PATTERN", help="DEFENCE/LIBRARY/ATTACK with wildcards")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--eps", type=float, default=0.2)
    parser.add_argument("--steps", type=int, help="of every iterative attack")
    parser.add_argument("--queries", type=int, help="of every attack without gradients")
    parser.add_argument("--draws", type=int, help="of a random defence, over which an attack averages")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=ROWS)
    parser.add_argument("--runs", type=Path, default=Path("runs/libraries"), help="folder of the runs of the suite")
    parser.add_argument("--list", action="store_true", help="print the parts and run nothing")
    options = parser.parse_args(arguments)
    selected = [part for part in parts() if chosen(part, options.only)]
    if not selected:
        parser.error(f"no part fits --only {options.only}; --list prints them.")
    if options.list:
        print("\n".join("/".join(part) for part in selected))
        return 0
    images = library.load(options.data, root=options.data_root).take(options.images)
    images = images.to(devices.pick_device(options.device))
    failed = [run_part(part, images, options, f"{i} of {len(selected)}") for i, part in enumerate(selected, 1)]
    return int(any(failed))


def parts() -> Iterator[tuple[str, str, str]]:
    """Every (defence, library, attack)."""
    for name, effort in DEFENCES.items():
        yield name, "none", "clean"
        for maker, attacks in library_attacks.ATTACKS.items():
            for attack in attacks:
                if attack not in library_attacks.RANDOM_ONLY or name in ("smoothing", "diffusion"):
                    yield name, maker, attack
        for suite in dict.fromkeys((*effort.suites, *SUITES, *PROTOCOLS)):
            yield name, "soap", suite


def chosen(part: tuple[str, str, str], only: Sequence[str] | None) -> bool:
    """Whether a part is selected. A suite that is not a default of its defence is selected only by its full name."""
    defence, maker, attack = part
    name, default = "/".join(part), maker != "soap" or attack in DEFENCES[defence].suites
    return any(pattern == name or (default and fnmatch(name, pattern)) for pattern in only or ["*"])


def run_part(part: tuple[str, str, str], images: Dataset, options: argparse.Namespace, place: str) -> bool:
    """Run one part and append its row, unless it is there; True if it failed."""
    name, maker, attack = part
    title = f"{place}: {'/'.join(part)}"
    defence = defence_of(name, images.x.device)
    random = is_random(defence)
    budget = budget_of(DEFENCES[name], options, random)
    identity = {
        "schema": SCHEMA, "defence": name, "library": maker, "attack": attack, "eps": budget.eps, "n": len(images),
        "seed": budget.seed, "data": images.name, "data_sha256": images.sha256, "weights_sha256": fingerprint(defence),
        "settings": settings_of(maker, attack, budget),
    }  # fmt: skip
    if any(all(row[key] == value for key, value in identity.items()) for row in libraries_table.read(options.results)):
        print(f"{title}: skipped, its row is in {options.results}", flush=True)
        return False
    print(f"{title} {identity['settings']} ...", flush=True)
    began = time.monotonic()
    torch.manual_seed(budget.seed)
    np.random.seed(budget.seed)
    try:
        x, more = attacked(part, defence, images, budget, options)
    except ImportError as error:
        print(f"{title}: skipped, {error}; install {library_attacks.PACKAGES.get(maker, maker)}.", flush=True)
        return False
    except Exception as error:  # another library may raise anything; the other parts go on
        print(f"{title}: failed, {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return True
    seconds = time.monotonic() - began
    x = (images.x + (x - images.x).clamp(-budget.eps, budget.eps)).clamp(0, 1)
    selecting, reporting = correct_draws(defence, x, images.y, random=random)
    row = {
        **identity, "library_version": version_of(maker), "random": random, "draws": DRAWS if random else 1,
        "selecting": selecting, "reporting": reporting, "seconds": round(seconds, 1), **more,
        "purifier": repr_of(defence), "provenance": {**provenance(images.x.device), "command": command(part, options)},
    }  # fmt: skip
    append(options.results, row)
    print(f"{title}: {100 * libraries_table.accuracy(row):.1f} % in {seconds:.0f} s", flush=True)
    return False


def defence_of(name: str, device: torch.device) -> soap.Defence:
    """The classifier behind the purifier of that name, or in the classifier around it."""
    model = soap.load(MODEL, device=device)
    made = purifier_by_name(model, name)
    defence = soap.Defence(made) if isinstance(made, ClassifierWrapper) else soap.Defence(model, made)
    return defence.requires_grad_(False)  # ART would compute the gradients of the weights, too


def is_random(defence: soap.Defence) -> bool:
    """Whether the defence draws random numbers, as its purifier or its classifier declares."""
    declared = defence.model if defence.purifier is None else defence.purifier
    return bool(getattr(declared, "random", False))


def budget_of(effort: Effort, options: argparse.Namespace, random: bool) -> Budget:
    """The effort of the attacks: the defence's own if the command gives none."""
    return Budget(
        eps=options.eps,
        steps=options.steps or effort.steps,
        queries=options.queries or effort.queries,
        draws=(options.draws or effort.draws) if random else 1,
        seed=options.seed,
    )


def settings_of(maker: str, attack: str, budget: Budget) -> dict[str, Any]:
    """The settings of an attack, as rows store them."""
    if maker == "none":
        return {}
    if maker == "soap":
        return {"steps": budget.steps, "queries": budget.queries, "draws": budget.draws}
    return library_attacks.settings(attack, budget)


def attacked(
    part: tuple[str, str, str], defence: soap.Defence, images: Dataset, budget: Budget, options: argparse.Namespace
) -> tuple[Tensor, dict[str, Any]]:
    """The attacked images of a part, and further fields of its row."""
    name, maker, attack = part
    if maker == "none":
        return images.x, {}
    if maker == "soap":
        sizes = f"{len(images)}-{budget.eps:g}-{budget.steps}-{budget.queries}-{budget.draws}-{budget.seed}"
        return suite_points(defence, images, attack, budget, options.runs / f"{name}-{attack}-{sizes}")
    return library_attacks.ATTACKS[maker][attack](defence, images.x, images.y, budget), {}


def suite_points(
    defence: soap.Defence, images: Dataset, suite: str, budget: Budget, out: Path
) -> tuple[Tensor, dict[str, Any]]:
    """The point of each image with the lowest accuracy by the suite's selecting draws, and the suite's own verdict."""
    report = soap.evaluate(
        defence,
        images,
        suite=suite,
        eps=budget.eps,
        steps=budget.steps,
        queries=budget.queries,
        draws=budget.draws if budget.draws > 1 else None,
        batch_size=len(images),
        seed=budget.seed,
        out=out,
        shard=None if suite in SUITES else (0, 1),
        watch=lambda what, done, total: print(f"  {what}", flush=True),
    )
    assert isinstance(report, SuiteReport | AttackedShard)
    x = lowest_points(report.folder, images)
    if isinstance(report, AttackedShard):
        return x, {"verdict": "", "reasons": []}
    summary, verdict = report.summary, report.verdict
    lines = (summary.worst, summary.clean, *summary.protocols)
    own = {one.protocol: one.accuracy for one in lines if verdict.shows(one.protocol)}
    return x, {"verdict": verdict.name, "reasons": list(verdict.reasons), "accuracies": own}


def lowest_points(folder: RunFolder, images: Dataset) -> Tensor:
    """Of every image, the attacked version with the lowest accuracy by the selecting draws of the run."""
    draws, y = folder.plan()["draws"], images.y.cpu().numpy()
    x, lowest = images.x.cpu().numpy().copy(), np.full(len(images), np.inf)
    for _, attempt, number in folder.batch_names():  # clean images first
        batch = folder.read_batch(attempt, number)
        if batch is None or len(batch.rows) == 0:
            continue
        labels = batch.defended[:, None] if draws == 1 else batch.drawn[:, :draws]
        share = (labels == y[batch.rows, None]).mean(1)
        better = share < lowest[batch.rows]
        lowest[batch.rows[better]] = share[better]
        if attempt is not None:
            x[batch.rows[better]] = batch.x[better]
    return torch.from_numpy(x).to(images.x)


def correct_draws(defence: soap.Defence, x: Tensor, y: Tensor, *, random: bool) -> tuple[list[int], list[int]]:
    """For each image, how many of the selecting and of the reporting draws are correct."""
    if not random:
        correct = (defence.labels(x) == y).int().tolist()
        return correct, correct
    correct = drawn_labels(defence, x, draws=2 * DRAWS, seed=(EVALUATION_SEED,)) == y[:, None]
    return correct[:, :DRAWS].sum(1).tolist(), correct[:, DRAWS:].sum(1).tolist()


def version_of(maker: str) -> str:
    """The version of a library; that of soap is in the provenance."""
    return library_attacks.installed_version(maker) if maker in library_attacks.PACKAGES else soap.__version__


def repr_of(defence: soap.Defence) -> str:
    """The purifier with its settings."""
    return repr(defence.purifier) if defence.purifier is not None else defence.name


def command(part: tuple[str, str, str], options: argparse.Namespace) -> str:
    """The command that makes this row, without paths."""
    given = {name: getattr(options, name) for name in ("images", "eps", "steps", "queries", "draws", "seed", "data")}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return shlex.join(["python", "tools/compare_libraries.py", f"--only={'/'.join(part)}", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
