"""`BenchRow`: the result of one benchmark, and the JSONL file that stores them."""

import datetime
import json
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from soap import __version__
from soap._files import atomic
from soap._runtime import devices
from soap.bench.counting import PassCount
from soap.bench.floor import Floor
from soap.bench.timing import Spread
from soap.errors import FileError
from soap.evaluation.provenance import commit

ROW_SCHEMA = "soap-bench/1"
OURS, PLAIN, FOOLBOX, FP32 = "ours", "plain", "foolbox", "fp32"


@dataclass(frozen=True, kw_only=True)
class PathMetrics:
    """Metrics of one path: seconds per run, images per second, passes per image and peak memory (None: not measured).

    ratio: its time divided by ours.
    """

    seconds: Spread
    images_per_second: float
    ratio: float
    passes: PassCount | None
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """The result of one benchmark.

    what: "purify", "attack" or "train". case: its settings, e.g. batch, T and grid size. paths: "ours", "plain",
    "foolbox", and in a bf16 row "fp32", which is ours in fp32. agreement: how the results of each other path compare
    with ours. notes: what a reader must know about the numbers.
    """

    what: str
    model: str
    weights: str
    inputs: str
    settings: str
    case: Mapping[str, float | str]
    paths: Mapping[str, PathMetrics]
    agreement: Mapping[str, Mapping[str, float]]
    floor: Floor
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]

    @property
    def share(self) -> float:
        """The time of the floor divided by ours."""
        return self.floor.seconds / self.paths[OURS].seconds.median

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {"schema": ROW_SCHEMA, **asdict(self), "share": self.share}


def path_metrics(
    seconds: Mapping[str, Spread], images: int, passes: Mapping[str, PassCount], peaks: Mapping[str, int | None]
) -> dict[str, PathMetrics]:
    """The metrics of each path; a path whose passes were not counted has none."""
    return {
        name: PathMetrics(
            seconds=taken,
            images_per_second=images / taken.median,
            ratio=taken.median / seconds[OURS].median,
            passes=passes[name] if name in passes and passes[name].forward else None,
            peak_bytes=peaks.get(name),
        )
        for name, taken in seconds.items()
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


def append(path: Path, row: BenchRow) -> None:
    """Append a row to a JSONL file."""
    append_json(path, row.as_json())


def append_json(path: Path, content: Mapping[str, Any]) -> None:
    """Append one line to a JSONL file."""
    with atomic.file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content, sort_keys=True, allow_nan=False) + "\n")


def read(path: Path, schema: str = ROW_SCHEMA) -> list[dict[str, Any]]:
    """The rows of a JSONL file as plain dictionaries, for tables and plots; raises for rows of another schema."""
    with atomic.file_errors(path):
        lines = path.read_bytes().splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or row.get("schema") != schema:
                raise ValueError(f"not a row of schema {schema}")
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
