"""What is said of a compared cell: the figure, how sure it is, where it comes from, how far it is off."""

from soap.report.comparison import TOLERANCE, Comparison, Shown
from soap.report.paper_tables import Listing

NEAR = 1.0
"""Points within which ours counts as the same."""

BINS = {
    "far-below": f"more than {TOLERANCE:g} points below the paper",
    "below": f"{NEAR:g} to {TOLERANCE:g} points below",
    "near": f"within {NEAR:g} point",
    "above": f"{NEAR:g} to {TOLERANCE:g} points above",
    "far-above": f"more than {TOLERANCE:g} points above",
}
"""Colours of the differences, and what they stand for."""

Entry = Comparison | Listing


def bin_of(shown: Shown) -> str:
    """The name of the difference's colour; empty where there is nothing to compare."""
    off = shown.difference
    if off is None:
        return ""
    side = "near" if abs(off) <= NEAR else "above" if off > 0 else "below"
    return f"far-{side}" if abs(off) > TOLERANCE else side


def figure(value: float | None) -> str:
    """A share in per cent, or a dash."""
    return "\N{EN DASH}" if value is None else f"{value:.2f}"


def spread(shown: Shown) -> str:
    """How sure ours is: the interval of one training, or the range of several."""
    if shown.low is None or shown.high is None:
        return ""
    several = len(shown.rows)
    kind = "95 % interval" if several == 1 else f"mean of {several} trainings, from smallest to largest"
    return f"{kind} [{shown.low:.2f}, {shown.high:.2f}]"


def origin(shown: Shown) -> str:
    """Where ours comes from: training, machine, day, source and weights."""
    rows = [row.provenance for row in shown.rows]
    trainings = " / ".join(dict.fromkeys(row.training or "training not recorded" for row in rows))
    machines = " / ".join(dict.fromkeys(row.device for row in rows))
    days = " / ".join(dict.fromkeys(row.date[:10] for row in rows))
    sources = " / ".join(dict.fromkeys((row.commit or row.version)[:10] for row in rows))
    weights = " / ".join(row.weights_sha256[:10] for row in rows)
    return f"{trainings}; {machines}, {days}, source {sources}, weights {weights}"


def said(shown: Shown) -> str:
    """All that is known about a cell of ours, in a line."""
    if not shown.rows:
        return "not measured yet" if shown.cell.wanted is not None else "a method that is not part of this project"
    return f"{spread(shown)}; {shown.rows[0].n:,} images; {origin(shown)}"


def heading(entry: Entry) -> str:
    """'Table 2: CIFAR-10 under white-box attacks'."""
    table = entry.table if isinstance(entry, Comparison) else entry
    return f"{table.name.replace('-', ' ').capitalize()}: {table.title}"


def missing(entry: Comparison) -> str:
    """How many cells of each recipe are empty, without the data set that all share: 'mnist: fcn-no-def 5, ...'."""
    by_data: dict[str, list[str]] = {}
    for recipe, cells in entry.missing.items():
        data, _, rest = recipe.partition("-")
        by_data.setdefault(data, []).append(f"{rest} {cells}")
    return "; ".join(f"{data}: {', '.join(rests)}" for data, rests in by_data.items())
