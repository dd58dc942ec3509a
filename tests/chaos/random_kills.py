"""Kill runs repeatedly at random times, let them finish, and compare the files with those of an undisturbed run:

    python tests/chaos/random_kills.py FOLDER "training=200" "adaptive suite=100" --seed 0

Imports torch once and forks for every attempt. Prints {"trials": ..., "failures": [...]} for each run.
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
from killable_runs import RUNS, KillableRun, difference

KILLED, DONE = "killed", "done"

Attempt = Callable[[Callable[[Path], object], Path, float | None], str]
"""Function to run, folder, seconds until the kill (None: no kill) -> KILLED, DONE or an error text."""


def attempt(start: Callable[[Path], object], out: Path, seconds: float | None) -> str:
    """Call `start` in a forked process and kill it after `seconds`; return KILLED, DONE or the traceback."""
    log = out.with_suffix(".log")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            start(out)
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


def kill_at_random(
    run: KillableRun, folder: Path, kills: int, seed: int, attempt: Attempt = attempt
) -> tuple[int, list[str]]:
    """Return the number of kills that hit a running process, and the failures."""
    draw = random.Random(seed)
    run.start(folder / "warm")  # once in this process: torch initialises lazily
    start_time = time.monotonic()
    if (outcome := attempt(run.start, folder / "complete", None)) != DONE:
        return 0, [outcome]
    duration = time.monotonic() - start_time
    expected = run.content(folder / "complete")
    failures: list[str] = []
    hits = runs = 0
    while hits < kills:
        out, runs = folder / f"run-{runs}", runs + 1
        out.mkdir()
        outcome = KILLED
        while outcome == KILLED and hits < kills:
            outcome = attempt(run.start, out, draw.uniform(0, duration / 2))
            hits += outcome == KILLED
            problem = "" if outcome in (KILLED, DONE) else outcome
            try:
                run.check(out)
            except Exception:
                problem = traceback.format_exc()
            if problem:
                failures.append(f"run {runs}, kill {hits}: {problem}")
                break
        else:
            if outcome == KILLED:
                outcome = attempt(run.start, out, None)
            if outcome != DONE:
                failures.append(f"run {runs} does not finish: {outcome}")
            elif other := difference(run.content(out), expected):
                failures.append(f"run {runs}: {other} differs from the undisturbed run")
        shutil.rmtree(out)
    return hits, failures


def main() -> None:
    """Parse the arguments, run the kills and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kills", nargs="+", help="RUN=KILLS")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    found = {}
    for name, _, kills in (one.partition("=") for one in arguments.kills):
        trials, failures = kill_at_random(RUNS[name], arguments.folder / name, int(kills), arguments.seed)
        found[name] = {"trials": trials, "failures": failures}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
