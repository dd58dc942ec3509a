"""Duration of a training epoch by recipe, chosen from the rows of `soap bench train` (Figure 7)."""

from collections.abc import Mapping, Sequence
from typing import Any

NETWORKS = {
    "mnist-fcn": ("no-def", "fgsm-at", "pgd-at", "dr"),
    "mnist-cnn": ("no-def", "fgsm-at", "pgd-at", "dr"),
    "cifar10-resnet18": ("no-def", "fgsm-at", "pgd-at", "rp", "lc"),
    "cifar10-wide-resnet28": ("no-def", "fgsm-at", "pgd-at", "rp", "lc"),
}
"""Methods of Figure 7 by network."""

BenchTiming = Mapping[str, Any]
"""A row of `soap bench train`."""


def recipes_of(network: str) -> list[str]:
    """Recipes of the network's panel."""
    return [f"{network}-{method}" for method in NETWORKS[network]]


def epoch_seconds(timings: Sequence[BenchTiming]) -> dict[str, float]:
    """Seconds of an epoch by recipe, as Figure 7 shows them."""
    found: dict[str, float] = {}
    for network in NETWORKS:
        kept = comparable(timings, recipes_of(network))
        found |= {model: seconds(row) for model, row in kept.items()}
    return found


def comparable(timings: Sequence[BenchTiming], models: Sequence[str]) -> dict[str, BenchTiming]:
    """One timing of each model, all from one machine and one way to train.

    Timings without a mean (an older format) are used only if there is none with one. The chosen way to train is the one
    with most methods, then most epochs, then the latest; of one model, the timing of most epochs, then the latest.
    """
    own = [row for row in timings if row["what"] == "train" and row["model"] in models]
    by_way: dict[tuple[Any, ...], dict[str, BenchTiming]] = {}
    for row in sorted([row for row in own if "mean" in seconds_spread(row)] or own, key=_epochs_and_date):
        by_way.setdefault(_way_to_train(row), {})[row["model"]] = row
    return max(by_way.values(), key=_preference, default={})


def seconds(timing: BenchTiming) -> float:
    """Seconds of an epoch: the mean of the timed epochs, or their median in the older format."""
    spread = seconds_spread(timing)
    return float(spread.get("mean", spread["median"]))


def deviation(timing: BenchTiming) -> float:
    """Standard deviation of the seconds; 0 in the older format."""
    return seconds_spread(timing).get("deviation", 0.0)


def seconds_spread(timing: BenchTiming) -> Mapping[str, float]:
    """Mean, median and number of the timed epochs."""
    return timing["paths"]["ours"]["seconds"]  # type: ignore[no-any-return]


def _epochs_and_date(timing: BenchTiming) -> tuple[float, str]:
    return seconds_spread(timing)["repeats"], timing["provenance"]["date"]


def _way_to_train(timing: BenchTiming) -> tuple[Any, ...]:
    """What must be equal for seconds to be comparable: the machine and the training options."""
    place, case = timing["provenance"], timing["case"]
    return place["device"], place["processor"], case["precision"], case["compiled"], case["batch"]


def _preference(kept: Mapping[str, BenchTiming]) -> tuple[int, float, str]:
    repeats, dates = zip(*map(_epochs_and_date, kept.values()), strict=True)
    return len(kept), sum(repeats), max(dates)
