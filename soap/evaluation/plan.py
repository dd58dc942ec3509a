"""The plan of a suite run: threat, protocols, and the attempts of each protocol in the order in which they run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from soap import validate
from soap.attacks import APGD, PGD, Attack, AutoAttack, AuxiliaryAwarePGD, Noise, Square, StolenCopy
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.defence import BARE, DEFENDED, Defence
from soap.errors import InputError, unknown
from soap.evaluation.provenance import gather
from soap.shapes import Tensor
from soap.specs import AttackStep, DefenceSpec, defence_spec, spec_of

BPDA, START, TRAJECTORY, UNROLLED = "bpda", "bpda-start", "bpda-trajectory", "unrolled"
RULES = {BPDA: "straight-through", START: "start", TRAJECTORY: "iterates", UNROLLED: "unrolled"}
"""Protocols whose attacker knows the purifier, and the gradient rule of `Defence.seen_by` that each uses."""

PROTOCOLS = ("noise", "transfer", "auxiliary-aware", *RULES, "autoattack", "black-box")
SUITES = {"quick": ("noise", "transfer", TRAJECTORY), "full": PROTOCOLS}
"""Suites by name; the name of a protocol is a suite of that protocol alone."""

THROUGH_PURIFIER: tuple[str, ...] = (BPDA, TRAJECTORY, UNROLLED)
"""Protocols whose gradient depends on the output of the purifier."""

ADAPTIVE: tuple[str, ...] = tuple(RULES)
"""Protocols whose attacker knows the purifier."""

RESTARTS = 3
"""Restarts of the adaptive attacks outside the quick suite; with one, SOAP-LC kept half a point more than with two."""

SCALES = (1.0, 3.0, 10.0)
"""Scales of the unrolled surrogate; 0.1 and below are weaker than the transfer attack (measured on MNIST FCN)."""

BETAS = (-1.0, 0.1, 1.0, 10.0, 100.0)

NO_PURIFIER, NO_ITERATES = "no purifier", "purifier without iterates"
NO_TASK, LINF_ONLY, IMAGES_ONLY, NOT_IN_SUITE = "no auxiliary task", "Linf only", "images only", "not in this suite"


@dataclass(frozen=True, kw_only=True)
class Threat:
    """The attacker's limit: a ball of radius `eps` in `norm` ("linf" or "l2"), inside [0, 1]."""

    eps: float
    norm: str = "linf"

    def __post_init__(self) -> None:
        validate.positive("eps", self.eps)
        validate.choice("norm", self.norm, ("linf", "l2"))


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attack of a protocol. rule: the gradient rule through which it sees the defence; scale: of "unrolled"."""

    protocol: str
    name: str
    attack: Attack
    rule: str
    scale: float = 1.0

    def seen(self, defence: Defence) -> nn.Module:
        """The defence as the attempt sees it."""
        model = defence.seen_by(self.rule, scale=self.scale)
        if model is None:
            raise InputError(f"{self.name} needs the gradient rule {self.rule}, which {defence.name} does not have.")
        return model

    @property
    def step(self) -> AttackStep:
        """The attempt as plans and rows store it."""
        made = spec_of(self.attack)
        scale = self.scale if self.rule == RULES[UNROLLED] else None
        return AttackStep(name=made.name, settings=made.settings, rule=self.rule, scale=scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRun:
    """A suite run before it starts: the defence, the data and the attempts."""

    defence: Defence
    data: Dataset
    threat: Threat
    suite: str
    attempts: Sequence[Attempt]
    batch: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        validate.at_least("batch", self.batch, 1)

    def data_at(self, rows: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Images and labels with these numbers."""
        index = torch.from_numpy(rows).to(self.data.x.device)
        return self.data.x[index], self.data.y[index]

    @cached_property
    def content(self) -> dict[str, Any]:
        """All that the result depends on, as JSON: runs with equal content are the same run. Hashes the weights."""
        provenance = gather(self.defence.seen_by(DEFENDED) or self.defence, self.data, seed=self.seed, batch=self.batch)
        data, defence = self.data, self.defence
        return {
            "target": {"name": defence.name, "defence": asdict(suite_defence_spec(defence))},
            "threat": asdict(self.threat),
            "suite": self.suite,
            "data": {"name": data.name, "split": data.split, "n": len(data), "sha256": data.sha256},
            "classes": list(data.classes),
            "attempts": [
                {"protocol": one.protocol, "name": one.name, "attack": asdict(one.step)} for one in self.attempts
            ],
            "left_out": left_out(defence, self.threat, self.attempts, images=data.x.ndim == 4),
            "separable": defence.classifier is not None,
            "purifies": defence.purifies,
            "batch": self.batch,
            "seed": self.seed,
            "weights_sha256": provenance.weights_sha256,
            "provenance": asdict(provenance),
        }


def suite_defence_spec(defence: Defence) -> DefenceSpec:
    """The defence as rows store it; a network that may purify inside is named by its module."""
    if defence.classifier is None:
        return DefenceSpec(name="inside", settings={"module": defence.name})
    return defence_spec(defence.purifier)


