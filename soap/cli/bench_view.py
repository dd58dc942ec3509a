"""How a benchmark looks to a person: its paths in a table, then agreement, floor and notes."""

from rich.console import Group, RenderableType
from rich.text import Text

from soap.bench.row import BenchRow, Figures
from soap.cli.tables import percent, size, table

SHARES = ("pixels", "eps", "labels", "fooled_ours", "fooled_theirs")


def view(row: BenchRow) -> RenderableType:
    """All of a row."""
    return Group(Text(title(row)), _paths(row), Text("\n".join(_told(row)) + "\n"))


def title(row: BenchRow) -> str:
    """What was measured, in one line."""
    case = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row.case.items())
    return f"{row.what} {row.model} (weights: {row.weights}) on {row.inputs}: {case}"


def _paths(row: BenchRow) -> RenderableType:
    numbers = (
        "images/s", "median s", "quartiles s", "mean s", "fastest s", "time / ours", "forward", "backward",
        "peak memory",
    )  # fmt: skip
    view = table("path", *numbers, right=numbers)
    for name, path in row.paths.items():
        seconds = path.seconds
        view.add_row(
            name,
            f"{path.images_per_second:,.1f}",
            f"{seconds.median:.4g}",
            f"{seconds.lower_quartile:.4g}-{seconds.upper_quartile:.4g}",
            f"{seconds.mean:.4g} ± {seconds.deviation:.2g}",
            f"{seconds.fastest:.4g}",
            f"{path.ratio:.2f}",
            *_passes(path),
            "not measured" if path.peak_bytes is None else size(path.peak_bytes),
        )
    return view


def _passes(path: Figures) -> tuple[str, str]:
    if path.passes is None:
        return "not counted", "not counted"
    return f"{path.passes.forward:.4g}", f"{path.passes.backward:.4g}"


def _told(row: BenchRow) -> list[str]:
    """Agreement, floor and notes, a line each; forward and backward are passes an image."""
    lines = []
    for name, measures in row.agreement.items():
        shares = ", ".join(
            f"{key.replace('_', ' ')} {percent(value) if key in SHARES else f'{value:.6g}'}"
            for key, value in measures.items()
        )
        lines.append(f"ours against {name}: {shares}")
    least = row.floor
    lines.append(
        f"floor: {least.seconds:.4g} s, set by {least.bound} ({least.operations:.3g} operations at "
        f"{least.rates.operations:.3g}/s, {least.bytes:.3g} bytes at {least.rates.bytes:.3g}/s, both measured in this "
        f"run); ours reaches {percent(row.share)} of its speed"
    )
    return [*lines, *row.notes]
