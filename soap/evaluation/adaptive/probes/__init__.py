"""Measurements that the checks need beside the attempts; each is written as a fact of the run as soon as it is made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from soap import validate
from soap.data import Dataset
from soap.evaluation.adaptive.attempts import Attempt, Threat, protocols
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.probes.effort import doubled_restarts, doubled_steps, single_step
from soap.evaluation.adaptive.probes.gradients import differences, presence
from soap.evaluation.adaptive.probes.inference import cost, optimisation
from soap.evaluation.adaptive.probes.iterates import best_kept, loss_curve
from soap.evaluation.adaptive.probes.outputs import determinism, output_kind
from soap.evaluation.adaptive.probes.planted import planted_weakness
from soap.evaluation.adaptive.probes.radii import ladder, unbounded
from soap.evaluation.adaptive.probes.repeat import repeated
from soap.evaluation.adaptive.probes.subject import ImpossibleError, Subject, subject
from soap.evaluation.adaptive.target import Target
from soap.evaluation.transfer import Watch

__all__ = ["PROBES", "ImpossibleError", "Probe", "Subject", "of_suite", "run_probes"]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A measurement. name: of its fact; check: that reads it, None for the report alone; quick: cheap enough for it."""

    name: str
    check: int | None
    measure: Callable[[Subject], dict[str, Any]]
    quick: bool = True


PROBES = (
    Probe(name="outputs", check=2, measure=output_kind),
    Probe(name="determinism", check=3, measure=determinism),
    Probe(name="optimisation", check=4, measure=optimisation),
    Probe(name="gradient", check=5, measure=presence),
    Probe(name="differences", check=6, measure=differences),
    Probe(name="best-iterate", check=7, measure=best_kept),
    Probe(name="loss-curve", check=None, measure=loss_curve),
    Probe(name="doubled-steps", check=8, measure=doubled_steps, quick=False),
    Probe(name="doubled-restarts", check=9, measure=doubled_restarts, quick=False),
    Probe(name="unbounded", check=10, measure=unbounded, quick=False),
    Probe(name="radii", check=11, measure=ladder, quick=False),
    Probe(name="single-step", check=12, measure=single_step),
    Probe(name="cost", check=15, measure=cost),
    Probe(name="planted", check=16, measure=planted_weakness, quick=False),
    Probe(name="repeat", check=18, measure=repeated, quick=False),
)


def of_suite(suite: str) -> tuple[Probe, ...]:
    """The probes that a suite makes: all but for `quick`, which keeps to the cheap ones."""
    protocols(suite)  # an unknown suite is an error
    return tuple(probe for probe in PROBES if probe.quick or suite != "quick")


def run_probes(
    target: Target,
    data: Dataset,
    threat: Threat,
    planned: Sequence[Attempt],
    folder: RunFolder,
    *,
    suite: str,
    seed: int = 0,
    probe_n: int = 100,
    probes: Sequence[Probe] | None = None,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Make the suite's probes on a run whose attempts are done; False when asked to stop, and the same call goes on.

    Facts that are there are not measured again. What a probe cannot do on this target is written as its fact, too.
    probe_n: images that a probe looks at, at most. probes: others than the suite's.
    """
    validate.at_least("probe_n", probe_n, 1)
    made = of_suite(suite) if probes is None else tuple(probes)
    given = subject(target, data, threat, planned, folder, seed=seed, probe_n=probe_n)
    for number, probe in enumerate(made):
        if stop():
            return False
        known = folder.fact(probe.name)
        if known is None or not known.get("impossible", True):  # an error may have passed since
            folder.note(probe.name, _measured(probe, given))
        watch(f"probe {probe.name}", number + 1, len(made))
    return True


def _measured(probe: Probe, given: Subject) -> dict[str, Any]:
    """The probe's fact, or what kept it from being made."""
    try:
        if len(given.x) == 0:
            raise ImpossibleError("the defence classifies no clean image rightly")
        return probe.measure(given)
    except ImpossibleError as reason:
        return {"problem": str(reason), "impossible": True}
    except Exception as problem:  # a foreign model may fail in any way; the run is to report it, not to end
        return {"problem": f"{type(problem).__name__}: {problem}", "impossible": False}
