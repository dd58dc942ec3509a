"""The paper's figures show what their material says, say what is missing, and keep their letters apart and inside."""

import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.text import Text
from paper_samples import (
    TASKS,
    sample_curve,
    sample_examples,
    sample_material,
    sample_rows,
)
from PIL import Image

from soap.errors import FileError, InputError
from soap.paper.figure_data import FIGURES, FigureData, name_of
from soap.paper.figure_records import record_path
from soap.paper.figures import DRAWINGS, draw
from soap.paper.markdown import sweep_markdown
from soap.paper.sweeps import BETAS
from soap.paper.sweeps import GRADIENT_VARIANTS as VARIANTS

NAMES = [f"figure-{k}" for k in (2, 3, 4, 5, 7, 8, 9, 10)]

ONE_OF_EACH = [name for name in NAMES if name not in ("figure-8", "figure-9")]
"""Figures 8 to 10 differ in their models alone, and are slow to draw; 10 has the longest words."""


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return sample_material(tmp_path_factory.mktemp("figures"))


@pytest.fixture
def nothing(tmp_path):
    return FigureData(folder=tmp_path / "not there")


def words(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


def test_there_is_a_drawing_for_every_figure():
    assert list(DRAWINGS) == NAMES


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("kind", ["full", "nothing"])
def test_letters_stay_on_the_page_and_apart(name, kind, request, monkeypatch):
    figure = DRAWINGS[name](request.getfixturevalue(kind))
    figure.draw_without_rendering()  # gives letters their size and axes their place
    shown, plain = {}, Text.draw
    monkeypatch.setattr(Text, "draw", lambda text, *further: (shown.update({id(text): text}), plain(text, *further)))
    figure.draw_without_rendering()  # ticks beyond an axis have letters, too, but are not drawn
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown.values() if text.get_text().strip()]
    assert boxes
    width, height = figure.bbox.size
    outside = [
        text for text, box in boxes if box.x0 < -0.5 or box.y0 < -0.5 or box.x1 > width + 0.5 or box.y1 > height + 0.5
    ]
    assert outside == []
    clashes = [
        (one, two)
        for k, (one, a) in enumerate(boxes)
        for two, b in boxes[:k]
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    assert clashes == []


@pytest.mark.parametrize("name", ["figure-3", "figure-5"])
def test_files_are_whole_and_the_same_each_time(name, full, tmp_path):
    first, again = (draw(name, full, tmp_path / k) for k in ("one", "two"))
    assert [path.name for path in first] == [f"{name}.png", f"{name}.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert Image.open(io.BytesIO(first[0].read_bytes())).format == "PNG"
    tree = ET.parse(first[1])
    links = [value for node in tree.iter() for key, value in node.attrib.items() if key.endswith("href")]
    assert all(link.startswith(("data:", "#")) for link in links)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_said_and_nothing_invented(name, nothing):
    figure = DRAWINGS[name](nothing)
    assert any(text.startswith("no ") or "(no " in text for text in words(figure))
    drawn = [axes for axes in figure.axes if axes.lines or axes.patches or axes.images or axes.collections]
    assert drawn == []


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if name != "figure-10"])
def test_nothing_says_that_it_is_missing_where_all_is_there(name, full):
    assert not [text for text in words(DRAWINGS[name](full)) if " yet" in text]


def test_the_curves_are_the_losses(full):
    for axes, model in zip(DRAWINGS["figure-3"](full).axes, TASKS, strict=True):
        curve = sample_curve(model)
        factor = 1 if model.startswith("mnist") else 255
        lines = {line.get_label().split(",")[0]: line for line in axes.lines}
        assert np.allclose(lines["purified"].get_xdata(), np.array(curve.radii) * factor)
        assert np.allclose(lines["purified"].get_ydata(), curve.purified)
        assert set(lines["clean"].get_ydata()) == {curve.clean}
        assert set(lines["adversarial"].get_ydata()) == {curve.adversarial}
        assert np.allclose(lines["attack's radius"].get_xdata(), curve.eps_adv * factor)
        assert np.allclose(lines["elbow"].get_xydata(), [[curve.elbow * factor, 0.23]])
        assert axes.get_ylim()[0] == 0
        assert len({line.get_linestyle() for line in axes.lines}) >= 2  # told apart without colours, too


def test_accuracy_against_beta_with_intervals(full):
    for axes, model in zip(DRAWINGS["figure-5"](full).axes, TASKS, strict=True):
        assert axes.get_xscale() == "symlog"
        own = [row for row in sample_rows() if row.protocol == "auxiliary-aware" and row.model == model]
        before, after = (container for container in axes.containers)
        for container, purified in ((before, False), (after, True)):
            line, _, (bars,) = container
            rows = [row for row in own if row.defence.purifies == purified]
            assert line.get_xdata().tolist() == list(BETAS)
            assert np.allclose(line.get_ydata(), [100 * row.accuracy for row in rows])
            ends = [segment[:, 1] for segment in bars.get_segments()]
            assert np.allclose(ends, [[100 * bound for bound in row.interval] for row in rows])


