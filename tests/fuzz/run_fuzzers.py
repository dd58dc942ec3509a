"""Fuzz targets for so many seconds each, as many at a time as there are processors:

    python tests/fuzz/running.py REPORT.json FOUND SECONDS [TARGET ...]

Each runs in a process of its own: a crash, or a hang that no signal ends, is told from the file it was at. Inputs that
make a failure are kept in the folder FOUND; once mended, they belong in the corpus.
"""

import json
import logging
import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuzzing import Fuzzer, Tally
from watching import keep_one_heap, sizes

CEILING = 4 * 2**30
"""Bytes beyond the start at which the system itself refuses: a failure must not take the machine along."""

GRACE = 60.0
"""Seconds that a process may take beyond twice its time."""

Refusal = Callable[[BaseException], bool]


def supervise(
    targets: Mapping[str, Any], refusal: Refusal, corpus: Path, seconds: float, found: Path
) -> dict[str, dict[str, Any]]:
    """Run the targets, each on the folder of its name in the corpus, and gather their tallies."""
    found.mkdir(parents=True, exist_ok=True)
    context, waiting, running, tallies = multiprocessing.get_context("fork"), list(targets), {}, {}
    memory = Path("/dev/shm")  # files that live for a millisecond need no disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        while waiting or running:
            while waiting and len(running) < multiprocessing.cpu_count():
                name = waiting.pop(0)
                scratch, report = Path(folder) / name, Path(folder) / f"{name}.json"
                scratch.mkdir()
                task = (targets[name], refusal, corpus / name, seconds, found, scratch, report)
                process = context.Process(target=_work, args=task)
                process.start()
                running[name] = (process, time.monotonic() + 2 * seconds + GRACE)
            time.sleep(0.05)
            for name, (process, deadline) in list(running.items()):
                if not process.is_alive() or time.monotonic() > deadline:
                    del running[name]
                    tallies[name] = _ended(process, targets[name], found, Path(folder))
    return {name: tallies[name] for name in targets}


def _work(
    target: Any, refusal: Refusal, corpus: Path, seconds: float, found: Path, scratch: Path, report: Path
) -> None:
    """One target, in a process of its own."""
    logging.disable()
    warnings.simplefilter("ignore")  # Pillow and numpy tell of damage so, and go on
    keep_one_heap()
    if start := sizes()[0]:  # where it can be measured
        resource.setrlimit(resource.RLIMIT_AS, (start + CEILING, start + CEILING))
    seed = random.SystemRandom().randrange(2**32)
    tally = Fuzzer(target, refusal, found, scratch).run(corpus, _over(seconds), seed)
    report.write_text(json.dumps(asdict(tally)))


def _over(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds have passed since this was asked first: the corpus does not count."""
    end: float | None = None

    def over() -> bool:
        nonlocal end
        end = time.monotonic() + seconds if end is None else end
        return time.monotonic() > end

    return over


def _ended(process: Any, target: Any, found: Path, folder: Path) -> dict[str, Any]:
    """The tally of a process that has ended, or has to."""
    code = process.exitcode
    process.kill()
    process.join()
    report = folder / f"{target.name}.json"
    if report.exists():
        tally: dict[str, Any] = json.loads(report.read_text())
        return tally
    kept = found / f"{target.name}-crash"
    shutil.copyfile(folder / target.name / target.file, kept)
    what = "hang that no signal ends" if code is None else f"crash with exit code {code}"
    return asdict(Tally(trials=1, failures=1, kinds={what: f"its last input ({kept})"}))


if __name__ == "__main__":
    import torch
    from targets import CORPUS, TARGETS
    from targets import refusal as refuses

    torch.set_num_threads(1)  # a forked process has one thread alone
    goal, keep, length, *chosen = sys.argv[1:]
    wanted = {name: TARGETS[name] for name in chosen or TARGETS}
    Path(goal).write_text(json.dumps(supervise(wanted, refuses, CORPUS, float(length), Path(keep)), indent=1))
