"""Compare two suite runs on the same images: for each protocol the difference of the accuracies, paired by image.

The interval of the difference is that of Bonett & Price (2012). The p value is that of McNemar's exact test: of the
images that exactly one of the defences classifies correctly, each defence has half if they are equally robust. Where a
defence is random, the values of an image are means over draws: the difference has a normal interval and no p value.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from soap import data as library
from soap.data import Dataset
from soap.errors import FileError, InputError
from soap.evaluation.exports import data_frame
from soap.evaluation.paired import mcnemar_p_value, paired_gain
from soap.evaluation.run_folder import RunFolder, open_run
from soap.evaluation.suite import SuiteReport, read_report
from soap.evaluation.summary import WORST, ProtocolResult
from soap.evaluation.verdict import RobustnessVerdict


@dataclass(frozen=True, kw_only=True)
class ProtocolComparison:
    """Accuracies of runs a and b under a protocol (or "clean", "worst"), in [0, 1].

    difference: a less b, with a 95 % interval from low to high. p_value: of McNemar's exact test; None where a defence
    is random. only_a, only_b: images that this run classifies correctly and the other does not; of a random defence,
    more often by its draws. same_attacks: whether both runs made the same attempts.

    Where a check of a run failed, its accuracy under attack is None, and so is all that compares it.
    """

    protocol: str
    n: int
    accuracy_a: float | None
    accuracy_b: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    only_a: int | None = None
    only_b: int | None = None
    same_attacks: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class RunComparison:
    """Two runs on the same images and threat. lines: clean, the protocols of both runs, and the worst case.

    missing_in_a, missing_in_b: protocols that only the other run has; `worst` is over different protocols then.
    """

    a: SuiteReport
    b: SuiteReport
    lines: Sequence[ProtocolComparison]
    missing_in_a: tuple[str, ...]
    missing_in_b: tuple[str, ...]

    def to_pandas(self) -> Any:
        """The lines as a pandas DataFrame with the fields of `ProtocolComparison` as columns."""
        return data_frame([asdict(line) for line in self.lines])


def compare_runs(
    a: str | Path | SuiteReport, b: str | Path | SuiteReport, *, data: Dataset | None = None
) -> RunComparison:
    """Compare two finished runs, given as folders or reports, on the same images and under the same threat.

    data: the images of the runs; None loads them by the name that the runs have stored.
    """
    folders = [run.folder if isinstance(run, SuiteReport) else open_run(Path(run)) for run in (a, b)]
    _check_comparable(*folders)
    one, other = (run if isinstance(run, SuiteReport) else _finished_report(run, data) for run in (a, b))
    mine, others = ({line.protocol: line for line in run.summary.protocols} for run in (one, other))
    pairs = [(one.summary.clean, other.summary.clean)]
    pairs += [(mine[name], others[name]) for name in mine if name in others]
    pairs.append((one.summary.worst, other.summary.worst))
    steps = [_attempts(folder) for folder in folders]
    same = {line.protocol: steps[0].get(line.protocol) == steps[1].get(line.protocol) for line, _ in pairs}
    return RunComparison(
        a=one,
        b=other,
        lines=[_compared(one.verdict, other.verdict, *pair, same_attacks=same[pair[0].protocol]) for pair in pairs],
        missing_in_a=tuple(name for name in other.summary.done if name not in one.summary.done),
        missing_in_b=tuple(name for name in one.summary.done if name not in other.summary.done),
    )


def _finished_report(run: str | Path, data: Dataset | None) -> SuiteReport:
    """The report of a finished run whose batches have the fingerprints of its seal."""
    folder = open_run(Path(run))
    if folder.read_fingerprints() is None:
        raise InputError(f"{run} is not finished; repeat its command, then compare.")
    report = read_report(Path(run), _images(folder) if data is None else data)
    if changed := folder.changed_batches(report.summary.fingerprints):
        raise FileError(f"{run}: {changed[0]} was changed after the run; `soap verify` shows what still holds.")
    return report


def _images(folder: RunFolder) -> Dataset:
    """The images of a run by the name of its data set."""
    plan = folder.plan()
    wanted = plan["data"]
    return library.load(wanted["name"], wanted["split"]).numbered_by(plan["classes"]).take(wanted["n"])


def _check_comparable(one: RunFolder, other: RunFolder) -> None:
    """Raise unless both runs have the same images and the same threat."""
    both, (mine, theirs) = f"{one.path} and {other.path}", (one.plan(), other.plan())
    if mine["data"]["sha256"] != theirs["data"]["sha256"]:
        images = " and ".join(f"{of['n']:,} of {of['name']}/{of['split']}" for of in (mine["data"], theirs["data"]))
        raise InputError(
            f"{both} have different images: {images}; a paired comparison needs runs with the same data, split and "
            "number of images."
        )
    if mine["threat"] != theirs["threat"]:
        threats = " and ".join(f"{of['norm']} {of['eps']:.6g}" for of in (mine["threat"], theirs["threat"]))
        raise InputError(f"{both} have different threats: {threats}; compare runs with the same eps and norm.")


def _attempts(folder: RunFolder) -> dict[str, list[Any]]:
    """The attempts of each protocol; those of all for the worst case."""
    planned = folder.plan()["attempts"]
    found: dict[str, list[Any]] = {WORST: planned}
    for one in planned:
        found.setdefault(one["protocol"], []).append(one)
    return found


def _compared(
    verdict: RobustnessVerdict,
    other_verdict: RobustnessVerdict,
    one: ProtocolResult,
    other: ProtocolResult,
    *,
    same_attacks: bool,
) -> ProtocolComparison:
    shown, other_shown = verdict.shows(one.protocol), other_verdict.shows(one.protocol)
    line = ProtocolComparison(
        protocol=one.protocol,
        n=one.n,
        accuracy_a=one.accuracy if shown else None,
        accuracy_b=other.accuracy if other_shown else None,
        same_attacks=same_attacks,
    )
    if not (shown and other_shown):
        return line
    values = one.values, other.values
    only_a, only_b = int((values[0] > values[1]).sum()), int((values[1] > values[0]).sum())
    random = one.drawn is not None or other.drawn is not None
    difference, low, high = paired_gain(*values)
    p_value = None if random else mcnemar_p_value(only_a, only_b)
    return replace(line, difference=difference, low=low, high=high, p_value=p_value, only_a=only_a, only_b=only_b)
