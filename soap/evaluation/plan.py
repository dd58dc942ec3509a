"""Which attacks a suite makes: by protocol, the cheap ones first, each on what the ones before left standing."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from soap import validate
from soap.attacks import APGD, PGD, Attack, AutoAttack, AuxiliaryAwarePGD, Noise, Square, StolenCopy
from soap.auxiliary import JointModel
from soap.errors import InputError, unknown
from soap.evaluation.adaptive.target import BARE, BPDA, DEFENDED, START, TRAJECTORY, UNROLLED, Target

PROTOCOLS = (
    "noise",
    "transfer",
    "auxiliary-aware",
    BPDA,
    START,
    TRAJECTORY,
    UNROLLED,
    "autoattack",
    "black-box",
)
SUITES = {"quick": ("noise", "transfer", TRAJECTORY), "full": PROTOCOLS}
"""Suites by name; a protocol's own name is a suite, too."""

THROUGH = (BPDA, TRAJECTORY, UNROLLED)
"""Protocols in which the attacker goes by what the purifier makes of an image."""

ADAPTIVE = (*THROUGH, START)
"""Protocols in which the attacker knows the purifier."""

SCALES = (1.0, 3.0, 10.0)
"""Of the surrogate: 0.1 and below do worse than an attack that does not know the purifier (MNIST FCN, by hand)."""
BETAS = (-1.0, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True, kw_only=True)
class Threat:
    """Where the attacker may go: a ball of radius `eps` in `norm` ("linf" or "l2"), inside [0, 1]."""

    eps: float
    norm: str = "linf"

    def __post_init__(self) -> None:
        validate.positive("eps", self.eps)
        validate.choice("norm", self.norm, ("linf", "l2"))


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attack of a protocol on the model as `sight` names it; `scale` is the unrolled surrogate's."""

    protocol: str
    name: str
    attack: Attack
    sight: str
    scale: float = 1.0

    @property
    def settings(self) -> str:
        """What rows say of it."""
        scale = f", scale={self.scale:g}" if self.sight == UNROLLED else ""
        return f"{self.attack!r} on {self.sight}{scale}"


RESTARTS = 3
"""Of the attacks that know the purifier, but in the quick suite; on SOAP-LC one left half a point more than two."""


def attempts(
    target: Target,
    threat: Threat,
    suite: str,
    *,
    steps: int = 100,
    queries: int = 1000,
    images: bool = True,
    classes: int = 10,
) -> list[Attempt]:
    """The attempts of a suite that make sense for the target, protocol by protocol.

    steps: of every iterative attack. queries: of Square and of the substitute. images: whether inputs have channels,
    height and width; Square, which AutoAttack makes too, paints squares on nothing else. classes: how many the target
    tells apart.
    """
    validate.at_least("steps", steps, 1)
    validate.at_least("queries", queries, 1)
    wanted, restarts = protocols(suite), 1 if suite == "quick" else RESTARTS
    made = [
        Attempt(protocol=protocol, name=name, attack=attack, sight=sight, scale=scale)
        for protocol in wanted
        for name, attack, sight, scale in _of(protocol, target, threat, steps, queries, restarts, classes)
    ]
    planned = [
        attempt
        for attempt in made
        if target.sight(attempt.sight, attempt.scale) is not None
        and (images or not isinstance(attempt.attack, (AutoAttack, Square)))
    ]
    if not planned:
        why = "; ".join(f"{protocol}: {_why(protocol, target, threat, images)}" for protocol in wanted)
        raise InputError(f"suite {suite!r} has no attack on {target.name} ({why}); choose another, e.g. 'quick'.")
    return planned


def protocols(suite: str) -> tuple[str, ...]:
    """The protocols of a suite, in the order they are run."""
    known = {**SUITES, **{name: (name,) for name in PROTOCOLS}}
    if suite not in known:
        raise unknown("suite", suite, known)
    return known[suite]


def left_out(target: Target, threat: Threat, planned: Sequence[Attempt], *, images: bool = True) -> dict[str, str]:
    """Protocols without an attempt, and why; `images` as in `attempts`."""
    done = {attempt.protocol for attempt in planned}
    return {
        protocol: _why(protocol, target, threat, images) or "not in this suite"
        for protocol in PROTOCOLS
        if protocol not in done
    }


def _why(protocol: str, target: Target, threat: Threat, images: bool) -> str:
    """Why a protocol has no attempt on the target; empty where it could have one."""
    if protocol in ADAPTIVE and target.sight(protocol) is None:
        return "the purifier does not tell its steps" if target.purifies else "there is no purifier"
    if protocol == "auxiliary-aware" and not _joint(target):
        return "there is no auxiliary task"
    if protocol == "auxiliary-aware" and threat.norm != "linf":
        return "its attack is of the Linf ball"
    return "it is for images alone" if protocol == "autoattack" and not images else ""


def _joint(target: Target) -> bool:
    return isinstance(target.bare, JointModel) and target.bare.purifiable


def _of(
    protocol: str, target: Target, threat: Threat, steps: int, queries: int, restarts: int, classes: int
) -> list[tuple[str, Attack, str, float]]:
    """(name, attack, sight, scale) of a protocol's attempts."""
    eps, norm = threat.eps, threat.norm

    # An attack on the defence itself is done with a row once it is fooled; one on the classifier is not, since what it
    # found is purified afterwards.
    knows = protocol in ADAPTIVE
    again = restarts if knows and protocol != UNROLLED else 1  # the scales of the unrolled gradient are starts enough
    apgd = partial(APGD, eps=eps, norm=norm, leave_when_fooled=knows, restarts=again)
    losses = {
        "ce": apgd(loss="ce", steps=steps),
        "margin": apgd(loss="margin", steps=steps),
    }
    if classes >= 4:
        losses["targeted dlr"] = apgd(loss="targeted-dlr", targets=3, steps=steps)
    elif classes == 3:  # that loss takes four
        losses["targeted margin"] = apgd(loss="targeted-margin", targets=2, steps=steps)
    if protocol == "noise":
        return [("random points", Noise(eps=eps, norm=norm, draws=20), DEFENDED, 1.0)]
    if protocol == "transfer":
        pgd = PGD(eps=eps, norm=norm, step_size=eps / 4, steps=20)
        return [("pgd", pgd, BARE, 1.0), *((f"apgd {name}", attack, BARE, 1.0) for name, attack in losses.items())]
    if protocol == "auxiliary-aware":
        if not _joint(target) or norm != "linf":
            return []
        aware = [AuxiliaryAwarePGD(eps=eps, step_size=eps / 10, steps=steps, beta=b, keep="best") for b in BETAS]
        return [(f"beta {attack.beta:g}", attack, BARE, 1.0) for attack in aware]
    if protocol == UNROLLED:
        short = {name: apgd(loss=name, steps=-(-steps // 2)) for name in ("ce", "margin")}
        return [(f"apgd {n}, scale {s:g}", a, UNROLLED, s) for s in SCALES for n, a in short.items()]
    if knows:
        return [(f"apgd {name}", attack, protocol, 1.0) for name, attack in losses.items()]
    if protocol == "autoattack":
        standard = AutoAttack(eps=eps, norm=norm)
        return [("on the classifier", standard, BARE, 1.0), ("on the defence", standard, DEFENDED, 1.0)]
    copied = StolenCopy(eps=eps, norm=norm, queries=max(2, queries), steps=steps)
    square = [("square", Square(eps=eps, queries=queries), DEFENDED, 1.0)] if norm == "linf" else []
    return [("substitute", copied, DEFENDED, 1.0), *square]
