"""Kill one or both of two processes repeatedly at random times: two that train together, or two shards of a suite run:

    python tests/chaos/random_process_kills.py FOLDER "training both=50" "training one=50" "shards both=25" --seed 0

As random_kills.py, with another `attempt`. After a kill of one process that trains, the other must end, too: it gets
SIGTERM, as from a launcher, which requests a stop after the current training step. Shards are independent: the other
one continues, and the merged run must be the run of one process.
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

import torch
from accelerate import PartialState  # noqa: F401  # imported before the forks, because it is slow
from killable_runs import (
    RUNS,
    KillableRun,
    attack_shard,
    check_shards,
    check_training,
    difference,
    merged_content,
    train,
    training_content,
)
from random_kills import DONE, KILLED, kill_at_random

from soap._runtime import distributed
from soap.cli.console import stop_on_signal

PROCESSES = 2
END_TIMEOUT_S = 30.0  # as torchrun gives the other processes when one has ended


def train_distributed(out: Path) -> None:
    """Train in a group of processes that stops on SIGTERM."""
    with distributed.process_group(torch.device("cpu")), stop_on_signal() as stop:
        train(out, stop=stop)


def fork_processes(start: Callable[[Path], object], out: Path) -> list[int]:
    """Fork the processes of one run; return their process ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    children = []
    for rank in range(PROCESSES):
        child = os.fork()
        if child == 0:
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(PROCESSES)}
            os.environ.update(address | ranks | {"LOCAL_WORLD_SIZE": str(PROCESSES), "OMP_NUM_THREADS": "1"})
            code = 1
            try:
                start(out)
                code = 0
            except BaseException:
                out.with_suffix(f".{rank}.log").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        children.append(child)
    return children


def attempt(
    choose: Callable[[list[int]], list[int]],
    stop_others: bool,
    start: Callable[[Path], object],
    out: Path,
    seconds: float | None,
) -> str:
    """Call `start` in two processes and kill those that `choose` selects after `seconds`; return the outcome."""
    children = fork_processes(start, out)
    if seconds is not None:
        time.sleep(seconds)
        for victim in choose(children):
            os.kill(victim, signal.SIGKILL)
    statuses = exit_codes(children, stop_others)
    if None in statuses:
        return f"a process still ran {END_TIMEOUT_S:g} seconds after another had been killed"
    if all(status == 0 for status in statuses):
        return DONE
    if seconds is not None and -signal.SIGKILL in statuses:
        return KILLED
    return "\n".join(log.read_text() for log in sorted(out.parent.glob(f"{out.name}.*.log")))


def exit_codes(children: list[int], stop_others: bool) -> list[int | None]:
    """Wait for all processes; return their exit codes, None for one that had to be killed after the timeout.

    stop_others: whether a process that fails stops the others.
    """
    codes: dict[int, int | None] = {}
    limit = None
    while len(codes) < len(children):
        for child in children:
            found, status = (0, 0) if child in codes else os.waitpid(child, os.WNOHANG)
            if found:
                codes[child] = os.waitstatus_to_exitcode(status)
        waiting = [child for child in children if child not in codes]
        if stop_others and limit is None and any(codes.values()):
            limit = time.monotonic() + END_TIMEOUT_S
            for child in waiting:
                os.kill(child, signal.SIGTERM)
        for child in waiting if limit is not None and time.monotonic() > limit else ():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            codes[child] = None
        time.sleep(0.002)
    return [codes[child] for child in children]


GROUPS = {
    "training": (KillableRun(train_distributed, training_content, check_training), True),
    "shards": (KillableRun(attack_shard, merged_content, check_shards), False),
}
"""Name -> what the processes do, and whether the others stop when one is killed."""


def main() -> None:
    """Parse the arguments, run the kills and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kills", nargs="+", help="GROUP both=KILLS or GROUP one=KILLS")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    draw = random.Random(arguments.seed)
    choices = {"both": lambda children: children, "one": lambda children: [draw.choice(children)]}
    found = {}
    for name, _, kills in (one.partition("=") for one in arguments.kills):
        folder, (group, victims) = arguments.folder / name, name.split()
        folder.mkdir()
        run, stop_others = GROUPS[group]
        try_once = partial(attempt, choices[victims], stop_others)
        trials, failures = kill_at_random(run, folder, int(kills), arguments.seed, try_once)
        if group == "shards":
            RUNS["adaptive suite"].start(folder / "single")
            whole = RUNS["adaptive suite"].content(folder / "single")
            if other := difference(merged_content(folder / "complete"), whole):
                failures.append(f"undisturbed shards, merged: {other} differs from the run of one process")
        found[name] = {"trials": trials, "failures": failures}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
