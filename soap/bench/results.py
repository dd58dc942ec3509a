"""A row of `soap bench`, and the JSONL file that stores rows."""

import datetime
import json
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from soap import __version__
from soap._files import atomic
from soap._runtime import devices
from soap.bench.measures import PassCount, spread
from soap.errors import FileError
from soap.evaluation.provenance import commit

ROW_SCHEMA = "soap-bench/2"
OURS, PLAIN, FOOLBOX, FP32 = "ours", "plain", "foolbox", "fp32"

BenchRow = dict[str, Any]
"""The result of one benchmark as JSON.

what: "purify", "attack", "train" or "suite", which has no floor. case: its settings, e.g. batch and T. paths:
metrics of "ours", "plain", "foolbox", in a bf16 row "fp32", which is ours in fp32, and in a row of the suite "full".
agreement: how the results of each other path compare with ours. floor: least operations, measured rate and their
quotient; share: its seconds divided by ours. notes: what a reader must know about the numbers.
"""


def case_text(row: BenchRow) -> str:
    """The settings of a row: 'batch size 128, steps 5'."""
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["case"].items())


def path_metrics(
    seconds: Mapping[str, Sequence[float]],
    images: int,
    passes: Mapping[str, PassCount],
    peaks: Mapping[str, int | None],
) -> dict[str, dict[str, Any]]:
    """Metrics of each path: seconds per run, images per second, time divided by ours, passes, peak memory.

    Passes and memory are None if they were not counted or measured.
    """
    spreads = {name: spread(values) for name, values in seconds.items()}
    return {
        name: {
            "seconds": taken,
            "images_per_second": images / taken["median"],
            "ratio": taken["median"] / spreads[OURS]["median"],
            "passes": asdict(passes[name]) if name in passes and passes[name].forward else None,
            "peak_bytes": peaks.get(name),
        }
        for name, taken in spreads.items()
    }


def bench_row(
    *, operations: float, rate: float, device: torch.device, paths: Mapping[str, Mapping[str, Any]], **facts: Any
) -> BenchRow:
    """A row with its floor and provenance. operations: the fewest that the algorithm needs. facts: all other fields."""
    seconds = operations / rate
    floor = {"operations": operations, "rates": {"operations": rate}, "seconds": seconds, "bound": "operations"}
    return {
        "schema": ROW_SCHEMA,
        **facts,
        "paths": paths,
        "floor": floor,
        "share": seconds / paths[OURS]["seconds"]["median"],
        "provenance": provenance(device),
    }


def provenance(device: torch.device) -> dict[str, Any]:
    """Version, machine, time and command of a measurement."""
    return {
        "version": __version__,
        "commit": commit(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": devices.describe_device(device),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["soap", *_without_paths(sys.argv[1:])]),
    }


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a JSONL file."""
    with atomic.file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True, allow_nan=False) + "\n")


def read(path: Path, schema: str = ROW_SCHEMA) -> list[BenchRow]:
    """The rows of a JSONL file; raises for rows of another schema."""
    with atomic.file_errors(path):
        lines = path.read_bytes().splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or row.get("schema") != schema:
                raise ValueError(f"not a row of schema {schema} (tools/migrate_rows.py converts older ones)")
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path}, line {number}: {error}; fix or remove the line.") from error
        rows.append(row)
    return rows


def _processor() -> str:
    """The name of the CPU, or of its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def _without_paths(arguments: Sequence[str]) -> list[str]:
    """The arguments without --results and --data-root: paths of one machine that do not affect the result."""
    options = ("--results", "--data-root")
    return [
        argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
        if before not in options and argument.partition("=")[0] not in options
    ]
