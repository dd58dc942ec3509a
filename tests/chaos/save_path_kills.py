"""Kill a rehearsal at named points of its save path, let it finish, and compare with the run that nobody killed.

    python tests/chaos/failpoints.py FOLDER --times 20 --seed 0

The points are put into the functions that saving calls, in the forked process alone; the product knows nothing of
them. Prints {point: {"trials": ..., "failures": [...]}}.
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
from killing import DONE, KILLED, attempt
from rehearsals import REHEARSALS, difference

from soap import results


@dataclass(frozen=True)
class Point:
    """A call of the save path; the process dies before it, after it, or when half of it is done."""

    rehearsal: str
    owner: Any
    function: str
    when: str


POINTS = {
    "before the temporary file": Point("training", tempfile, "mkstemp", "before"),
    "temporary file empty": Point("training", tempfile, "mkstemp", "after"),
    "half written": Point("training", Path, "write_bytes", "half"),
    "written, not synced": Point("training", Path, "write_bytes", "after"),
    "synced": Point("training", os, "fsync", "after"),
    "before the one before is kept": Point("training", os, "link", "before"),
    "after the one before is linked": Point("training", os, "link", "after"),
    "before the rename": Point("training", os, "replace", "before"),
    "renamed, folder not synced": Point("training", os, "replace", "after"),
    "before a row": Point("transfer evaluation", results, "_write_all", "before"),
    "half a row": Point("transfer evaluation", results, "_write_all", "half"),
    "a row, not synced": Point("transfer evaluation", results, "_write_all", "after"),
    "a batch of the suite, half written": Point("adaptive suite", Path, "write_bytes", "half"),
    "a batch of the suite, not renamed": Point("adaptive suite", os, "replace", "before"),
}


def armed(point: Point, number: int, out: Path) -> None:
    """The rehearsal, killed at the point's call of that number (from 1)."""
    original, left = getattr(point.owner, point.function), number

    def deadly(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and point.when == "half":
            *rest, content = given
            original(*rest, content[: len(content) // 2], **named)
        result = original(*given, **named) if left or point.when == "after" else None
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(point.owner, point.function, deadly)
    REHEARSALS[point.rehearsal].go(out)


def calls(rehearsal: str, out: Path) -> dict[str, int]:
    """How often a whole run passes each of its points."""
    counts = {name: 0 for name, point in POINTS.items() if point.rehearsal == rehearsal}
    with ExitStack() as stack:
        for name in counts:
            owner, function = POINTS[name].owner, POINTS[name].function
            stack.callback(setattr, owner, function, original := getattr(owner, function))

            def counted(*given: Any, _name: str = name, _original: Any = original, **named: Any) -> Any:
                counts[_name] += 1
                return _original(*given, **named)

            setattr(owner, function, counted)
        REHEARSALS[rehearsal].go(out)
    return counts


def tried(point: Point, passes: int, wanted: Any, folder: Path, times: int, draw: random.Random) -> dict[str, Any]:
    """Kill at the point so many times, each in a run of its own."""
    rehearsal = REHEARSALS[point.rehearsal]
    failures = []
    for trial in range(times):
        out = folder / str(trial)
        out.mkdir(parents=True)
        number = draw.randint(1, passes)
        try:
            ended = attempt(partial(armed, point, number), out, None)
            if ended != KILLED:
                failures.append(f"call {number} of {passes} did not kill: {ended}")
                continue
            rehearsal.check(out)
            if (ended := attempt(rehearsal.go, out, None)) != DONE:
                failures.append(f"killed at call {number} of {passes}, then: {ended}")
            elif other := difference(rehearsal.content(out), wanted):
                failures.append(f"killed at call {number} of {passes}: {other} not as in the run that nobody killed")
        except Exception:
            failures.append(f"killed at call {number} of {passes}: {traceback.format_exc()}")
    shutil.rmtree(folder)
    return {"trials": times, "failures": failures}


def main() -> None:
    """Parse, kill, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # other threads would not live through a fork
    draw = random.Random(asked.seed)
    found = {}
    for rehearsal in dict.fromkeys(point.rehearsal for point in POINTS.values()):
        whole = asked.folder / rehearsal
        for name, passes in calls(rehearsal, whole).items():
            wanted = REHEARSALS[rehearsal].content(whole)
            found[name] = tried(POINTS[name], passes, wanted, asked.folder / name, asked.times, draw)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
