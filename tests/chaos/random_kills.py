"""Kill rehearsals again and again at random times, let them finish, and compare with runs that nobody killed.

    python tests/chaos/killing.py FOLDER "training=200" "adaptive suite=100" --seed 0

A process of its own: it imports torch once and forks for every attempt. Prints, for each rehearsal,
{"trials": ..., "failures": [...]}.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from rehearsals import REHEARSALS, Rehearsal, difference

KILLED, DONE = "killed", "done"

Attempt = Callable[[Callable[[Path], object], Path, float | None], str]
"""Run, in this folder, kill after so many seconds; how it ended."""


def attempt(go: Callable[[Path], object], out: Path, seconds: float | None) -> str:
    """`go` in a process of its own, killed after so many seconds; how it ended: KILLED, DONE, or what went wrong."""
    log = out.with_suffix(".log")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            go(out)
            code = 0
        except BaseException:
            log.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return KILLED
    return DONE if os.WEXITSTATUS(status) == 0 else log.read_text()


def killed_at_random(
    rehearsal: Rehearsal, folder: Path, kills: int, seed: int, attempt: Attempt = attempt
) -> tuple[int, list[str]]:
    """(kills that hit a run, what went wrong)."""
    draw = random.Random(seed)
    rehearsal.go(folder / "warm")  # once here, so that no attempt spends its time on what torch does the first time
    began = time.monotonic()
    if (ended := attempt(rehearsal.go, folder / "whole", None)) != DONE:
        return 0, [ended]
    whole = time.monotonic() - began
    wanted = rehearsal.content(folder / "whole")
    failures: list[str] = []
    hits = runs = 0
    while hits < kills:
        out, runs = folder / f"run-{runs}", runs + 1
        out.mkdir()
        ended = KILLED
        while ended == KILLED and hits < kills:
            ended = attempt(rehearsal.go, out, draw.uniform(0, whole / 2))
            hits += ended == KILLED
            problem = "" if ended in (KILLED, DONE) else ended
            try:
                rehearsal.check(out)
            except Exception:
                problem = traceback.format_exc()
            if problem:
                failures.append(f"run {runs}, kill {hits}: {problem}")
                break
        else:
            if ended == KILLED:
                ended = attempt(rehearsal.go, out, None)
            if ended != DONE:
                failures.append(f"run {runs} does not finish: {ended}")
            elif other := difference(rehearsal.content(out), wanted):
                failures.append(f"run {runs}: {other} not as in the run that nobody killed")
        shutil.rmtree(out)
    return hits, failures


def main() -> None:
    """Parse, kill, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kills", nargs="+", help="REHEARSAL=KILLS")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # other threads would not live through a fork
    found = {}
    for name, _, kills in (one.partition("=") for one in asked.kills):
        trials, failures = killed_at_random(REHEARSALS[name], asked.folder / name, int(kills), asked.seed)
        found[name] = {"trials": trials, "failures": failures}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
