"""docs/purifiers.md: models behind each purifier, from committed rows and the runs in results/{adaptive,purifiers}."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_suite_runs import ABSENT, CommittedRun, read_run
from torch import nn

from soap import recipes
from soap.evaluation import PAPER
from soap.evaluation.summary import WORST
from soap.paper.rows import training_epochs, training_seed
from soap.recipes import generative
from soap.recipes.purifiers import BY_CLASSIFIER, BY_PRIOR, FILTERS, SOAP_NAME, WRAPPERS
from soap.report import markdown_table, with_section
from soap.report.row_text import percent
from soap.results import Row
from soap.specs import UNDEFENDED, DefenceSpec, attack_spec, call_text, defence_spec

PURIFIER_TITLES = {
    UNDEFENDED: "none",
    SOAP_NAME: "SOAP",
    "anti-adversary": "anti-adversary",
    "hedge": "Hedge",
    "defense-gan": "Defense-GAN",
    "pixeldefend": "PixelDefend",
    "autoencoder": "denoising autoencoder",
    "diffusion": "DiffPure",
    "energy": "energy descent",
    "views": "view average",
    "smoothing": "randomised smoothing",
    "median": "median filter",
    "bit-depth": "bit depth",
    "jpeg": "JPEG",
}
PURIFIERS_BY_MODEL = {
    "cifar10-resnet18-pgd-at": (UNDEFENDED, "anti-adversary", "hedge", "pixeldefend"),
    "cifar10-resnet18-lc": (UNDEFENDED, SOAP_NAME, "anti-adversary", "hedge", "pixeldefend"),
    "cifar10-resnet18-no-def": (UNDEFENDED, "pixeldefend"),
    "mnist-cnn-no-def": (
        UNDEFENDED, "defense-gan", "autoencoder", "diffusion", "energy", "views", "smoothing", "median", "bit-depth",
        "jpeg",
    ),
    "mnist-fcn-no-def": (UNDEFENDED, "defense-gan"),
}  # fmt: skip
"""Purifiers that are evaluated for each model."""

SETTINGS_FOR_DIGITS: dict[str, dict[str, Any]] = {"energy": {"eps": 0.3}, "bit-depth": {"bits": 1}}
"""Settings of the evaluated purifiers that differ from their defaults."""

ADAPTIVE_PURIFIERS = (UNDEFENDED, SOAP_NAME)
"""Purifiers whose runs are in results/adaptive, under the model's name; other runs are in results/purifiers."""

HEAD_OF_PRIORS = ("generative model", "parameters", "file", "training", "bits per dimension of test images")
HEAD = ("model", "purifier", "clean", "PGD, transfer", "images", "worst", "verdict", "cost of an image")


@dataclass(frozen=True, kw_only=True)
class PurifierLine:
    """A model with a purifier: rows of the transfer protocol, and the suite's run."""

    model: str
    purifier: str
    clean: Row | None
    pgd: Row | None
    run: CommittedRun | None

    @property
    def worst(self) -> Row | None:
        """The worst case of the suite's run."""
        return None if self.run is None else self.run.rows[WORST]

    def cells(self) -> Sequence[str]:
        """Table cells. The cost is that of the purifier, under PGD."""
        worst, verdict, cost = ABSENT, ABSENT, ABSENT
        if self.run is not None and self.worst is not None:
            suite, verdict = self.worst.attack.suite, self.run.verdict.name
            worst = self.run.text(WORST)
            worst += "" if suite == "full" else f", {suite} alone"
        if self.pgd is not None and self.purifier != UNDEFENDED:
            cost = f"{1000 * self.pgd.seconds / self.pgd.n:.2g} ms ({self.pgd.provenance.device})"
        return (
            f"`{self.model}`",
            PURIFIER_TITLES[self.purifier],
            *(ABSENT if row is None else percent(row) for row in (self.clean, self.pgd)),
            ABSENT if self.pgd is None else f"{self.pgd.n:,}",
            worst,
            verdict,
            cost,
        )


def lines(rows: Sequence[Row], results: Path) -> Iterator[PurifierLine]:
    """Every model with each of its purifiers, measured or not."""
    for model, purifiers in PURIFIERS_BY_MODEL.items():
        for purifier in purifiers:
            defence = label(model, purifier)
            clean, pgd = (_measured(rows, model, attack, defence) for attack in ("none", "pgd"))
            run = _run_on(model, purifier, defence, results)
            yield PurifierLine(model=model, purifier=purifier, clean=clean, pgd=pgd, run=run)


