"""Fuzz targets for a number of seconds each, in parallel on all CPUs:

    python tests/fuzz/run_fuzzers.py REPORT.json FOUND SECONDS [TARGET ...]

Each target runs in its own process, so that a crash or a hang that no signal ends is detected; its last input is then
the file being read. Inputs that cause a failure are stored in the folder FOUND; once fixed, they belong in the corpus.
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

from fuzzer import Fuzzer, Tally
from monitors import address_space, use_one_malloc_arena

MAX_EXTRA_ADDRESS_SPACE = 4 * 2**30
"""Bytes above the start at which the system refuses allocations, so that a failure does not exhaust the machine."""

GRACE_S = 60.0
"""Seconds that a process may take in addition to twice its time."""

IsRefusal = Callable[[BaseException], bool]


def supervise(
    targets: Mapping[str, Any], is_refusal: IsRefusal, corpus: Path, seconds: float, found: Path
) -> dict[str, dict[str, Any]]:
    """Run the targets, each on the corpus folder of its name, and return their tallies."""
    found.mkdir(parents=True, exist_ok=True)
    context, waiting, running, tallies = multiprocessing.get_context("fork"), list(targets), {}, {}
    memory = Path("/dev/shm")  # temporary inputs exist for milliseconds; memory is faster than a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        while waiting or running:
            while waiting and len(running) < multiprocessing.cpu_count():
                name = waiting.pop(0)
                scratch, report = Path(folder) / name, Path(folder) / f"{name}.json"
                scratch.mkdir()
                task = (targets[name], is_refusal, corpus / name, seconds, found, scratch, report)
                process = context.Process(target=_fuzz, args=task)
                process.start()
                running[name] = (process, time.monotonic() + 2 * seconds + GRACE_S)
            time.sleep(0.05)
            for name, (process, deadline) in list(running.items()):
                if not process.is_alive() or time.monotonic() > deadline:
                    del running[name]
                    tallies[name] = _tally(process, targets[name], found, Path(folder))
    return {name: tallies[name] for name in targets}


def _fuzz(
    target: Any, is_refusal: IsRefusal, corpus: Path, seconds: float, found: Path, scratch: Path, report: Path
) -> None:
    """Fuzz one target in this process and write its tally."""
    logging.disable()
    warnings.simplefilter("ignore")  # Pillow and numpy warn about damaged files that they still read
    use_one_malloc_arena()
    if start := address_space()[0]:  # 0 where it cannot be measured
        limit = start + MAX_EXTRA_ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    seed = random.SystemRandom().randrange(2**32)
    tally = Fuzzer(target, is_refusal, found, scratch).run(corpus, _timer(seconds), seed)
    report.write_text(json.dumps(asdict(tally)))


def _timer(seconds: float) -> Callable[[], bool]:
    """Return a function that is true `seconds` after its first call, which comes after the corpus."""
    end: float | None = None

    def is_over() -> bool:
        nonlocal end
        end = time.monotonic() + seconds if end is None else end
        return time.monotonic() > end

    return is_over


def _tally(process: Any, target: Any, found: Path, folder: Path) -> dict[str, Any]:
    """Return the tally of a process, which is killed if it still runs."""
    code = process.exitcode
    process.kill()
    process.join()
    report = folder / f"{target.name}.json"
    if report.exists():
        tally: dict[str, Any] = json.loads(report.read_text())
        return tally
    path = found / f"{target.name}-crash"
    shutil.copyfile(folder / target.name / target.file, path)
    kind = "hang that no signal ends" if code is None else f"crash with exit code {code}"
    return asdict(Tally(trials=1, failures=1, kinds={kind: f"its last input ({path})"}))


if __name__ == "__main__":
    import torch
    from targets import CORPUS, TARGETS, is_refusal

    torch.set_num_threads(1)  # only the forking thread exists in a forked process
    report_path, found_folder, length, *chosen = sys.argv[1:]
    selected = {name: TARGETS[name] for name in chosen or TARGETS}
    tallies = supervise(selected, is_refusal, CORPUS, float(length), Path(found_folder))
    Path(report_path).write_text(json.dumps(tallies, indent=1))
