"""The protocols of the suite and their attacks: who attacks, through which gradient rule, with how much effort."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from soap import validate
from soap.attacks import (
    APGD,
    PGD,
    Attack,
    AutoAttack,
    AuxiliaryAwarePGD,
    DecayingPGD,
    HopSkipJump,
    Noise,
    PurifiedEnds,
    RayS,
    Square,
    StolenCopy,
)
from soap.attacks.losses import TARGETED
from soap.balls import BALLS
from soap.defence import BARE, DEFENDED, Defence
from soap.errors import InputError
from soap.gradient_rules import MeanOverDraws
from soap.specs import AttackStep, spec_of

RULES = STRAIGHT_THROUGH, START, ITERATES, UNROLLED, RELAXED, ENDS, EXACT, SURROGATE = (
    "straight-through", "start", "iterates", "unrolled", "relaxed", "ends", "exact", "surrogate",
)  # fmt: skip
"""Protocols whose attacker knows the purifier; each has the name of the gradient rule that it uses. The gradient of
"ends" belongs to its attack, `PurifiedEnds`."""

CLASSIFIER, EXTRA = "classifier", "extra"
"""Protocols that complete the bare classifier's own worst case, and that run the user's attacks."""

PROTOCOLS = (
    "noise", "transfer", "auxiliary-aware", STRAIGHT_THROUGH, START, ITERATES, UNROLLED, RELAXED, ENDS, EXACT,
    "autoattack",
    "substitute", "square", SURROGATE, "decision", CLASSIFIER, EXTRA,
)  # fmt: skip
"""All protocols, in the order in which they run."""

SUITES = {"quick": ("noise", "transfer", *RULES, "square", CLASSIFIER), "full": PROTOCOLS}
"""Suites by name; the name of a protocol is a suite of that protocol alone. Of the rules, quick uses the strongest."""

STRENGTH = (EXACT, RELAXED, ITERATES, STRAIGHT_THROUGH)
"""Gradient rules from the strongest to the weakest, among those that give every purifier one."""

THROUGH_PURIFIER: tuple[str, ...] = (STRAIGHT_THROUGH, ITERATES, UNROLLED, RELAXED, ENDS, EXACT, SURROGATE)
"""Protocols whose gradient depends on the output of the purifier."""

QUERIES_ONLY = ("substitute", "square", "decision")
"""Protocols that use the outputs of the defence alone."""

SCALES = (1.0, 3.0, 10.0)
"""Scales of the unrolled surrogate; 0.1 and below are weaker than the transfer attack (measured on MNIST FCN)."""

AUTOATTACK_NORMS = ("linf", "l2")

BETAS = (-1.0, 0.1, 1.0, 10.0, 100.0)

FEW_DRAWS = 4
"""Draws that attacks without gradients, and rules other than the strongest, average over on a random defence."""

MORE_DRAWS = (2, 4)
"""Multiples of the last number of draws that follow: twice always, four times where twice lowered accuracy."""

AUTOATTACK_PASSES = 2 * (1 + 9 + 9) * 100 + 5000
"""Passes of AutoAttack on an image that it does not break: APGD, targeted APGD and FAB for 9 classes, and Square."""

HALF_A_POINT = 0.005
"""Change of accuracy below which more effort does not count."""

EOT_SETTING = "eot"
"""The setting of a stored attempt that holds its number of draws."""


@dataclass(frozen=True, kw_only=True)
class Threat:
    """The attacker's limit: a ball of radius `eps` in `norm` ("linf", "l2" or "l1"), inside [0, 1]."""

    eps: float
    norm: str = "linf"

    def __post_init__(self) -> None:
        validate.positive("eps", self.eps)
        validate.choice("norm", self.norm, tuple(BALLS))
        validate.radius(self.eps, self.norm)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """steps: of every iterative attack. queries: of each attack without gradients. restarts: of the adaptive attacks.

    draws: how many draws of a random defence the adaptive attacks average their gradient over, one attempt for each.
    Twice the last follows, and four times for batches whose accuracy twice still lowered by half a point.
    """

    steps: int
    queries: int
    restarts: int
    draws: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("steps", "queries", "restarts"):
            validate.at_least(name, getattr(self, name), 1)
        for draws in self.draws:
            validate.at_least("draws", draws, 1)

    def changed(self, *, draws: int | None = None, **settings: int | None) -> "Effort":
        """The effort with those of the settings that are given (not None). draws: the last of the sweep."""
        sweep = self.draws if draws is None else (*(each for each in self.draws if each < draws), draws)
        return replace(self, draws=sweep, **{name: value for name, value in settings.items() if value is not None})


DEFAULT_EFFORT = Effort(steps=100, queries=1000, restarts=3, draws=(1, 4, 16))
"""AutoAttack's own Square uses 5,000 queries. With one restart, SOAP-LC kept half a point more than with two."""

QUICK_EFFORT = Effort(steps=30, queries=100, restarts=1, draws=(8,))


