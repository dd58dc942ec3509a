"""Kill a run at named points of its save path, let it finish, and compare the files with those of an undisturbed run:

    python tests/chaos/save_path_kills.py FOLDER --times 20 --seed 0

--runs names other runs than those that need no extra package: "export", "hub download".

The forked process replaces functions that saving calls; the package has no code for this test. Prints
{point: {"trials": ..., "failures": [...]}}.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from killable_runs import RUNS, KillableRun, difference
from random_kills import DONE, KILLED, attempt

from soap import hub, results


@dataclass(frozen=True)
class Point:
    """A function of the save path; the process is killed before it, after it, or half-way."""

    run: str
    owner: Any
    function: str
    when: str


POINTS = {
    "before the temporary file": Point("training", tempfile, "mkstemp", "before"),
    "temporary file empty": Point("training", tempfile, "mkstemp", "after"),
    "half written": Point("training", Path, "write_bytes", "half"),
    "written, not synced": Point("training", Path, "write_bytes", "after"),
    "synced": Point("training", os, "fsync", "after"),
    "before the previous checkpoint is linked": Point("training", os, "link", "before"),
    "after the previous checkpoint is linked": Point("training", os, "link", "after"),
    "before the rename": Point("training", os, "replace", "before"),
    "renamed, folder not synced": Point("training", os, "replace", "after"),
    "metrics half written": Point("training", Path, "write_text", "half"),
    "before a row": Point("transfer evaluation", results, "_write_all", "before"),
    "half a row": Point("transfer evaluation", results, "_write_all", "half"),
    "a row, not synced": Point("transfer evaluation", results, "_write_all", "after"),
    "a batch of the suite, half written": Point("adaptive suite", Path, "write_bytes", "half"),
    "a batch of the suite, not renamed": Point("adaptive suite", os, "replace", "before"),
    "a file of the suite, renamed": Point("adaptive suite", os, "replace", "after"),
    "plan, facts and seal of the suite, half written": Point("adaptive suite", Path, "write_text", "half"),
    "half a row of the suite": Point("adaptive suite", results, "_write_all", "half"),
    "before a shard's batch is linked": Point("merge of two shards", os, "link", "before"),
    "after a shard's batch is linked": Point("merge of two shards", os, "link", "after"),
    "a merged file, not renamed": Point("merge of two shards", os, "replace", "before"),
    "an imported data file, not renamed": Point("data import", os, "replace", "before"),
    "temporary file of an export empty": Point("export", tempfile, "mkstemp", "after"),
    "an exported file, not renamed": Point("export", os, "replace", "before"),
    "an exported file, renamed": Point("export", os, "replace", "after"),
    "manifest of an export half written": Point("export", Path, "write_text", "half"),
    "before a file of the hub": Point("hub download", hub, "_download", "before"),
    "after a file of the hub": Point("hub download", hub, "_download", "after"),
    "a file of the hub, not renamed": Point("hub download", os, "replace", "before"),
    "a file of the hub, renamed": Point("hub download", os, "replace", "after"),
}


def start_and_kill(point: Point, number: int, out: Path) -> None:
    """Start the run and kill it at call `number` (from 1) of the point's function."""
    original, left = getattr(point.owner, point.function), number

    def killing(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and point.when == "half":
            *rest, content = given
            original(*rest, content[: len(content) // 2], **named)
        result = original(*given, **named) if left or point.when == "after" else None
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(point.owner, point.function, killing)
    run_of(point.run).start(out)


def run_of(name: str) -> KillableRun:
    """Return a run by its name; those of `killable_exports` need further packages."""
    if name in RUNS:
        return RUNS[name]
    from killable_exports import EXPORT_RUNS

    return EXPORT_RUNS[name]


def count_calls(run: str, out: Path) -> dict[str, int]:
    """Return how often a complete run calls the function of each of its points."""
    counts = {name: 0 for name, point in POINTS.items() if point.run == run}
    with ExitStack() as stack:
        for name in counts:
            owner, function = POINTS[name].owner, POINTS[name].function
            stack.callback(setattr, owner, function, original := getattr(owner, function))

            def counted(*given: Any, _name: str = name, _original: Any = original, **named: Any) -> Any:
                counts[_name] += 1
                return _original(*given, **named)

            setattr(owner, function, counted)
        run_of(run).start(out)
    return counts


def kill_at_point(
    point: Point, total: int, expected: Any, folder: Path, times: int, draw: random.Random
) -> dict[str, Any]:
    """Kill at the point `times` times, each time in a new run; return trials and failures."""
    run = run_of(point.run)
    failures = []
    for trial in range(times):
        out = folder / str(trial)
        out.mkdir(parents=True)
        number = draw.randint(1, total)
        try:
            outcome = attempt(partial(start_and_kill, point, number), out, None)
            if outcome != KILLED:
                failures.append(f"call {number} of {total} did not kill: {outcome}")
                continue
            run.check(out)
            if (outcome := attempt(run.start, out, None)) != DONE:
                failures.append(f"killed at call {number} of {total}, then: {outcome}")
            elif other := difference(run.content(out), expected):
                failures.append(f"killed at call {number} of {total}: {other} differs from the undisturbed run")
        except Exception:
            failures.append(f"killed at call {number} of {total}: {traceback.format_exc()}")
    shutil.rmtree(folder)
    return {"trials": times, "failures": failures}


def main() -> None:
    """Parse the arguments, run the kills and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="+", default=[run for run in RUNS if run in {p.run for p in POINTS.values()}])
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    tempfile.tempdir = str(arguments.folder)  # inputs of the runs can then be linked into them
    draw = random.Random(arguments.seed)
    found = {}
    for run in arguments.runs:
        run_of(run).start(arguments.folder / f"warm {run}")  # makes the inputs of the run
        complete = arguments.folder / run
        for name, total in count_calls(run, complete).items():
            expected = run_of(run).content(complete)
            found[name] = kill_at_point(POINTS[name], total, expected, arguments.folder / name, arguments.times, draw)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
