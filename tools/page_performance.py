"""docs/performance.md and the measured table of docs/scale.md, rendered from results/bench-*.jsonl."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.bench.results import BenchRow, case_text
from soap.report import markdown_table, with_section
from soap.report.drawing import LIGHT

PICTURE = "images/performance.png"
AXES = {"batch_size": "batch size", "grid": "radii in the grid", "steps": "steps T"}
HEAD = (
    "what", "model", "case", "ours, s", "plain, s", "images/s", "plain / ours", "foolbox / ours", "passes ours",
    "passes plain", "peak memory", "floor, s", "of the floor", "equal",
)  # fmt: skip

SUITE_HEAD = (
    "model", "case", "full suite, s", "of these attacks", "headline, s", "of these attacks", "full / headline",
    "worst, full", "worst, headline", "images that agree",
)  # fmt: skip


def latest(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The rows of `soap bench`; of several for the same paths, case and machine, the latest."""
    keys = [(machine(row), row["what"], row["model"], case_text(row), *row["paths"]) for row in rows]
    return list(dict(zip(keys, rows, strict=True)).values())


def machine(row: BenchRow) -> str:
    """Name of the GPU, or of the processor with its number of threads."""
    place = row["provenance"]
    cpu = f"{place['processor']}, {place['threads']} threads"
    return cpu if place["device"].startswith("cpu") else str(place["device"])


def rendered_performance(document: str, rows: Sequence[BenchRow]) -> str:
    """docs/performance.md: the plot, and one table a machine with the commands that made its rows."""
    parts = [f"![Cost of purification as batch, grid and T grow]({PICTURE})"]
    for place in dict.fromkeys(map(machine, rows)):
        here = [row for row in rows if machine(row) == place]
        notes = dict.fromkeys(f"- {note}" for row in here for note in row["notes"])
        lines = [_line(row) for row in here if row["what"] != "suite"]
        suites = [_suite_line(row) for row in here if row["what"] == "suite"]
        tables = [markdown_table(head, some) for head, some in ((HEAD, lines), (SUITE_HEAD, suites)) if some]
        parts += [f"### {place}", *tables, "\n".join([*_commands(here), *notes])]
    return with_section(document, "figures", "\n\n".join(parts))


def _line(row: BenchRow) -> list[str]:
    paths, agreement = row["paths"], row["agreement"]
    ours, plain, foolbox = paths["ours"], paths.get("plain"), paths.get("foolbox")
    agreed = agreement.get("plain") or agreement.get("foolbox", {})
    if row["what"] == "train" and plain is not None:
        equal = f"first losses {agreed['first_loss_ours']:.4g}, {agreed['first_loss_plain']:.4g}"
    else:
        shares = {name: agreed[name] for name in ("pixels", "eps", "labels") if name in agreed}
        equal = ", ".join(f"{name} {100 * share:.2f} %" for name, share in shares.items())
    if "fp32" in agreement:
        equal += f"; with ours in fp32: labels {100 * agreement['fp32']['labels']:.2f} %"
    return [
        row["what"],
        f"`{row['model']}`",
        case_text(row),
        _seconds(ours),
        _seconds(plain),
        f"{ours['images_per_second']:,.0f}",
        *("" if other is None else f"**{other['ratio']:.1f}**" for other in (plain, foolbox)),
        _passes(ours),
        _passes(plain),
        "" if ours["peak_bytes"] is None else f"{ours['peak_bytes'] / 1e6:,.0f} MB",
        f"{row['floor']['seconds']:.3g} ({row['floor']['bound']})",
        f"{100 * row['share']:.0f} %",
        equal,
    ]


def _suite_line(row: BenchRow) -> list[str]:
    """The full suite and its headline mode."""
    ours, full = row["paths"]["ours"], row["paths"]["full"]
    return [
        f"`{row['model']}`",
        case_text(row),
        *(f"{part:,.0f}" for path in (full, ours) for part in (path["seconds"]["median"], path["attack_seconds"])),
        f"**{full['ratio']:.1f}**",
        *(f"{100 * path['worst']:.1f}" for path in (full, ours)),
        f"{100 * row['agreement']['full']['labels']:.1f} %",
    ]


