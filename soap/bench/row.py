"""One benchmark: what was measured, how every path did, and where; and the JSONL file that keeps them."""

import datetime
import json
import platform
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
from soap.bench.counting import Passes
from soap.bench.floor import Floor
from soap.bench.timing import Spread
from soap.errors import FileError
from soap.evaluation.provenance import commit

SCHEMA = "soap-bench/1"
OURS, PLAIN, FOOLBOX, FP32 = "ours", "plain", "foolbox", "fp32"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How one path did: seconds a run, images a second, passes an image and peak memory (None: not measured).

    ratio: how many times as long as ours it took.
    """

    seconds: Spread
    images_per_second: float
    ratio: float
    passes: Passes | None
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One benchmark.

    what: "purify", "attack" or "train". case: the numbers it was run with, e.g. batch, T and grid size. paths: "ours",
    "plain", "foolbox", and "fp32", which is ours where the row is of bf16. agreement: how the results of every other
    path compare with ours. share: the part of the floor's speed that ours reached. notes: what a reader must know about
    the figures.
    """

    what: str
    model: str
    weights: str
    inputs: str
    settings: str
    case: Mapping[str, float | str]
    paths: Mapping[str, Figures]
    agreement: Mapping[str, Mapping[str, float]]
    floor: Floor
    share: float
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The row for machines."""
        return {"schema": SCHEMA, **asdict(self)}


def figures(
    seconds: Mapping[str, Spread],
    images: int,
    passes: Mapping[str, Passes],
    peaks: Mapping[str, int | None],
) -> dict[str, Figures]:
    """Every path's figures, from those of its parts; a path whose passes were not seen has none."""
    return {
        name: Figures(
            seconds=taken,
            images_per_second=images / taken.median,
            ratio=taken.median / seconds[OURS].median,
            passes=passes[name] if name in passes and passes[name].forward else None,
            peak_bytes=peaks.get(name),
        )
        for name, taken in seconds.items()
    }


def provenance(device: torch.device) -> dict[str, Any]:
    """Who measures, on what, when, and by which command."""
    return {
        "version": __version__,
        "commit": commit(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": devices.describe_device(device),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["soap", *_without_places(sys.argv[1:])]),
    }


def append(path: Path, row: BenchRow) -> None:
    """Add a row at the end of a JSONL file."""
    with atomic.file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row.as_json(), sort_keys=True, allow_nan=False) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file as plain data, for tables and plots."""
    with atomic.file_errors(path):
        lines = path.read_bytes().splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or row.get("schema") != SCHEMA:
                raise ValueError(f"not a row of schema {SCHEMA}")
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path}, line {number}: {error}; mend or remove the line.") from error
        rows.append(row)
    return rows


def _processor() -> str:
    """The name of the CPU where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _without_places(arguments: Sequence[str]) -> list[str]:
    """The arguments less where data lie and rows go: paths of one machine, which do not change a figure."""
    kept: list[str] = []
    places = ("--results", "--data-root")
    for argument, before in zip(arguments, ["", *arguments], strict=False):
        if before not in places and argument not in places and not argument.startswith(tuple(f"{p}=" for p in places)):
            kept.append(argument)
    return kept
