"""The plan of a suite run: the attempts that apply to a defence, in the order in which they run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from soap import validate
from soap.attacks import Attack
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.defence import DEFENDED, Defence
from soap.errors import InputError, unknown
from soap.evaluation.cascade import first_order
from soap.evaluation.protocols import (
    AUTOATTACK_NORMS,
    CLASSIFIER,
    DEFAULT_EFFORT,
    ENDS,
    EXACT,
    EXTRA,
    PROTOCOLS,
    RELAXED,
    RULES,
    STRENGTH,
    SUITES,
    SURROGATE,
    AttackPlan,
    Attempt,
    Effort,
    Threat,
)
from soap.evaluation.provenance import gather
from soap.gradient_rules import GradientProbe, fit_surrogate
from soap.shapes import Tensor
from soap.specs import DefenceSpec, defence_spec

NO_PURIFIER, NO_ITERATES = "no purifier", "purifier without iterates"
NOT_EXACT, NOT_RELAXED = "no exact gradient", "no rounding or cut of the graph to pass"
NOT_BY_VALUE = "the purifier does not change each value by itself"
NO_TASK, LINF_ONLY, IMAGES_ONLY, NOT_IN_SUITE = "no auxiliary task", "Linf only", "images only", "not in this suite"
NOT_IN_NORM, NOT_GIVEN = "not in this norm", "no attack given"

NOT_APPLICABLE = (NO_PURIFIER, NO_ITERATES, NOT_EXACT, NOT_RELAXED, NOT_BY_VALUE, NOT_GIVEN)
"""Reasons for which a complete suite leaves out a protocol."""

NORMS = {"auxiliary-aware": ("linf",), ENDS: ("linf",), "substitute": ("linf", "l2"), "noise": ("linf", "l2")}
NORMS |= {"autoattack": AUTOATTACK_NORMS, **dict.fromkeys(("square", "decision"), ("linf", "l2"))}
"""Norms of the protocols that do not have all."""

NOT_PROBED = GradientProbe(
    random=False,
    exact=False,
    reason="",
    repeatable=True,
    spread=0.0,
    samples=0,
    samples_with_gradient=0,
    precision="",
    errors=(),
)
"""The probe of a defence that is treated as deterministic, without an exact gradient."""

SUITE_BATCH = 250
EVALUATION_DRAWS = 50
"""Draws of a random defence that select among attacked versions, and as many that report: 0.5 points of error."""

FIT_IMAGES = 1000
"""Images on which the imitation of a purifier is trained."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRun:
    """A suite run before it starts: the defence, the data and the attempts.

    probe: whether the defence is random and its gradient exact. draws: how often a random defence classifies each
    attacked image, once to select the worst and once to report.
    shard: (i, n) for part i of n, counted from 0; the data are still those of the whole run.
    headline: whether the attempts are one cascade, see `soap.evaluation.cascade`.
    """

    defence: Defence
    data: Dataset
    threat: Threat
    suite: str
    attempts: Sequence[Attempt]
    probe: GradientProbe = NOT_PROBED
    draws: int = EVALUATION_DRAWS
    batch_size: int = SUITE_BATCH
    seed: int = 0
    shard: tuple[int, int] | None = None
    headline: bool = False

    def __post_init__(self) -> None:
        validate.at_least("batch_size", self.batch_size, 1)
        validate.at_least("draws", self.draws, 2)
        if self.shard is not None:
            check_shard(self.shard, -(-len(self.data) // self.batch_size))
        if self.headline and self.random:
            raise InputError(
                f"headline: {self.defence.name} is random, so one success does not break an image, and a cascade would "
                "leave out attacks that lower its accuracy; run the suite without headline."
            )

    @property
    def random(self) -> bool:
        """Whether the defence is random."""
        return self.probe.random

    @property
    def evaluation_draws(self) -> int:
        """Draws that select and draws that report for each image; 1 for a deterministic defence."""
        return self.draws if self.random else 1

    def data_at(self, rows: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Images and labels with these numbers."""
        index = torch.from_numpy(rows).to(self.data.x.device)
        return self.data.x[index], self.data.y[index]

    def seen(self, attempt: Attempt) -> nn.Module:
        """The defence as an attempt sees it."""
        imitation = self.imitation if attempt.rule == SURROGATE else None
        return attempt.seen(self.defence, imitation, random=self.random)

    @cached_property
    def imitation(self) -> nn.Module:
        """A network that imitates the purifier, trained on the first images; it depends on the plan alone."""
        if self.defence.purifier is None:
            raise InputError(f"{self.defence.name} has no purifier to imitate; leave out the protocol {SURROGATE}.")
        return fit_surrogate(
            self.defence.purifier,
            self.data.x[:FIT_IMAGES],
            eps=self.threat.eps,
            norm=self.threat.norm,
            seed=self.seed,
            classifier=self.defence.classifier,
        )

    @cached_property
    def content(self) -> dict[str, Any]:
        """All that the result depends on, as JSON: runs with equal content are the same run. Hashes the weights."""
        provenance = gather(
            self.defence.seen_by(DEFENDED) or self.defence, self.data, seed=self.seed, batch_size=self.batch_size
        )
        data, defence = self.data, self.defence
        return {
            "target": {"name": defence.name, "defence": asdict(suite_defence_spec(defence))},
            "threat": asdict(self.threat),
            "suite": self.suite,
            "data": {"name": data.name, "split": data.split, "n": len(data), "sha256": data.sha256},
            "classes": list(data.classes),
            "attempts": [
                {"protocol": one.protocol, "name": one.name, "attack": asdict(one.step)}
                | ({"unless_converged": True} if one.unless_converged else {})
                for one in self.attempts
            ],
            "left_out": left_out(defence, self.threat, self.attempts, probe=self.probe, images=data.x.ndim == 4),
            "separable": defence.classifier is not None,
            "purifies": defence.purifies,
            "random": self.random,
            "exact": self.probe.exact,
            "gradient": self.probe.reason,
            "draws": self.evaluation_draws,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "weights_sha256": provenance.weights_sha256,
            "provenance": asdict(provenance),
            **({"cascade": first_order(self.attempts)} if self.headline else {}),
            **({} if self.shard is None else {"shard": {"index": self.shard[0], "count": self.shard[1]}}),
        }


def check_shard(shard: tuple[int, int], batches: int) -> None:
    """Raise unless the shard is one of at most `batches` shards: an empty shard is a mistake."""
    index, count = shard
    if not 0 <= index < count:
        raise InputError(f"shard is {index}/{count}, expected 0/{count} to {count - 1}/{count}: shards count from 0.")
    if count > batches:
        raise InputError(
            f"{count} shards of {batches} batches: a shard would have no images; use at most {batches} shards, or a "
            "smaller batch."
        )


def suite_defence_spec(defence: Defence) -> DefenceSpec:
    """The defence as rows store it; a network that may purify inside is named by its module."""
    if defence.classifier is None:
        return DefenceSpec(name="inside", settings={"module": defence.name})
    return defence_spec(defence.purifier)


def plan_run(
    defence: Defence,
    data: Dataset,
    threat: Threat,
    suite: str,
    effort: Effort,
    extra: Sequence[Attack],
    **settings: Any,
) -> PlannedRun:
    """The run of a suite; the defence is tried on the data. settings: the other fields of the run, e.g. batch_size."""
    if getattr(defence.purifier, "eps", None) == "oracle":
        raise InputError("eps='oracle' needs the true label, so it is not a defence; evaluate eps='min-aux'.")
    validate.inputs(data.x, defence.classifier)
    probe = defence.probe(data.x)
    images, classes = data.x.ndim == 4, defence.classes(data.x)
    attempts = plan_attempts(
        defence, threat, suite, probe=probe, effort=effort, extra=extra, images=images, classes=classes
    )
    return PlannedRun(
        defence=defence, data=data, threat=threat, suite=suite, attempts=attempts, probe=probe, **settings
    )


def plan_attempts(
    defence: Defence,
    threat: Threat,
    suite: str,
    *,
    probe: GradientProbe = NOT_PROBED,
    effort: Effort = DEFAULT_EFFORT,
    extra: Sequence[Attack] = (),
    images: bool = True,
    classes: int = 10,
) -> list[Attempt]:
    """The attempts of a suite that apply to the defence, protocol by protocol.

    probe: what `Defence.probe` found. extra: the user's attacks. images: whether inputs have channels, height and
    width, which AutoAttack and Square need. classes: of the defence.
    """
    wanted, rule = protocols(suite), strongest_rule(defence, probe)
    if suite == "quick":
        used = (EXACT if rule == DEFENDED else rule, ENDS)
        wanted = tuple(name for name in wanted if name not in RULES or name in used)
    made = AttackPlan(
        threat=threat,
        effort=effort,
        strongest=rule,
        purifies=defence.purifies,
        random=probe.random,
        classes=classes,
        images=images,
        thorough=suite != "quick",
    )
    why = {protocol: _obstacle(protocol, defence, threat, probe, images) for protocol in wanted}
    planned = [attempt for protocol in wanted if not why[protocol] for attempt in made.attempts(protocol)]
    planned += made.extra(extra)
    if not planned:
        reasons = "; ".join(f"{protocol}: {reason}" for protocol, reason in why.items())
        raise InputError(f"suite {suite!r} has no attack on {defence.name} ({reasons}); choose another, e.g. 'quick'.")
    return planned


def strongest_rule(defence: Defence, probe: GradientProbe) -> str:
    """The strongest gradient rule that applies to the defence; "defended" if autograd of the whole is all there is."""
    known = defence.rules(probe)
    if not defence.purifies:
        return RELAXED if RELAXED in known else DEFENDED
    return next(rule for rule in STRENGTH if rule in known)


def protocols(suite: str) -> tuple[str, ...]:
    """The protocols of a suite, in the order in which they run."""
    known = {**SUITES, **{name: (name,) for name in PROTOCOLS}}
    if suite not in known:
        expected = f"Expected {' or '.join(SUITES)}, or one protocol: {', '.join(PROTOCOLS)}."
        raise InputError(f"{unknown('suite', suite, SUITES)} {expected}")
    return known[suite]


def left_out(
    defence: Defence,
    threat: Threat,
    planned: Sequence[Attempt],
    *,
    probe: GradientProbe = NOT_PROBED,
    images: bool = True,
) -> dict[str, str]:
    """Protocols without an attempt, each with the reason; probe, images: as in `plan_attempts`."""
    made = {attempt.protocol for attempt in planned}
    return {
        name: _obstacle(name, defence, threat, probe, images) or NOT_IN_SUITE for name in PROTOCOLS if name not in made
    }


def _obstacle(protocol: str, defence: Defence, threat: Threat, probe: GradientProbe, images: bool) -> str:
    """The reason why a protocol does not apply to the defence; empty where it does."""
    if threat.norm not in NORMS.get(protocol, (threat.norm,)):
        return LINF_ONLY if NORMS[protocol] == ("linf",) else NOT_IN_NORM
    if protocol == EXACT and not probe.exact:
        return NOT_EXACT
    if protocol == EXACT:
        return "" if defence.purifies or probe.random else NO_PURIFIER  # without a purifier transfer is exact
    if protocol == ENDS:
        return NO_PURIFIER if not defence.purifies else "" if probe.by_value else NOT_BY_VALUE
    if protocol == RELAXED:
        return "" if RELAXED in defence.rules(probe) else NOT_RELAXED
    if protocol in RULES or protocol == CLASSIFIER:
        if not defence.purifies:
            return NO_PURIFIER
        return NO_ITERATES if protocol in RULES and protocol not in defence.rules() else ""
    if protocol == "auxiliary-aware":
        return "" if isinstance(defence.classifier, JointModel) and defence.classifier.purifiable else NO_TASK
    if protocol == EXTRA:
        return NOT_GIVEN
    return IMAGES_ONLY if protocol in ("autoattack", "square") and not images else ""
