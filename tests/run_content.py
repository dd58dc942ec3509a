"""The content of the files of a suite run without dates and times, to compare runs."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np


def content(out: Path) -> dict[str, Any]:
    """The content of all files of a run, without dates and times."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = path.relative_to(out).as_posix()
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                found[name] = {key: arrays[key].tobytes() for key in arrays.files if key != "seconds"}
        elif path.suffix == ".jsonl":
            found[name] = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[name] = _timeless(json.loads(path.read_text()))
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"[\d.]+ x the time", "", value)  # a measured time
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if key not in ("seconds", "date", "checksum")}
    return [_timeless(part) for part in value] if isinstance(value, list) else value