def default_effort(suite: str) -> Effort:
    """The effort of a suite where the caller gives none."""
    return QUICK_EFFORT if suite == "quick" else DEFAULT_EFFORT


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attack of a protocol. rule: the gradient rule through which it sees the defence; scale: of "unrolled".

    draws: of a random defence, over which logits and gradient are averaged. unless_converged: attack only batches in
    which the attempt before this one lowered the accuracy by half a point.
    """

    protocol: str
    name: str
    attack: Attack
    rule: str
    scale: float = 1.0
    draws: int = 1
    unless_converged: bool = False

    def seen(self, defence: Defence, imitation: nn.Module | None = None, *, random: bool = False) -> nn.Module:
        """The defence as the attempt sees it. imitation: of the purifier, for the rule "surrogate".

        random: whether the defence is. Attacks restore the random state after each gradient, so a random defence
        needs seeds of its own, or every step of an attack would see the same draw.
        """
        model = defence.seen_by(self.rule, scale=self.scale, draws=self.draws, imitation=imitation)
        if model is None:
            raise InputError(f"{self.name} needs the gradient rule {self.rule}, which {defence.name} does not have.")
        if random and self.draws == 1 and (self.rule != BARE or not defence.purifies):
            return MeanOverDraws(model, 1)
        return model

    @property
    def passes(self) -> int:
        """Forward and backward passes, about, for an image that the attack does not break; 1 for a user's attack."""
        attack = self.attack
        if self.protocol == EXTRA:
            return 1
        if isinstance(attack, AutoAttack):
            return AUTOATTACK_PASSES
        runs = getattr(attack, "restarts", 1)
        if isinstance(attack, APGD) and attack.loss in TARGETED:
            runs *= attack.targets
        return sum(
            [2 * runs * getattr(attack, "steps", 0), getattr(attack, "queries", 0), getattr(attack, "draws", 0)], 1
        )

    @property
    def step(self) -> AttackStep:
        """The attempt as plans and rows store it."""
        made = spec_of(self.attack)
        settings = made.settings if self.draws == 1 else {**made.settings, EOT_SETTING: self.draws}
        scale = self.scale if self.rule == UNROLLED else None
        return AttackStep(name=made.name, settings=settings, rule=self.rule, scale=scale)


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """What the attacks of a protocol depend on. strongest: the strongest gradient rule that applies to the defence.

    purifies: whether a purifier is known. random: whether the defence is random. classes: of the defence. images:
    whether inputs have channels, height and width. thorough: whether AutoAttack completes the classifier's worst case.
    """

    threat: Threat
    effort: Effort
    strongest: str
    purifies: bool
    random: bool
    classes: int = 10
    images: bool = True
    thorough: bool = True

    @property
    def few_draws(self) -> int:
        """Draws of an attempt that does not sweep over draws."""
        return min(FEW_DRAWS, max(self.effort.draws)) if self.random else 1

    def attempts(self, protocol: str) -> list[Attempt]:
        """The attempts of a protocol, in the order in which they run."""
        make = partial(Attempt, protocol=protocol)
        eps, norm, steps = self.threat.eps, self.threat.norm, self.effort.steps
        if protocol == ENDS:
            attack = PurifiedEnds(eps=eps, steps=steps, restarts=self.effort.restarts)
            return [make(name="margin and targets", attack=attack, rule=DEFENDED)]
        if protocol in RULES:
            return self._by_rule(protocol)
        if protocol == "noise":
            return [make(name="random points", attack=Noise(eps=eps, norm=norm, draws=20), rule=DEFENDED)]
        if protocol == "transfer":
            pgd = PGD(eps=eps, norm=norm, step_size=eps / 4, steps=20)
            attacks = {"pgd": pgd, **{f"apgd {name}": attack for name, attack in self._apgd().items()}}
            draws = 1 if self.purifies else self.few_draws  # without a purifier, the classifier is the random part
            return [make(name=name, attack=attack, rule=BARE, draws=draws) for name, attack in attacks.items()]
        if protocol == "auxiliary-aware":
            aware = [AuxiliaryAwarePGD(eps=eps, step_size=eps / 10, steps=steps, beta=b, keep="best") for b in BETAS]
            return [make(name=f"beta {attack.beta:g}", attack=attack, rule=BARE) for attack in aware]
        if protocol == "autoattack":
            return self._autoattack()
        if protocol == "substitute":
            copied = StolenCopy(eps=eps, norm=norm, queries=max(2, self.effort.queries), steps=steps)
            return [make(name="substitute", attack=copied, rule=DEFENDED, draws=self.few_draws)]
        if protocol == "square":
            square = Square(eps=eps, norm=norm, queries=self.effort.queries)
            return [make(name="square", attack=square, rule=DEFENDED, draws=self.few_draws)]
        if protocol == "decision":
            queries = -(-self.effort.queries // 2)  # the directions of RayS are spent sooner than Square's squares
            labels = (
                RayS(eps=eps, queries=queries) if norm == "linf" else HopSkipJump(eps=eps, norm=norm, queries=queries)
            )
            return [make(name=type(labels).__name__.lower(), attack=labels, rule=DEFENDED, draws=self.few_draws)]
        if protocol == CLASSIFIER:
            own = {f"apgd {name}": attack for name, attack in self._apgd(leave=True, targets=9).items()}
            if self.images and self.thorough and norm in AUTOATTACK_NORMS:
                own["autoattack"] = AutoAttack(eps=eps, norm=norm)
            return [make(name=name, attack=attack, rule=BARE) for name, attack in own.items()]
        return []

    def extra(self, attacks: Sequence[Attack]) -> list[Attempt]:
        """The user's attacks on the defence, seen through its strongest rule."""
        draws = max(self.effort.draws) if self.random else 1
        return [
            Attempt(protocol=EXTRA, name=f"{number} {type(attack).__name__}", attack=attack, rule=self.strongest,
                    draws=draws)
            for number, attack in enumerate(attacks, 1)
        ]  # fmt: skip

    def _apgd(self, *, leave: bool = False, restarts: int = 1, targets: int = 3) -> dict[str, Attack]:
        """APGD by loss. leave: stop at a sample once it is misclassified.

        An attack on the classifier goes on, since its result is purified afterwards, and so does one on a random
        defence, which one success does not break.
        """
        apgd = partial(APGD, eps=self.threat.eps, norm=self.threat.norm, steps=self.effort.steps, restarts=restarts)
        made: dict[str, Attack] = {name: apgd(loss=name, leave_when_fooled=leave) for name in ("ce", "margin")}
        if self.classes >= 4:
            made["targeted dlr"] = apgd(loss="targeted-dlr", targets=targets, leave_when_fooled=leave)
        elif self.classes == 3:  # targeted DLR needs four classes
            made["targeted margin"] = apgd(loss="targeted-margin", targets=2, leave_when_fooled=leave)
        return made

    def _by_rule(self, rule: str) -> list[Attempt]:
        # Without a purifier, the network itself is differentiated.
        make = partial(Attempt, protocol=rule, rule=rule if self.purifies or rule == RELAXED else DEFENDED)
        if rule == UNROLLED:  # it starts again with each scale
            half = replace(self, effort=replace(self.effort, steps=-(-self.effort.steps // 2)))
            short = {
                name: attack for name, attack in half._apgd(leave=not self.random).items() if name in ("ce", "margin")
            }
            return [
                make(name=f"apgd {name}, scale {s:g}", attack=a, scale=s, draws=FEW_DRAWS * self.random or 1)
                for s in SCALES
                for name, a in short.items()
            ]
        if not self.random:
            # Beside the exact gradient the other rules confirm what it finds, and the imitation always does.
            confirms = rule == SURROGATE or (self.strongest == EXACT and rule != EXACT)
            restarts = 1 if confirms else self.effort.restarts
            attacks = self._apgd(leave=True, restarts=restarts)
            return [make(name=f"apgd {name}", attack=attack) for name, attack in attacks.items()]
        sweep = self.effort.draws if rule == self.strongest or not self.purifies else (self.few_draws,)
        pgd = partial(DecayingPGD, eps=self.threat.eps, norm=self.threat.norm, steps=self.effort.steps)
        made = [
            make(name=f"pgd {loss}, {draws} draws", attack=pgd(loss=loss), draws=draws)
            for draws in sweep
            for loss in (("ce", "margin") if draws < max(sweep) or len(sweep) == 1 else ("margin",))
        ]
        if rule != self.strongest and self.purifies:
            return made
        # The probability of the label is the accuracy over draws, up to the softmax; steps on it gain the last points.
        likely, most = pgd(loss="probability"), max(sweep)
        made += [
            make(name=f"pgd probability, {most} draws, start {start}", attack=likely, draws=most)
            for start in range(1, self.effort.restarts + 1)
        ]
        return made + [
            make(name=f"pgd probability, {k * most} draws", attack=likely, draws=k * most, unless_converged=k > 2)
            for k in MORE_DRAWS * (most > 1)
        ]

    def _autoattack(self) -> list[Attempt]:
        make = partial(Attempt, protocol="autoattack")
        eps, norm = self.threat.eps, self.threat.norm
        standard = AutoAttack(eps=eps, norm=norm)
        aimed = AutoAttack(eps=eps, norm=norm, version="rand") if self.random else standard
        rule = self.strongest if self.strongest in (EXACT, RELAXED) else DEFENDED
        on_classifier = make(name="on the classifier", attack=standard, rule=BARE)
        on_defence = make(name="on the defence", attack=aimed, rule=rule)
        if not self.purifies:  # the classifier is the defence
            return [on_defence if self.random else on_classifier]
        return [on_classifier, on_defence]