def _seconds(path: dict[str, Any] | None) -> str:
    """Median and quartiles."""
    if path is None:
        return ""
    return "{median:.3g} [{lower_quartile:.3g}, {upper_quartile:.3g}]".format(**path["seconds"])


def _passes(path: dict[str, Any] | None) -> str:
    """Forward and backward passes an image."""
    return "" if path is None or path["passes"] is None else "{forward:.4g} / {backward:.4g}".format(**path["passes"])


def _commands(rows: Sequence[BenchRow], *, device: bool = False) -> list[str]:
    """Commands of the rows with commit, date and version, without duplicates."""
    lines: dict[str, None] = {}
    for place in (row["provenance"] for row in rows):
        source = f"commit {(place['commit'] or 'unknown')[:12]}, {place['date'][:10]}, torch {place['torch']}"
        lines[f"- `{place['command']}`: {place['device'] + ', ' if device else ''}{source}"] = None
    return list(lines)


def draw(rows: Sequence[BenchRow]) -> Figure:
    """Milliseconds an image against batch size, grid size and T; two lines for every machine and model."""
    figure = Figure(figsize=(12, 4), facecolor=LIGHT.paper, layout="constrained")
    purified = [row for row in rows if row["what"] == "purify" and row["case"]["precision"] == "fp32"]
    subjects = list(dict.fromkeys((machine(row), row["model"]) for row in purified))
    panels: Sequence[Axes] = figure.subplots(1, len(AXES))
    for axes, (key, label) in zip(panels, AXES.items(), strict=True):
        shown: set[int] = set()
        for number, subject in enumerate(subjects):
            line = along([row for row in purified if (machine(row), row["model"]) == subject], key)
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


def along(rows: Sequence[BenchRow], key: str) -> list[BenchRow]:
    """Rows that differ in `key` only: those with the most frequent values of the other two."""
    others = [tuple(row["case"][name] for name in AXES if name != key) for row in rows]
    values = {(shared, row["case"][key]) for shared, row in zip(others, rows, strict=True)}
    most = Counter(shared for shared, _ in values).most_common(1)
    kept = [row for shared, row in zip(others, rows, strict=True) if shared == most[0][0]]
    return sorted(kept, key=lambda row: float(row["case"][key]))


# --- docs/scale.md --------------------------------------------------------------------------------------------------


def rendered_scale(document: str, rows: Sequence[BenchRow]) -> str:
    """docs/scale.md: the latest training of each model and case on a GPU, compared with a plain loop.

    The estimates below them are text.
    """
    head = ("model", "precision", "compiled", "batch size", "GFLOP an image", "images/s, recorded steps", "TFLOP/s",
            "images/s, plain loop")  # fmt: skip
    trained, lines = {}, []
    for row in rows:
        if row["what"] == "train" and "plain" in row["paths"] and not row["provenance"]["device"].startswith("cpu"):
            trained[row["model"], *(row["case"].get(key) for key in ("compiled", "precision", "batch_size"))] = row
    for row in trained.values():
        case, ours, operations = row["case"], row["paths"]["ours"], row["floor"]["operations"]
        lines.append((
            f"`{row['model']}`",
            case["precision"],
            {"true": "yes", "false": "no"}[case["compiled"]],
            f"{case['batch_size']:g}",
            f"{operations / (case['epoch_steps'] * case['batch_size']) / 1e9:.3g}",
            f"{ours['images_per_second']:,.0f}",
            f"{operations / ours['seconds']['median'] / 1e12:.3g}",
            f"{row['paths']['plain']['images_per_second']:,.0f}",
        ))  # fmt: skip
    commands = "\n".join(_commands(list(trained.values()), device=True))
    return with_section(document, "measured", f"{markdown_table(head, lines)}\n\n{commands}")
