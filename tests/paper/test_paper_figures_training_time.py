"""Figure 7: bars are means, whiskers deviations, and all of a panel comes from one machine and one way to train."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import BarContainer
from paper_samples import sample_timings, timing

from soap.bench import read
from soap.paper.figure_data import NETWORKS, FigureData, comparable, seconds
from soap.paper.training_time import draw_training_time

RESULTS = Path(__file__).parents[2] / "results"


def panels_of(timings):
    return draw_training_time(FigureData(folder=Path("not there"), timings=timings)).axes


def chosen(rows, models=("a", "b")):
    return {model: seconds(row)["mean"] for model, row in comparable(rows, models).items()}


def note(*rows):
    """The small letters of the first panel, less the machine."""
    return panels_of(rows)[0].get_title("right").split("\n")[1:]


def test_bars_are_mean_seconds_an_epoch_and_whiskers_deviations():
    axes = panels_of(sample_timings())
    for k, panel in enumerate(axes):
        means = [1.0 + k + 10 * j for j in range(4 if k < 2 else 5)]
        bars = [group for group in panel.containers if isinstance(group, BarContainer)]
        assert [group.patches[0].get_width() for group in bars] == means
        ends = [group.errorbar.lines[2][0].get_segments()[0][:, 0] for group in bars]
        assert np.allclose(ends, [[0.9 * mean, 1.1 * mean] for mean in means])
        assert panel.get_xlim()[1] > 1.1 * means[-1]
        assert [text.get_text() for text in panel.texts] == [f"{mean:.2f} s" for mean in means]
    assert [label.get_text() for label in axes[2].get_yticklabels()] == [
        "No Def", "FGSM AT", "PGD AT", "SOAP-RP", "SOAP-LC",
    ]  # fmt: skip


def test_one_machine_one_way_and_the_latest_of_equals():
    rows = [
        timing("a", 1.0), timing("a", 2.0, date="2027"), timing("a", 3.0, date="2025"), timing("b", 4.0),
        timing("a", 5.0, precision="bf16", date="2028"), timing("b", 6.0, device="another", date="2029"),
        timing("b", 9.0, processor="another", date="2029"), timing("c", 7.0),
        {**timing("a", 8.0, date="2030"), "what": "purify"},
    ]  # fmt: skip
    assert chosen(rows) == chosen(rows[::-1]) == {"a": 2.0, "b": 4.0}
    assert comparable([], ["a"]) == {}


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        # most methods before most epochs
        ([timing("a", 1.0, epochs=3), timing("b", 2.0, epochs=3), timing("a", 3.0, device="x")], {"a": 1.0, "b": 2.0}),
        # most epochs before the latest: among a model's timings, and among ways
        ([timing("a", 1.0), timing("a", 2.0, epochs=3, date="2027")], {"a": 1.0}),
        ([timing("a", 1.0), timing("a", 2.0, epochs=3, device="x", date="2027")], {"a": 1.0}),
        # the latest of ways with as many methods and epochs
        ([timing("a", 1.0, date="2027"), timing("a", 2.0, device="x")], {"a": 1.0}),
        # rows of the older format, without a mean, do not count
        ([timing("a", 1.0, old=True), timing("b", 2.0, old=True), timing("a", 3.0, epochs=1, date="2025")], {"a": 3.0}),
    ],
)
def test_which_timings_are_shown(rows, wanted):
    assert chosen(rows) == chosen(rows[::-1]) == wanted


def test_the_panel_says_what_its_bars_are_the_mean_of():
    one, two = "mnist-fcn-dr", "mnist-fcn-no-def"
    assert note(timing(one, 1.0), timing(two, 1.0)) == ["mean of 30 epochs"]
    assert note(timing(one, 1.0, epochs=1)) == ["mean of 1 epoch"]
    assert note(timing(one, 1.0, steps=40)) == ["mean of 30 epochs", "of 40 steps, scaled"]
    assert note(timing(one, 1.0, steps=40), timing(two, 1.0)) == ["mean of 30 epochs", "some of 40 steps, scaled"]
    mixed = timing(one, 1.0, steps=40), timing(two, 1.0, epochs=3, steps=60)
    assert note(*mixed) == ["mean of 3 to 30 epochs", "of 40 to 60 steps, scaled"]
    title = panels_of([timing(one, 1.0, precision="bf16")])[0].get_title("right")
    assert title.startswith("a GPU, bf16\n")


def test_a_bar_without_a_deviation_has_no_whisker():
    row = timing("mnist-fcn-dr", 1.5, epochs=1)
    row["paths"]["ours"]["seconds"]["deviation"] = 0.0
    (group,) = [group for group in panels_of([row])[0].containers if isinstance(group, BarContainer)]
    assert group.patches[0].get_width() == 1.5
    assert group.errorbar is None


def test_the_committed_rows_are_drawn():
    rows = [row for path in sorted(RESULTS.glob("bench-*.jsonl")) for row in read(path)]
    kept = [comparable(rows, models) for models in NETWORKS.values()]
    shown = [sum(isinstance(group, BarContainer) for group in panel.containers) for panel in panels_of(rows)]
    assert shown == [*map(len, kept)]
    assert sum(shown) > 0
