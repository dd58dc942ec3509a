"""Kill both of two processes that train together, or one of them, again and again at random times.

    python tests/chaos/rank_killing.py FOLDER "both=50" "one=50" --seed 0

Like killing.py, whose attempts these replace. Of one that is killed the other must end, too: it is sent SIGTERM, as
launchers do, which asks a training to stop after the step that it can no longer end.
"""

import argparse
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from accelerate import PartialState  # noqa: F401  # before the forks, so that no attempt spends its time on it
from killing import DONE, KILLED, killed_at_random
from rehearsals import EPOCHS, Rehearsal, images, tiny_model, trained, training_is_whole

from soap._runtime import distributed, interrupts
from soap.training import Schedule, checkpoint, joint, loop

PROCESSES = 2
PATIENCE = 30.0  # seconds; what torchrun gives the others of a process that has ended


def train(out: Path) -> None:
    """Joint training with dropout, batch norm, augmentation, held-out images; a checkpoint an epoch."""
    schedule = Schedule(epochs=EPOCHS, lr=0.05, batch=8, warmup_epochs=0.5, augment=("flip",), holdout=4)
    with (
        distributed.process_group(torch.device("cpu")),
        interrupts.stop_on_signal() as stop,
        patch.object(loop, "SAVE_INTERVAL_S", -1.0),
    ):
        going = (out / checkpoint.NAME).exists()
        joint.train(tiny_model(seed=9 if going else 0), images(), schedule, out=out, resume=going, stop=stop)


def start(go: Callable[[Path], object], out: Path) -> list[int]:
    """The processes of one run, forked."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    children = []
    for rank in range(PROCESSES):
        child = os.fork()
        if child == 0:
            number = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(PROCESSES)}
            os.environ.update(place | number | {"LOCAL_WORLD_SIZE": str(PROCESSES), "OMP_NUM_THREADS": "1"})
            code = 1
            try:
                go(out)
                code = 0
            except BaseException:
                out.with_suffix(f".{rank}.log").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        children.append(child)
    return children


def attempt(
    whom: Callable[[list[int]], list[int]], go: Callable[[Path], object], out: Path, seconds: float | None
) -> str:
    """Two processes of `go`, of which `whom` chooses those to kill after so many seconds; how it ended."""
    children = start(go, out)
    if seconds is not None:
        time.sleep(seconds)
        for victim in whom(children):
            os.kill(victim, signal.SIGKILL)
    statuses = ended(children)
    if None in statuses:
        return f"a process went on for {PATIENCE:g} seconds after another had been killed"
    if all(status == 0 for status in statuses):
        return DONE
    if seconds is not None and -signal.SIGKILL in statuses:
        return KILLED
    return "\n".join(log.read_text() for log in sorted(out.parent.glob(f"{out.name}.*.log")))


def ended(children: list[int]) -> list[int | None]:
    """The exit codes of all, once they have ended; None for one that had to be killed because it did not."""
    codes: dict[int, int | None] = {}
    limit = None
    while len(codes) < len(children):
        for child in children:
            found, status = (0, 0) if child in codes else os.waitpid(child, os.WNOHANG)
            if found:
                codes[child] = os.waitstatus_to_exitcode(status)
        waiting = [child for child in children if child not in codes]
        if limit is None and any(codes.values()):
            limit = time.monotonic() + PATIENCE
            for child in waiting:
                os.kill(child, signal.SIGTERM)
        for child in waiting if limit is not None and time.monotonic() > limit else ():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            codes[child] = None
        time.sleep(0.002)
    return [codes[child] for child in children]


def main() -> None:
    """Parse, kill, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kills", nargs="+", help="both=KILLS or one=KILLS")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # other threads would not live through a fork
    draw = random.Random(asked.seed)
    choices = {"both": lambda children: children, "one": lambda children: [draw.choice(children)]}
    rehearsal = Rehearsal(train, trained, training_is_whole)
    found = {}
    for name, _, kills in (one.partition("=") for one in asked.kills):
        (asked.folder / name).mkdir()
        way = partial(attempt, choices[name])
        trials, failures = killed_at_random(rehearsal, asked.folder / name, int(kills), asked.seed, way)
        found[name] = {"trials": trials, "failures": failures}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