def label(model: str, purifier: str) -> DefenceSpec:
    """The purifier with its default settings, or those of `SETTINGS_FOR_DIGITS`, as rows store it."""
    if purifier in (UNDEFENDED, SOAP_NAME):
        return recipes.purifier_spec(recipes.read(model), "min-aux" if purifier == SOAP_NAME else UNDEFENDED)
    if purifier in BY_PRIOR:
        return generative.purifier_spec(generative.read(BY_PRIOR[purifier].prior))
    makers: dict[str, Callable[..., Any]] = {**FILTERS, **WRAPPERS, **BY_CLASSIFIER}
    network = () if purifier in FILTERS else (nn.Identity(),)
    return defence_spec(makers[purifier](*network, **SETTINGS_FOR_DIGITS.get(purifier, {})))


def _measured(rows: Sequence[Row], model: str, attack: str, defence: DefenceSpec) -> Row | None:
    """The row of seed 0 under the paper's attack: most images, then most epochs, then the latest."""
    data = recipes.read(model).data
    wanted = ("transfer", model, data, attack_spec(attack, PAPER[data][attack]), defence)
    found = [row for row in rows if (row.protocol, row.model, row.data, row.attack, row.defence) == wanted]
    first = [row for row in found if training_seed(row) == 0]
    return max(first, key=lambda row: (row.n, training_epochs(row) or 0, row.provenance.date), default=None)


def runs_folder(results: Path, purifier: str) -> Path:
    """Folder of the suite's runs on a purifier."""
    return results / ("adaptive" if purifier in ADAPTIVE_PURIFIERS else "purifiers")


def _run_on(model: str, purifier: str, defence: DefenceSpec, results: Path) -> CommittedRun | None:
    """The suite's run on a model with a purifier; bare rows of a purifier's run do not count.

    A classifier around the model is a model of its own, without a purifier.
    """
    folder = runs_folder(results, purifier) / (model if purifier in ADAPTIVE_PURIFIERS else f"{model}-{purifier}")
    run = read_run(folder) if (folder / "findings.json").is_file() else None
    if run is None:
        return None
    worst = run.rows[WORST]
    same = worst.model == f"{model} in {call_text(defence)}" if purifier in WRAPPERS else worst.defence == defence
    return run if same else None


def table(made: Sequence[PurifierLine]) -> str:
    """The table and its legend."""
    legend = (
        "Correctly classified, per cent, with 95 % intervals. *Images*: those of *clean* and *transfer*; n: those of "
        f"*worst*. {ABSENT}: not measured, does not exist, or not shown because a check failed."
    )
    return f"{markdown_table(HEAD, (line.cells() for line in made))}\n\n{legend}"


def suites(results: Path) -> str:
    """Verdict, reasons and command of every run on a purifier other than SOAP."""
    parts = []
    for line in lines([], results):
        if line.run is not None and line.purifier not in ADAPTIVE_PURIFIERS:
            run, why = line.run, line.run.verdict.note or "; ".join(line.run.verdict.reasons)
            text = f"{run.verdict.name}{': ' if why else ''}{why.removesuffix('.')}. {run.origin}: `{run.command}`"
            parts.append(f"- `{line.model}`, {PURIFIER_TITLES[line.purifier]}: {text}")
    return "\n".join(parts) or "None is measured yet."


def priors(path: Path) -> str:
    """The generative models, one line each: of several rows the one with most images, then the latest."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found.sort(key=lambda row: (_images(row), row["date"]))
    text = []
    for row in {row["prior"]: row for row in found}.values():
        minutes = f"{row['training_seconds'] / 60:.1f} minutes on {row['trained_on']}"
        bits = ABSENT
        if "bits_per_dim" in row:
            bits = f"{row['bits_per_dim']:.3f} ± {row['standard_error']:.3f} ({_images(row):,} images)"
        size = f"{row['bytes'] / 1e6:.1f} MB"
        text.append((f"`{row['prior']}`", f"{row['parameters']:,}", size, f"{row['epochs']} epochs, {minutes}", bits))
    return markdown_table(HEAD_OF_PRIORS, text)


def steps(path: Path) -> str:
    """Defense-GAN on training images by generator and settings, one line each."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        own = row["settings"]
        found[row["latent"], own["steps"], own["starts"], own["step_size"]] = row["found"]
    columns = [*next(iter(found.values()))]
    head = ("latent values", "steps", "starts", "step size", *columns)
    text = []
    for settings, values in sorted(found.items()):
        text.append((*(f"{value:g}" for value in settings), *(f"{values[name]:.1f}" for name in columns)))
    return markdown_table(head, text)


def _images(row: dict[str, Any]) -> int:
    """Number of test images in a row of a generative model: 500 for "0..499 of test"."""
    return int(row["images"].split("..")[1].split()[0]) + 1 if "images" in row else 0


def rendered(document: str, rows: Sequence[Row], results: Path) -> str:
    """The page with its numbers rendered from the rows and from the files in `results`."""
    document = with_section(document, "suites", suites(results))
    document = with_section(document, "priors", priors(results / "priors.jsonl"))
    document = with_section(document, "steps", steps(results / "defense-gan-steps.jsonl"))
    return with_section(document, "figures", table([*lines(rows, results)]))
