"""Rows of tools/compare_libraries.py, and their tables in docs/purifiers.md.

The accuracy of a library is that of its attacks together: for each image the version with the fewest correct selecting
draws, clean or attacked, measured by the reporting draws. The same rule joins several protocols of soap's suite.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page_suite_runs import ABSENT

from soap.bench import results
from soap.evaluation.verdict import INVALID
from soap.report import markdown_table
from soap.results import wilson

ROWS = Path(__file__).resolve().parents[1] / "results" / "libraries.jsonl"
SCHEMA = "soap-libraries/1"
NONE = "*No rows yet: run `python tools/compare_libraries.py` and `make render`.*"
LIBRARIES = ("foolbox", "art", "pyautoattack")
ORDER = ("none", *LIBRARIES, "soap")
TITLES = {
    "autoencoder": "denoising autoencoder", "diffusion": "DiffPure", "views": "view average",
    "smoothing": "randomised smoothing", "art": "ART", "none": "",
}  # fmt: skip

LibraryRow = dict[str, Any]


def read(path: Path = ROWS) -> list[LibraryRow]:
    """All rows; none if the file does not exist."""
    return results.read(path, SCHEMA) if path.exists() else []


def comparable(rows: Sequence[LibraryRow]) -> dict[str, list[LibraryRow]]:
    """By defence, the rows of its largest set of images, eps and weights; of rows of the same attack, the latest."""
    made = {}
    for defence in dict.fromkeys(row["defence"] for row in rows):
        own = [row for row in rows if row["defence"] == defence]
        best = max(own, key=lambda row: row["n"])
        same = [
            row for row in own if all(row[key] == best[key] for key in ("n", "eps", "data_sha256", "weights_sha256"))
        ]
        latest = {(row["library"], row["attack"]): row for row in same}.values()
        made[defence] = sorted(latest, key=lambda row: ORDER.index(row["library"]))
    return {defence: made[defence] for defence in TITLES if defence in made}


def joined(rows: Sequence[LibraryRow]) -> list[float]:
    """Of each image, the share of correct reporting draws of the row with the fewest correct selecting draws."""
    lowest = [min(rows, key=lambda row: row["selecting"][image]) for image in range(rows[0]["n"])]
    return [row["reporting"][image] / row["draws"] for image, row in enumerate(lowest)]


def accuracy(*rows: LibraryRow) -> float:
    """The accuracy under the attacks of all rows together, in [0, 1]."""
    return sum(joined(rows)) / rows[0]["n"]


def summary_table(groups: dict[str, list[LibraryRow]]) -> str:
    """One line for each defence: each library, the best of them, and soap; a dash where a check of its run failed."""
    lines = []
    for defence, rows in groups.items():
        by = {name: [row for row in rows if row["library"] == name] for name in ("none", *LIBRARIES, "soap")}
        by = {name: own and [*by["none"], *own] for name, own in by.items()}  # an attack may do harm
        others = [accuracy(*by[name]) for name in LIBRARIES if by[name]]
        verdict = next((row["verdict"] for row in by["soap"] if row.get("verdict")), "")
        lines.append(
            [
                TITLES[defence],
                *(_percent(by[name]) for name in ("none", *LIBRARIES)),
                f"{100 * min(others):.1f}" if others else "",
                f"**{_percent(by['soap'])}, n = {rows[0]['n']:,}**" if by["soap"] and verdict != INVALID else ABSENT,
                verdict,
                f"{rows[0]['n']:,}",
            ]
        )
    head = ["defence", "clean", *(TITLES.get(name, name) for name in LIBRARIES), "best of the three", "soap, worst"]
    return markdown_table([*head, "verdict", "images"], lines)


def attacks_table(groups: dict[str, list[LibraryRow]]) -> str:
    """One line for each attack; a dash for a suite run of which a check failed."""
    lines = []
    for defence, rows in groups.items():
        for row in rows:
            if row["library"] == "none":
                continue
            effort = ", ".join(f"{name} {value}" for name, value in row["settings"].items())
            seconds = f"{row['seconds']:,.0f} s ({row['provenance']['device']})"
            title = TITLES.get(row["library"], row["library"])
            found = ABSENT if row.get("verdict") == INVALID else _percent([row])
            lines.append([TITLES[defence], title, row["attack"], effort, found, seconds])
    return markdown_table(["defence", "library", "attack", "effort", "accuracy", "time"], lines)


def _percent(rows: Sequence[LibraryRow]) -> str:
    if not rows:
        return "not run"
    share, n = accuracy(*rows), rows[0]["n"]
    low, high = wilson(share * n, n)
    return f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def table(rows: Sequence[LibraryRow]) -> str:
    """The two tables, and what they were measured with."""
    if not rows:
        return NONE
    groups = comparable(rows)
    shown = [row for group in groups.values() for row in group]
    versions = dict.fromkeys(
        f"{TITLES.get(row['library'], row['library'])} {row['library_version']}"
        for row in shown
        if row["library"] in LIBRARIES
    )
    eps = ", ".join(dict.fromkeys(f"{row['eps']:g}" for row in shown))
    where = ", ".join(dict.fromkeys(f"{row['provenance']['commit'] or 'unknown'}"[:7] for row in shown))
    facts = f"Linf, eps {eps}. {', '.join(versions)}. Commit {where}."
    return "\n\n".join([summary_table(groups), facts, attacks_table(groups)])
