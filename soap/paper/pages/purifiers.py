"""Render the table of docs/purifiers.md from the committed rows and the runs under results/adaptive and purifiers.

python tools/render_purifiers.py
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from render_adaptive import origin
from torch import nn

from soap import paper, recipes
from soap.evaluation import PAPER
from soap.evaluation.adaptive.verdict import NOTHING
from soap.paper.planning import seed_of
from soap.purifiers import AntiAdversary, Hedge
from soap.recipes import generative
from soap.recipes.naming import BARE, defence_by
from soap.recipes.purifiers import BY_PRIOR, SOAP_NAME
from soap.report import markdown_table, with_section
from soap.report.accuracy import percent
from soap.report.comparison import epochs
from soap.results import Row, Store

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "purifiers.md", ROOT / "results"
PRIORS, STEPS = (ROOT / "results" / f"{name}.jsonl" for name in ("priors", "defense-gan-steps"))
TITLES = {
    BARE: "none",
    SOAP_NAME: "SOAP_NAME",
    "anti-adversary": "anti-adversary",
    "hedge": "Hedge",
    "defense-gan": "Defense-GAN",
    "pixeldefend": "PixelDefend",
}
SUBJECTS = {
    "cifar10-resnet18-pgd-at": (BARE, "anti-adversary", "hedge", "pixeldefend"),
    "cifar10-resnet18-lc": (BARE, SOAP_NAME, "anti-adversary", "hedge", "pixeldefend"),
    "cifar10-resnet18-no-def": (BARE, "pixeldefend"),
    "mnist-cnn-no-def": (BARE, "defense-gan"),
    "mnist-fcn-no-def": (BARE, "defense-gan"),
}
"""Models, and the purifiers that are put before each."""

OWN = (BARE, SOAP_NAME)
"""Purifiers whose runs are kept whole, with their pages, under the model's own name."""

ABSENT = "\N{EN DASH}"
HEAD_OF_PRIORS = ("generative model", "parameters", "file", "training", "bits per dimension of test images")
HEAD = ("model", "purifier", "clean", "PGD, transfer", "worst", "verdict", "images", "cost of an image")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A model behind a purifier: rows of the transfer protocol, and the worst case of its suite with the verdict."""

    model: str
    purifier: str
    clean: Row | None
    pgd: Row | None
    worst: Row | None
    verdict: str

    def cells(self) -> Sequence[str]:
        """What the table shows of it: no worst case where a check fails; the cost is the purifier's own, under PGD."""
        images = [f"{row.n:,}" for row in (self.pgd, self.worst) if row is not None]
        return (
            f"`{self.model}`",
            TITLES[self.purifier],
            *(_percent(row) for row in (self.clean, self.pgd)),
            (_percent(self.worst) if self.verdict != NOTHING else "no figure") + _of_which_suite(self.worst),
            self.verdict or ABSENT,
            " / ".join(dict.fromkeys(images)) or ABSENT,
            _cost(self.pgd if self.purifier != BARE else None),
        )


def lines(rows: Sequence[Row], results: Path = RESULTS) -> Iterator[Line]:
    """Every model behind every purifier, whether it was measured or not."""
    for model, purifiers in SUBJECTS.items():
        for purifier in purifiers:
            defence = label(model, purifier)
            clean, pgd = (_measured(rows, model, attack, defence) for attack in ("none", "pgd"))
            worst, verdict = _suite(defence, run_of(results, model, purifier))
            yield Line(model=model, purifier=purifier, clean=clean, pgd=pgd, worst=worst, verdict=verdict)


def label(model: str, purifier: str) -> str:
    """What rows call the purifier with its own settings."""
    if purifier in BY_PRIOR:
        return defence_by(generative.read(BY_PRIOR[purifier].prior))
    by_classifier = {"anti-adversary": AntiAdversary, "hedge": Hedge}
    if purifier in by_classifier:
        return repr(by_classifier[purifier](nn.Identity()))
    return recipes.defence(recipes.read(model), "min-aux" if purifier == SOAP_NAME else BARE)


