"""docs/purifiers.md: models behind each purifier, from committed rows and the runs in results/{adaptive,purifiers}."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from soap import recipes
from soap.evaluation import PAPER
from soap.paper.pages.adaptive import CommittedRun, read_run
from soap.paper.row_queries import training_epochs, training_seed
from soap.purifiers import AntiAdversary, Hedge
from soap.recipes import generative
from soap.recipes.purifiers import BY_PRIOR, SOAP_NAME
from soap.report import markdown_table, with_section
from soap.report.accuracy import percent
from soap.results import Row
from soap.specs import UNDEFENDED, DefenceSpec, attack_spec, defence_spec

PURIFIER_TITLES = {
    UNDEFENDED: "none",
    SOAP_NAME: "SOAP",
    "anti-adversary": "anti-adversary",
    "hedge": "Hedge",
    "defense-gan": "Defense-GAN",
    "pixeldefend": "PixelDefend",
}
PURIFIERS_BY_MODEL = {
    "cifar10-resnet18-pgd-at": (UNDEFENDED, "anti-adversary", "hedge", "pixeldefend"),
    "cifar10-resnet18-lc": (UNDEFENDED, SOAP_NAME, "anti-adversary", "hedge", "pixeldefend"),
    "cifar10-resnet18-no-def": (UNDEFENDED, "pixeldefend"),
    "mnist-cnn-no-def": (UNDEFENDED, "defense-gan"),
    "mnist-fcn-no-def": (UNDEFENDED, "defense-gan"),
}
"""Purifiers that are evaluated for each model."""

ADAPTIVE_PURIFIERS = (UNDEFENDED, SOAP_NAME)
"""Purifiers whose runs are in results/adaptive, under the model's name; other runs are in results/purifiers."""

ABSENT = "\N{EN DASH}"
HEAD_OF_PRIORS = ("generative model", "parameters", "file", "training", "bits per dimension of test images")
HEAD = ("model", "purifier", "clean", "PGD, transfer", "worst", "verdict", "images", "cost of an image")


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
        return None if self.run is None else self.run.rows["worst"]

    def cells(self) -> Sequence[str]:
        """Table cells. A failed check voids the worst case. The cost is that of the purifier, under PGD."""
        rows = [row for row in (self.pgd, self.worst) if row is not None]
        worst, verdict, cost = ABSENT, ABSENT, ABSENT
        if self.run is not None:
            row, verdict = self.run.rows["worst"], self.run.verdict
            part = "" if row.attack.suite == "full" else f", {row.attack.suite} alone"
            worst = (percent(row) if self.run.counts else "no number") + part
        if self.pgd is not None and self.purifier != UNDEFENDED:
            cost = f"{1000 * self.pgd.seconds / self.pgd.n:.2g} ms ({self.pgd.provenance.device})"
        return (
            f"`{self.model}`",
            PURIFIER_TITLES[self.purifier],
            *(ABSENT if row is None else percent(row) for row in (self.clean, self.pgd)),
            worst,
            verdict,
            " / ".join(dict.fromkeys(f"{row.n:,}" for row in rows)) or ABSENT,
            cost,
        )


def lines(rows: Sequence[Row], results: Path) -> Iterator[PurifierLine]:
    """Every model with each of its purifiers, measured or not."""
    for model, purifiers in PURIFIERS_BY_MODEL.items():
        for purifier in purifiers:
            defence = label(model, purifier)
            clean, pgd = (_measured(rows, model, attack, defence) for attack in ("none", "pgd"))
            run = _run_on(defence, run_folder(results, model, purifier))
            yield PurifierLine(model=model, purifier=purifier, clean=clean, pgd=pgd, run=run)


def label(model: str, purifier: str) -> DefenceSpec:
    """The purifier with its default settings, as rows store it."""
    if purifier in BY_PRIOR:
        return generative.purifier_spec(generative.read(BY_PRIOR[purifier].prior))
    by_classifier = {"anti-adversary": AntiAdversary, "hedge": Hedge}
    if purifier in by_classifier:
        return defence_spec(by_classifier[purifier](nn.Identity()))
    return recipes.purifier_spec(recipes.read(model), "min-aux" if purifier == SOAP_NAME else UNDEFENDED)


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


def run_folder(results: Path, model: str, purifier: str) -> Path:
    """Folder of the suite's run on a model with a purifier."""
    return runs_folder(results, purifier) / (model if purifier in ADAPTIVE_PURIFIERS else f"{model}-{purifier}")


def _run_on(defence: DefenceSpec, folder: Path) -> CommittedRun | None:
    """The run in a folder, if it is one on this defence; bare rows of a purifier's run do not count."""
    run = read_run(folder) if (folder / "findings.json").is_file() else None
    return run if run is not None and run.rows["worst"].defence == defence else None


def table(made: Sequence[PurifierLine]) -> str:
    """The table and its legend."""
    parts = [markdown_table(HEAD, (line.cells() for line in made))]
    parts.append(f"Per cent right, with 95 % intervals; {ABSENT}: not measured, or there is no such thing.")
    return "\n\n".join(parts)


def suites(results: Path) -> str:
    """Verdict, reasons and command of every run on a purifier other than SOAP."""
    parts = []
    for line in lines([], results):
        if line.run is not None and line.purifier not in ADAPTIVE_PURIFIERS:
            why = "; ".join(line.run.reasons)
            text = f"{line.run.verdict}{': ' if why else ''}{why}. {line.run.origin}: `{line.run.command}`"
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