def plan_attempts(
    defence: Defence,
    threat: Threat,
    suite: str,
    *,
    steps: int = 100,
    queries: int = 1000,
    images: bool = True,
    classes: int = 10,
) -> list[Attempt]:
    """The attempts of a suite that apply to the defence, protocol by protocol.

    steps: of every iterative attack. queries: of Square and of the substitute. images: whether inputs have channels,
    height and width, which AutoAttack and Square need. classes: of the defence.
    """
    validate.at_least("steps", steps, 1)
    validate.at_least("queries", queries, 1)
    wanted, restarts = protocols(suite), 1 if suite == "quick" else RESTARTS
    planned = [
        Attempt(protocol=protocol, name=name, attack=attack, rule=rule, scale=scale)
        for protocol in wanted
        if not _obstacle(protocol, defence, threat, images)
        for name, attack, rule, scale in _of_protocol(protocol, threat, steps, queries, restarts, classes)
        if images or not isinstance(attack, Square)
    ]
    if not planned:
        why = "; ".join(f"{protocol}: {_obstacle(protocol, defence, threat, images)}" for protocol in wanted)
        raise InputError(f"suite {suite!r} has no attack on {defence.name} ({why}); choose another, e.g. 'quick'.")
    return planned


def protocols(suite: str) -> tuple[str, ...]:
    """The protocols of a suite, in the order in which they run."""
    known = {**SUITES, **{name: (name,) for name in PROTOCOLS}}
    if suite not in known:
        raise unknown("suite", suite, known)
    return known[suite]


def left_out(defence: Defence, threat: Threat, planned: Sequence[Attempt], *, images: bool = True) -> dict[str, str]:
    """Protocols without an attempt, each with the reason; images: as in `plan_attempts`."""
    missing = [name for name in PROTOCOLS if name not in {attempt.protocol for attempt in planned}]
    return {name: _obstacle(name, defence, threat, images) or NOT_IN_SUITE for name in missing}


def _obstacle(protocol: str, defence: Defence, threat: Threat, images: bool) -> str:
    """The reason why a protocol does not apply to the defence; empty where it does."""
    if protocol in RULES and RULES[protocol] not in defence.rules():
        return NO_ITERATES if defence.purifies else NO_PURIFIER
    if protocol == "auxiliary-aware":
        if not isinstance(defence.classifier, JointModel) or not defence.classifier.purifiable:
            return NO_TASK
        return LINF_ONLY if threat.norm != "linf" else ""
    return IMAGES_ONLY if protocol == "autoattack" and not images else ""


def _of_protocol(
    protocol: str, threat: Threat, steps: int, queries: int, restarts: int, classes: int
) -> list[tuple[str, Attack, str, float]]:
    """(name, attack, rule, scale) of each attempt of a protocol."""
    eps, norm = threat.eps, threat.norm

    # An attack on the defence stops at a sample once it is misclassified. An attack on the classifier goes on, since
    # its result is purified afterwards.
    knows = protocol in ADAPTIVE
    again = restarts if knows and protocol != UNROLLED else 1  # "unrolled" starts again with each scale
    apgd = partial(APGD, eps=eps, norm=norm, leave_when_fooled=knows, restarts=again)
    losses = {"ce": apgd(loss="ce", steps=steps), "margin": apgd(loss="margin", steps=steps)}
    if classes >= 4:
        losses["targeted dlr"] = apgd(loss="targeted-dlr", targets=3, steps=steps)
    elif classes == 3:  # targeted DLR needs four classes
        losses["targeted margin"] = apgd(loss="targeted-margin", targets=2, steps=steps)
    if protocol == "noise":
        return [("random points", Noise(eps=eps, norm=norm, draws=20), DEFENDED, 1.0)]
    if protocol == "transfer":
        pgd = PGD(eps=eps, norm=norm, step_size=eps / 4, steps=20)
        return [("pgd", pgd, BARE, 1.0), *((f"apgd {name}", attack, BARE, 1.0) for name, attack in losses.items())]
    if protocol == "auxiliary-aware":
        aware = [AuxiliaryAwarePGD(eps=eps, step_size=eps / 10, steps=steps, beta=b, keep="best") for b in BETAS]
        return [(f"beta {attack.beta:g}", attack, BARE, 1.0) for attack in aware]
    if protocol == UNROLLED:
        short = {name: apgd(loss=name, steps=-(-steps // 2)) for name in ("ce", "margin")}
        return [(f"apgd {n}, scale {s:g}", a, RULES[UNROLLED], s) for s in SCALES for n, a in short.items()]
    if knows:
        return [(f"apgd {name}", attack, RULES[protocol], 1.0) for name, attack in losses.items()]
    if protocol == "autoattack":
        standard = AutoAttack(eps=eps, norm=norm)
        return [("on the classifier", standard, BARE, 1.0), ("on the defence", standard, DEFENDED, 1.0)]
    copied = StolenCopy(eps=eps, norm=norm, queries=max(2, queries), steps=steps)
    square = [("square", Square(eps=eps, queries=queries), DEFENDED, 1.0)] if norm == "linf" else []
    return [("substitute", copied, DEFENDED, 1.0), *square]
