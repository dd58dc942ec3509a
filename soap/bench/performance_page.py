"""docs/performance.md: tables and plot from results/{bench-*,variants-*,padding}.jsonl."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.bench import read
from soap.report import markdown_table, with_section
from soap.report.drawing import LIGHT

PICTURE = "images/performance.png"
NO_ROWS = "*No rows yet: run the commands below and `make render`.*"
AXES = {"batch": "batch size", "grid": "radii in the grid", "steps": "steps T"}
HEAD = (
    "what", "model", "case", "ours, s", "plain, s", "images/s", "plain / ours", "foolbox / ours", "passes ours",
    "passes plain", "peak memory", "floor, s", "of the floor", "equal",
)  # fmt: skip

BenchJson = dict[str, Any]
"""A row of `soap bench` as JSON."""


def committed_rows(kind: str, folder: Path) -> list[BenchJson]:
    """Rows of `folder`/KIND-*.jsonl; of several for the same paths, case and machine, the latest."""
    rows = [row for path in sorted(folder.glob(f"{kind}-*.jsonl")) for row in read(path)]
    return list({(machine(row), row["what"], row["model"], _case(row), *row["paths"]): row for row in rows}.values())


def committed_paddings(folder: Path) -> list[BenchJson]:
    """Rows of `folder`/padding.jsonl."""
    return [json.loads(line) for line in (folder / "padding.jsonl").read_text(encoding="utf-8").splitlines()]


def machine(row: BenchJson) -> str:
    """Name of the GPU, or of the processor with its number of threads."""
    place = row["provenance"]
    cpu = f"{place['processor']}, {place['threads']} threads"
    return cpu if place["device"].startswith("cpu") else str(place["device"])


def tables(rows: Sequence[BenchJson]) -> str:
    """One table a machine, followed by the commands that made its rows."""
    parts = []
    for place in dict.fromkeys(map(machine, rows)):
        here = [row for row in rows if machine(row) == place]
        notes = dict.fromkeys(f"- {note}" for row in here for note in row["notes"])
        table = markdown_table(HEAD, map(_line, here))
        parts.append("\n\n".join([f"### {place}", table, "\n".join([*commands(here), *notes])]))
    return "\n\n".join(parts) or NO_ROWS


def variants(rows: Sequence[BenchJson]) -> str:
    """One line a variant: its speed and its agreement with the plain path."""
    head = ("variant", "batch", "ours, s", "images/s", "equal to the plain path")
    lines = []
    for case, ours, row in ((row["case"], row["paths"]["ours"], row) for row in rows):
        speed = f"{ours['images_per_second']:,.0f}"
        lines.append([case["variant"], str(case["batch"]), _seconds(ours), speed, _shares(row)])
    return "\n".join([markdown_table(head, lines), "", *commands(rows)])


def paddings(rows: Sequence[BenchJson]) -> str:
    """One line a purifier and padding: changes by batch size, and the time of one image."""
    sizes = ("1", "7", "32", "100")
    head = ["network", "purifier", "padded to", *(f"in batches of {n}" for n in sizes), "one image, ms"]
    lines = []
    for row in rows:
        name = row["purifier"] + (f", {row['gradient']}" if "gradient" in row else "")
        found = ["{other} / {same} of {images}".format(**row["found"][n]) for n in sizes]
        padded = "not" if row["padded"] in (None, 1) else str(row["padded"])
        lines.append([f"`{row['model']}`", name, padded, *found, f"{row['milliseconds']['1']:.1f}"])
    return "\n".join([markdown_table(head, lines), "", *commands(rows)])


def draw(rows: Sequence[BenchJson]) -> Figure:
    """Milliseconds an image against batch size, grid size and T; two lines for every machine and model."""
    figure = Figure(figsize=(12, 4), facecolor=LIGHT.paper, layout="constrained")
    purified = [row for row in rows if row["what"] == "purify" and row["case"]["precision"] == "fp32"]
    subjects = list(dict.fromkeys((machine(row), row["model"]) for row in purified))
    panels: Sequence[Axes] = figure.subplots(1, len(AXES))
    for axes, (key, label) in zip(panels, AXES.items(), strict=True):
        shown: set[int] = set()
        for number, subject in enumerate(subjects):
            own = [row for row in purified if (machine(row), row["model"]) == subject]
            line = along(own, key)
            shown |= {row["case"][key] for row in line}
            for path, colour in (("plain", LIGHT.adversarial), ("ours", LIGHT.purified)):
                axes.plot(
                    [row["case"][key] for row in line],
                    [1000 / row["paths"][path]["images_per_second"] for row in line],
                    color=colour,
                    marker="osD^v"[number % 5],
                    linestyle=("-", "--", ":", "-.")[number % 4],
                    label=f"{path}, {', '.join(subject)}",
                )
        axes.set(xlabel=label, ylabel="milliseconds an image", xscale="log", yscale="log")
        axes.set_xticks(sorted(shown), labels=map(str, sorted(shown)))
        axes.minorticks_off()
        axes.grid(color=LIGHT.faint)
    if subjects:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def along(rows: Sequence[BenchJson], key: str) -> list[BenchJson]:
    """Rows that differ in `key` only: those with the most frequent values of the other two."""
    others: Callable[[BenchJson], tuple[Any, ...]] = lambda row: tuple(row["case"][k] for k in AXES if k != key)  # noqa: E731
    values = {(others(row), row["case"][key]) for row in rows}
    most = Counter(shared for shared, _ in values).most_common(1)
    kept = [row for row in rows if most and others(row) == most[0][0]]
    return sorted(kept, key=lambda row: float(row["case"][key]))


def rendered(document: str, rows: Sequence[BenchJson], tried: Sequence[BenchJson], padded: Sequence[BenchJson]) -> str:
    """The page with its tables rendered from the rows, and the plot if there are rows to draw."""
    picture = f"![Cost of purification as batch, grid and T grow]({PICTURE})\n\n"
    grown = any(row["what"] == "purify" for row in rows)
    document = with_section(document, "figures", (picture if grown else "") + tables(rows))
    document = with_section(document, "paddings", paddings(padded))
    return with_section(document, "variants", variants(tried))


def commands(rows: Sequence[BenchJson], *, device: bool = False) -> list[str]:
    """Commands of the rows with commit, date and version, without duplicates."""
    lines: dict[str, None] = {}
    for place in (row["provenance"] for row in rows):
        source = f"commit {(place['commit'] or 'unknown')[:12]}, {place['date'][:10]}, torch {place['torch']}"
        lines[f"- `{place['command']}`: {place['device'] + ', ' if device else ''}{source}"] = None
    return list(lines)


def _shares(row: BenchJson) -> str:
    """Shares of equal pixels, eps and labels; empty for a row without a second path."""
    agreed = row["agreement"].get("plain") or row["agreement"].get("foolbox", {})
    return ", ".join(f"{name} {100 * agreed[name]:.2f} %" for name in ("pixels", "eps", "labels") if name in agreed)


def _case(row: BenchJson) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["case"].items())


def _line(row: BenchJson) -> list[str]:
    paths = row["paths"]
    plain, foolbox, ours = paths.get("plain"), paths.get("foolbox"), paths["ours"]
    equal = _shares(row)
    if "fp32" in row["agreement"]:
        equal += f"; with ours in fp32: labels {100 * row['agreement']['fp32']['labels']:.2f} %"
    if row["what"] == "train" and plain is not None:
        losses = row["agreement"]["plain"]
        equal = f"first losses {losses['first_loss_ours']:.4g}, {losses['first_loss_plain']:.4g}"
    peak = ours["peak_bytes"]
    return [
        row["what"],
        f"`{row['model']}`",
        _case(row),
        _seconds(ours),
        _seconds(plain),
        f"{ours['images_per_second']:,.0f}",
        "" if plain is None else f"**{plain['ratio']:.1f}**",
        "" if foolbox is None else f"**{foolbox['ratio']:.1f}**",
        _passes(ours),
        _passes(plain),
        "" if peak is None else f"{peak / 1e6:,.0f} MB",
        f"{row['floor']['seconds']:.3g} ({row['floor']['bound']})",
        f"{100 * row['share']:.0f} %",
        equal,
    ]


def _seconds(path: BenchJson | None) -> str:
    """Median, with the quartiles beside it."""
    if path is None:
        return ""
    seconds = path["seconds"]
    return f"{seconds['median']:.3g} [{seconds['lower_quartile']:.3g}, {seconds['upper_quartile']:.3g}]"


def _passes(path: BenchJson | None) -> str:
    """Forward and backward passes an image."""
    counted = None if path is None else path["passes"]
    return "" if counted is None else f"{counted['forward']:.4g} / {counted['backward']:.4g}"
