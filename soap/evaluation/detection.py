"""Detection: how well a score tells attacked inputs from clean ones, under transfer and adaptive attacks.

A sample counts as correct with rejection if its clean version is accepted and correctly classified, and its attacked
version is rejected or correctly classified. So a rejected clean sample is an error, and an attacked sample is an error
if it is accepted and misclassified. A detector that rejects everything has an accuracy of 0.

Thresholds come from the clean samples themselves. AUROC and TPR count, as adversarial, the samples that the attacked
model classifies correctly when clean and misclassifies when attacked: an attack that failed is not a detection.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated
from soap.attacks import PGD, Attack, LagrangianPGD, OrthogonalPGD, SelectivePGD
from soap.data import Dataset
from soap.data.html_view import html_table
from soap.defence import BARE, DEFENDED, Defence
from soap.detection_scores import ScoreFunction, differentiable_score, score_function
from soap.errors import InputError, unknown
from soap.evaluation.provenance import gather, with_prior
from soap.evaluation.transfer import Watch
from soap.results import Provenance, Row, wilson
from soap.shapes import Float, Tensor
from soap.specs import AttackSpec, attack_spec, defence_spec

PROTOCOL = "detection"
METRIC = "accuracy with rejection"
TRANSFER = "transfer"
DETECTION_ATTACKS = (TRANSFER, "lagrangian", "selective", "orthogonal")
DETECTION_NOTE = (
    "Robust accuracies are upper bounds: a stronger attack can lower them. The AUROC of a transfer attack says nothing "
    "about an attacker who knows the detector."
)
LAMBDAS = (0.1, 1.0, 10.0)
"""Weights of the score in `LagrangianPGD`, in units of the standard deviation of the clean scores."""


@dataclass(frozen=True, kw_only=True)
class DetectionResult:
    """One attack at one false positive rate.

    adaptive: whether the attack knows the detector and the purifier; if False, auroc and tpr are those of a transfer
    attack alone. n_adversarial: samples behind auroc and tpr, which are None without any. clean_accuracy: share of
    clean samples that are accepted and correctly classified. correct: samples of n, as the module defines it.
    """

    attack: str
    adaptive: bool
    auroc: float | None
    fpr: float
    threshold: float
    tpr: float | None
    clean_accuracy: float
    correct: int
    n: int
    n_adversarial: int
    seconds: float

    @property
    def robust_accuracy(self) -> float:
        """Robust accuracy with rejection, in [0, 1]; an upper bound, as under every attack."""
        return self.correct / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the robust accuracy."""
        return wilson(self.correct, self.n)