def test_thumbnails_are_the_images_and_predictions_the_networks(full):
    figure = DRAWINGS["figure-8"](full)
    assert len(figure.axes) == 2 * 90
    shown = sample_examples("mnist-fcn-dr")
    for place, axes in enumerate(figure.axes[:90]):
        column, row = divmod(place, 10)
        assert np.array_equal(axes.images[0].get_array(), shown.images[column, row, :, :, 0])
        prediction = shown.predictions[column][row]
        assert axes.get_xlabel() == f"{prediction} {'✓' if prediction == shown.truth[row] else '✗'}"
        assert (axes.images[0].norm.vmin, axes.images[0].norm.vmax) == (0, 255)


def test_what_is_decoded_stands_beside_the_inputs(full):
    figure = DRAWINGS["figure-2"](full)
    shown = sample_examples("mnist-fcn-dr")
    assert len(figure.axes) == 60
    for place, (seen, decoded) in enumerate(zip(figure.axes[:30], figure.axes[30:], strict=True)):
        column, k = (0, 3, 4)[place // 10], place % 10
        assert np.array_equal(seen.images[0].get_array(), shown.images[column, k, :, :, 0])
        assert np.array_equal(decoded.images[0].get_array(), shown.decoded[column, k, :, :, 0])
        assert decoded.get_xlabel() == ""


def test_colour_examples_have_the_names_of_classes(full):
    axes = DRAWINGS["figure-4"](full).axes
    assert len(axes) == 2 * 30
    assert [one.get_xlabel() for one in axes[:30:10]] == ["airplane ✓", "automobile ✗", "automobile ✗"]
    shown = sample_examples("cifar10-wide-resnet28-rp")
    assert np.array_equal(axes[10].images[0].get_array(), shown.images[3, 0])


def cells(name, data):
    lines = sweep_markdown(FIGURES[f"ablation-{name}"], data).splitlines()
    return [line.strip("| ").split(" | ") for line in [lines[0], *lines[2:]]]


def test_ablations_are_tables(full, nothing):
    assert all(len(cells(name, nothing)) == 1 for name in ("steps", "radius", "rotation", "leaking", "gradients"))
    head, first, *others = cells("leaking", full)
    assert head == ["model", "purified by", "images", "no attack, %", "FGSM, %"]
    assert (first[0], first[2], first[3].split()[0], len(others)) == ("mnist-fcn-fgsm-at", "1,000", "80.0", 3)
    _, squared, entropy = cells("rotation", full)
    assert (squared[1], entropy[1]) == ("squared error", "cross entropy")
    assert entropy[-1].startswith("31.0 [")
    assert entropy[-1].endswith("; mean radius 5.0/255")
    assert [line[1] for line in cells("gradients", full)[1:]] == list(VARIANTS)


def test_step_sizes_are_lines_and_numbers_of_steps_columns(full):
    head, *lines = cells("steps", full)
    assert head[3:] == [f"T = {steps}, %" for steps in (1, 2, 5, 10, 20)]
    colour = [line for line in lines if line[0] == "cifar10-resnet18-rp"]
    assert [line[1] for line in colour] == [f"gamma = {gamma}/255" for gamma in (1, 2, 4, 8, 16)]
    for k, line in enumerate(colour):
        wanted = [100 - 9 * abs(k - 2) - 12 * abs(j - 2) for j in range(5)]
        assert [float(cell.split()[0]) for cell in line[3:]] == wanted


def test_radii_rise_and_the_chosen_one_is_last(full):
    digits = [line for line in cells("radius", full) if line[0] == "mnist-fcn-dr"]
    assert [line[1] for line in digits] == [*(f"eps = {0.05 * k:.3g}" for k in range(11)), "min-aux"]
    assert [float(line[3].split()[0]) for line in digits] == [*(6 * min(k, 7) for k in range(11)), 100]


def test_names_of_models():
    assert name_of("cifar10-wide-resnet28-fgsm-at") == ("CIFAR-10", "Wide-ResNet-28", "FGSM AT")
    assert name_of("mnist-fcn-dr") == ("MNIST", "FCN", "SOAP-DR")
    assert name_of("mnist-fcn-dr").title == "SOAP-DR, FCN"


def test_bad_input(full, tmp_path):
    with pytest.raises(InputError, match=r"unknown figure 'figure-11'.*figure-10"):
        draw("figure-11", full, tmp_path)
    record_path(tmp_path, "examples", "mnist-fcn-dr").write_bytes(b"no archive")
    with pytest.raises(FileError, match="makes it again"):
        draw("figure-2", FigureData(folder=tmp_path), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="folder"):
        draw("figure-3", full, tmp_path / "file")
