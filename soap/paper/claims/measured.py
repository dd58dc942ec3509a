"""What was measured, in the form in which claims are judged by it."""

from collections.abc import Mapping, Sequence
from typing import Any

from soap.report.comparison import Comparison, Shown
from soap.report.comparison_words import Entry
from soap.report.paper_tables import Place


def numbers(entries: Sequence[Entry]) -> dict[str, Mapping[Place, Shown]]:
    """Our numbers by the table's name."""
    return {entry.table.name: entry.cells for entry in entries if isinstance(entry, Comparison)}


def epoch_seconds(timings: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How long an epoch takes, by recipe, exactly as Figure 7 shows it."""
    from soap.report.paper_figures import training_time  # not above: matplotlib takes its time

    found: dict[str, float] = {}
    for network, methods in training_time.NETWORKS.items():
        kept = training_time.comparable(timings, [f"{network}-{method}" for method in methods])
        found |= {model: training_time.seconds(row) for model, row in kept.items()}
    return found