@dataclass(frozen=True, kw_only=True)
class DetectionReport:
    """Results for every attack and false positive rate, and the typed rows that store them."""

    defence: str
    data: str
    score: str
    eps: float
    results: tuple[DetectionResult, ...]
    rows: tuple[Row, ...]

    def _repr_html_(self) -> str:
        """The results, in notebooks."""
        names = ("attack", "fpr", "auroc", "tpr", "clean_accuracy", "robust_accuracy", "n")
        lines = [{name: getattr(one, name) for name in names} for one in self.results]
        shown = [{k: f"{v:.3g}" if isinstance(v, float) else v for k, v in line.items()} for line in lines]
        return f"<p><b>{escape(self.defence)}, score {escape(self.score)}</b></p>{html_table(shown)}"

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values, without the rows."""
        found = [
            {**asdict(one), "robust_accuracy": one.robust_accuracy, "interval": one.interval} for one in self.results
        ]
        return {"defence": self.defence, "data": self.data, "score": self.score, "eps": self.eps, "results": found}


def evaluate_detection(
    defence: Defence,
    data: Dataset,
    *,
    eps: float,
    score: str | ScoreFunction = "loss",
    fpr: Sequence[float] = (0.01, 0.05),
    attacks: Sequence[str] = DETECTION_ATTACKS,
    rule: str = "straight-through",
    steps: int = 100,
    seed: int = 0,
    batch_size: int = 500,
    watch: Watch = lambda what, done, total: None,
) -> DetectionReport:
    """Measure AUROC, TPR at each `fpr` and robust accuracy with rejection under each attack of radius `eps` (Linf).

    score: see `soap.detection_scores`; a callable of one's own is attacked by its gradient if it has one, and by that
    of the auxiliary loss if not, like all names but "loss". attacks: names of `DETECTION_ATTACKS`; "transfer" is PGD on
    the bare classifier. rule: the gradient rule by which adaptive attacks see the purifier. Steps are 2.5 * eps / steps
    long. seed: of a defence that draws random numbers.
    """
    validate.positive("eps", eps)
    validate.radius(eps)
    validate.at_least("batch_size", batch_size, 1)
    validate.inputs(data.x, defence)
    for name in attacks:
        if name not in DETECTION_ATTACKS:
            raise unknown("attack", name, DETECTION_ATTACKS)
    rule = rule if defence.purifies else DEFENDED
    adaptive, bare = defence.seen_by(rule), defence.seen_by(BARE)
    if adaptive is None or bare is None:
        raise InputError(
            f"the rule {rule!r} does not apply to {defence.name}; use one of {', '.join(defence.rules())}."
        )
    run = _DetectionRun(defence, data, score_function(score, defence.model, defence.purifier), batch_size, seed, watch)
    clean = run.observe(defence, data.x)
    bare_clean = run.observe(bare, data.x)
    thresholds = [threshold_at(clean.score, one) for one in fpr]
    follow = differentiable_score(score, defence.model, defence.purifier, data.x)
    spread = float(clean.score.double().std(correction=0)) or 1.0
    step = {"eps": eps, "step_size": 2.5 * eps / steps, "steps": steps}
    aware: dict[str, Any] = {**step, "score": run.score, "differentiable": None if score == "loss" else follow}
    made: dict[str, Attack] = {
        TRANSFER: PGD(**step),  # type: ignore[arg-type]  # steps is an int
        "lagrangian": LagrangianPGD(**aware, lambdas=tuple(one / spread for one in LAMBDAS)),
        "selective": SelectivePGD(**aware),
        "orthogonal": OrthogonalPGD(**aware),
    }
    label = score if isinstance(score, str) else getattr(score, "__name__", type(score).__name__)
    provenance = with_prior(
        gather(defence.model, data, seed=seed, batch_size=batch_size), defence.model, defence.purifier
    )
    results, rows = [], []
    for name in attacks:
        began, seen = time.monotonic(), bare if name == TRANSFER else adaptive
        x_adv = run.attacked(name, made[name], seen)
        found, origin = run.observe(defence, x_adv), clean
        broken = found.correct.logical_not()
        if name == TRANSFER:
            origin, broken = bare_clean, run.observe(bare, x_adv).correct.logical_not()
        seconds = round(time.monotonic() - began, 3)
        positive = found.score[origin.correct & broken]
        for rate, threshold in zip(fpr, thresholds, strict=True):
            one = DetectionResult(
                attack=name,
                adaptive=name != TRANSFER,
                auroc=auroc(clean.score, positive) if len(positive) else None,
                fpr=rate,
                threshold=threshold,
                tpr=float((positive > threshold).double().mean()) if len(positive) else None,
                clean_accuracy=float((clean.correct & (clean.score <= threshold)).double().mean()),
                correct=int(correct_with_rejection(clean, found, threshold).sum()),
                n=len(data),
                n_adversarial=len(positive),
                seconds=seconds,
            )
            results.append(one)
            spec = attack_spec(name, made[name])
            if one.adaptive:
                spec = replace(spec, steps=tuple(replace(each, rule=rule) for each in spec.steps))
            rows.append(_row(one, spec, run, label, provenance))
    return DetectionReport(
        defence=defence.name, data=data.name, score=label, eps=eps, results=tuple(results), rows=tuple(rows)
    )


@dataclass(frozen=True)
class Observed:
    """What a defence makes of a set of samples: their scores, and which are correctly classified; both [n]."""

    score: Tensor
    correct: Tensor


def auroc(clean: Float[Tensor, "n"], adversarial: Float[Tensor, "m"]) -> float:
    """Return the probability that an adversarial sample has the higher score, ties counted half (Mann-Whitney)."""
    order = clean.double().sort().values
    below = torch.searchsorted(order, adversarial.double(), right=False)
    at_most = torch.searchsorted(order, adversarial.double(), right=True)
    return float((below + at_most).double().mean() / (2 * len(clean)))


def threshold_at(clean: Float[Tensor, "n"], fpr: float) -> float:
    """Return the lowest clean score that at most a share `fpr` of the clean scores exceeds."""
    if not 0 <= fpr < 1:
        raise InputError(f"fpr is {fpr!r}, expected a share of clean samples: at least 0 and below 1.")
    return float(clean.sort(descending=True).values[math.floor(fpr * len(clean) + 1e-9)])


def correct_with_rejection(clean: Observed, attacked: Observed, threshold: float) -> Tensor:
    """Return which samples count as correct (boolean, [n]): accepted and correct when clean, rejected or correct when
    attacked."""
    accepted = clean.score <= threshold
    return accepted & clean.correct & ((attacked.score > threshold) | attacked.correct)


@dataclass(frozen=True)
class _DetectionRun:
    """A defence, the data and the score of one evaluation."""

    defence: Defence
    data: Dataset
    score: ScoreFunction
    batch_size: int
    seed: int
    watch: Watch

    def attacked(self, name: str, attack: Attack, model: nn.Module) -> Tensor:
        """Return all samples after the attack."""
        parts = []
        for rows in self._batches():
            with isolated(self.defence):
                torch.manual_seed(self.seed)
                parts.append(attack(model, self.data.x[rows], self.data.y[rows]))
            self.watch(name, min(rows.stop, len(self.data)), len(self.data))
        return torch.cat(parts)

    def observe(self, model: nn.Module, x: Tensor) -> Observed:
        """Return scores at `x`, and where `model` classifies it correctly."""
        scores, correct = [], []
        for rows in self._batches():
            with isolated(self.defence), torch.no_grad():
                torch.manual_seed(self.seed)
                correct.append(model(x[rows]).argmax(1) == self.data.y[rows])
                scores.append(self.score(x[rows]).detach())
        return Observed(torch.cat(scores), torch.cat(correct))

    def _batches(self) -> Iterator[slice]:
        for first in range(0, len(self.data), self.batch_size):
            yield slice(first, first + self.batch_size)


def _row(one: DetectionResult, spec: AttackSpec, run: _DetectionRun, score: str, provenance: Provenance) -> Row:
    """The typed row of a result; the score and the false positive rate belong to the defence."""
    defence = defence_spec(run.defence.purifier)
    settings = {**defence.settings, "reject": {"score": score, "fpr": one.fpr}}
    measures = {
        "auroc": one.auroc,
        "tpr": one.tpr,
        "threshold": one.threshold,
        "clean_accuracy": one.clean_accuracy,
        "n_adversarial": float(one.n_adversarial),
    }
    return Row(
        protocol=PROTOCOL,
        model=run.defence.name,
        data=run.data.name,
        attack=spec,
        defence=replace(defence, settings=settings),
        n=one.n,
        correct=one.correct,
        seconds=one.seconds,
        provenance=provenance,
        metric=METRIC,
        measures={name: value for name, value in measures.items() if value is not None},
    )
