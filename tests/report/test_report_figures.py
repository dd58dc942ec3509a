"""Figures: a panel for every picture, the very pixels and losses, ticks and crosses where they belong."""

import io
import re
import xml.etree.ElementTree as ET
from dataclasses import fields

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from report_samples import sample_showcase

from soap.report.demo_page import draw_digits, draw_radii, draw_steps
from soap.report.drawing import DARK, LIGHT, png, show_zero, svg


@pytest.mark.parametrize(("blocks", "panels"), [(("inputs",), 12), (("decoded",), 12), (("inputs", "decoded"), 24)])
def test_a_panel_for_every_picture(blocks, panels):
    show = sample_showcase(4)
    figure = draw_digits(show, blocks=blocks)
    assert len(figure.axes) == panels
    wanted = torch.cat([getattr(show, block).flatten(0, 1) for block in blocks])
    for axes, picture in zip(figure.axes, wanted, strict=True):
        (image,) = axes.images
        assert np.array_equal(image.get_array(), picture[0].numpy())
        assert (image.norm.vmin, image.norm.vmax) == (0, 1)  # a panel is never stretched to its own range


def test_colour_pictures_are_drawn_in_colour():
    show = sample_showcase(3, channels=3)
    image = draw_digits(show, blocks=("inputs",)).axes[0].images[0]
    assert np.array_equal(image.get_array(), show.inputs[0, 0].permute(1, 2, 0).numpy())


def test_answers_are_marked_by_symbol_and_colour_under_inputs_alone():
    figure = draw_digits(sample_showcase(3))
    inputs, decoded = figure.axes[:9], figure.axes[9:]
    assert [axes.get_xlabel() for axes in inputs] == ["0 ✓", "1 ✓", "2 ✓", "1 ✗", "2 ✗", "0 ✗", "0 ✓", "1 ✓", "0 ✗"]
    assert {(axes.get_xlabel()[-1], axes.xaxis.label.get_color()) for axes in inputs} == {
        ("✓", LIGHT.purified),
        ("✗", LIGHT.adversarial),
    }
    assert all(axes.get_xlabel() == "" for axes in decoded)


def test_nothing_leaves_the_page_or_covers_its_neighbour():
    figure = draw_digits(sample_showcase(10), attack="attacked by PGD")
    figure.savefig(io.BytesIO(), format="png")  # gives letters their size
    boxes = [axes.get_window_extent() for axes in figure.axes]
    boxes += [axes.xaxis.label.get_window_extent() for axes in figure.axes if axes.get_xlabel()]
    boxes += [text.get_window_extent() for text in figure.texts]
    width, height = figure.bbox.size
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)
    clashes = [
        (one, two)
        for k, one in enumerate(boxes)
        for two in boxes[:k]
        if min(one.x1, two.x1) - max(one.x0, two.x0) > 0.5 and min(one.y1, two.y1) - max(one.y0, two.y0) > 0.5
    ]
    assert clashes == []


def test_the_curves_are_the_losses():
    show = sample_showcase()
    steps, radii = draw_steps(show).axes[0], draw_radii(show).axes[0]
    for axes, x, y in ((steps, range(3), show.loss_by_step), (radii, show.radii, show.loss_by_radius)):
        lines = {line.get_color(): line for line in axes.lines}
        assert np.allclose(lines[LIGHT.purified].get_xydata(), np.stack([x, y], 1))
        assert set(lines[LIGHT.clean].get_ydata()) == {show.loss_clean}
        assert set(lines[LIGHT.adversarial].get_ydata()) == {show.loss_by_step[0]}
        assert axes.get_ylim()[0] == 0
        assert len(axes.get_legend().get_texts()) == len(axes.lines)
        content = svg(axes.figure).decode()
        dashes = {*re.findall(r"stroke-dasharray: ([\d., ]+)", content)}
        assert len(dashes) == len(axes.lines) - 1  # told apart without colours, too
    assert set(radii.lines[-1].get_xdata()) == {show.eps_adv}


def luminance(colour: str) -> float:
    """Relative luminance, as the Web Content Accessibility Guidelines define it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_letters_stand_out_from_the_paper(palette):
    for field in fields(palette):
        if field.name not in ("paper", "faint"):
            pair = sorted([luminance(getattr(palette, field.name)), luminance(palette.paper)])
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, field.name


def test_svg_is_whole_and_asks_for_nothing():
    tree = ET.fromstring(svg(draw_digits(sample_showcase(2))))
    links = [value for node in tree.iter() for key, value in node.attrib.items() if key.endswith(("href", "src"))]
    assert sum(link.startswith("data:image/png") for link in links) == 12
    assert all(link.startswith(("data:", "#")) for link in links)
    assert not list(tree.iter("{http://www.w3.org/2000/svg}text"))  # no font is needed


def test_png_is_the_same_file_each_time():
    one, two = (png(draw_digits(sample_showcase(2)), 50) for _ in range(2))
    assert one == two
    assert Image.open(io.BytesIO(one)).format == "PNG"


@pytest.mark.parametrize(
    ("losses", "bottom", "top"), [((0.01, 3.0), 0, None), ((-2.0, 1.0), None, None), ((-3.0, -2.0), None, 0)]
)
def test_zero_is_seen_and_so_is_every_loss(losses, bottom, top):
    axes = Figure().add_subplot()
    axes.plot(losses)
    show_zero(axes)
    low, high = axes.get_ylim()
    assert low <= min(0, *losses)
    assert high >= max(0, *losses)
    assert bottom is None or low == bottom  # a margin below zero would say that a loss can be negative
    assert top is None or high == top