def _measured(rows: Sequence[Row], model: str, attack: str, defence: str) -> Row | None:
    """The row of the first training with the most images, the longest and latest, under the paper's attack."""
    data = recipes.read(model).data
    wanted = ("transfer", model, data, repr(PAPER[data][attack]), defence)
    found = [row for row in rows if (row.protocol, row.model, row.data, row.settings, row.defence) == wanted]
    first = [row for row in found if seed_of(row) == 0]
    return max(first, key=lambda row: (row.n, epochs(row) or 0, row.provenance.date), default=None)


def room_of(results: Path, purifier: str) -> Path:
    """Where the suite's runs on a purifier are kept."""
    return results / ("adaptive" if purifier in OWN else "purifiers")


def run_of(results: Path, model: str, purifier: str) -> Path:
    """Where the suite's run on a model behind a purifier is kept."""
    return room_of(results, purifier) / (model if purifier in OWN else f"{model}-{purifier}")


def _suite(defence: str, folder: Path) -> tuple[Row | None, str]:
    """The worst case of a suite and its verdict; the bare figures of a purifier's run are not its own."""
    if not (folder / "findings.json").is_file():
        return None, ""
    rows = Store(folder / "rows.jsonl").read()
    if defence == BARE and any(row.defence != BARE for row in rows):
        return None, ""
    found = [row for row in rows if row.defence == defence and row.attack.endswith(": worst")]
    verdict = json.loads((folder / "findings.json").read_text(encoding="utf-8"))["verdict"]["name"]
    return (found[0], verdict) if found else (None, "")


def _percent(row: Row | None) -> str:
    return ABSENT if row is None else percent(row)


def _of_which_suite(row: Row | None) -> str:
    """What part of the suite was run, where it is not all of it: rows say "suite bpda: worst"."""
    suite = "full" if row is None else row.attack.removeprefix("suite ").partition(":")[0]
    return "" if suite == "full" else f", {suite} alone"


def _cost(row: Row | None) -> str:
    return ABSENT if row is None else f"{1000 * row.seconds / row.n:.2g} ms ({row.provenance.device})"


def table(made: Sequence[Line]) -> str:
    """The table, and what it does not have yet."""
    parts = [markdown_table(HEAD, (line.cells() for line in made))]
    parts.append(f"Per cent right, with 95 % intervals; {ABSENT}: not measured, or there is no such thing.")
    return "\n\n".join(parts)


def suites(results: Path = RESULTS) -> str:
    """Of every run on another purifier than SOAP, what its verdict rests on, and its command."""
    parts = []
    for model, purifiers in SUBJECTS.items():
        for purifier in purifiers:
            folder = run_of(results, model, purifier)
            worst, verdict = _suite(label(model, purifier), folder)
            if purifier in OWN or worst is None:
                continue
            findings, asked = (
                json.loads((folder / name).read_text(encoding="utf-8")) for name in ("findings.json", "asked.json")
            )
            why = "; ".join(findings["verdict"]["reasons"])
            said = f"{verdict}{': ' if why else ''}{why}. {origin(worst, folder)}: `{asked['command']}`"
            parts.append(f"- `{model}`, {TITLES[purifier]}: {said}")
    return "\n".join(parts) or "None is measured yet."


def priors(path: Path = PRIORS) -> str:
    """The generative models, a line each: of several rows the one with the most images, and the latest."""
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


def steps(path: Path = STEPS) -> str:
    """Defense-GAN on training images by its generator and settings, a line each."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        settings = (row["settings"][name] for name in ("steps", "starts", "step_size"))
        found[row["latent"], *settings] = row["found"]
    columns = [*next(iter(found.values()))]
    head = ("latent values", "steps", "starts", "step size", *columns)
    text = []
    for settings, values in sorted(found.items()):
        text.append((*(f"{value:g}" for value in settings), *(f"{values[name]:.1f}" for name in columns)))
    return markdown_table(head, text)


def _images(row: dict[str, str]) -> int:
    """How many test images a row of a generative model is of: "0..499 of test" are 500."""
    return int(row["images"].split("..")[1].split()[0]) + 1 if "images" in row else 0


def rendered(document: str) -> str:
    """The page with its figures as the rows have them."""
    document = with_section(document, "suites", suites())
    document = with_section(document, "priors", priors())
    document = with_section(document, "steps", steps())
    return with_section(document, "figures", table([*lines(paper.committed_rows())]))


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
