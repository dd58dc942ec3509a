"""Figures of the demo's page: digits with their reconstructions, and the auxiliary loss by step and by radius."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.evaluation.showcase import STAGES, Showcase
from soap.report.drawing import PAGE_FONT_SIZE, Palette, add_image, add_text, empty_page, page_axes, show_zero
from soap.shapes import Tensor

BLOCKS = {"inputs": "what the network is shown", "decoded": "what its decoder makes of it"}
SIDE, STEP, MARGIN, GAP = 0.5, 0.57, 0.03, 0.45  # inches: image, distance of images, page margin, gap between blocks
HEAD, TITLE, LABEL = 0.34, 0.34, 0.35  # inches: above a block, above a row of images, below it
DIGIT_FONT_SIZE = 14  # points


def draw_digits(
    show: Showcase, palette: Palette, *, attack: str = "adversarial", blocks: Sequence[str] = tuple(BLOCKS)
) -> Figure:
    """Three rows of images in each block, one column a class, with the prediction under each input (Figure 2).

    A correct prediction has a tick, a wrong one a cross, in different colours. attack: title of the second row.
    """
    columns = len(show.y)
    block = columns * STEP - (STEP - SIDE)
    row_height = TITLE + SIDE + LABEL
    figure = empty_page(
        2 * MARGIN + len(blocks) * block + (len(blocks) - 1) * GAP, HEAD + len(STAGES) * row_height, palette
    )
    colours = (palette.clean, palette.adversarial, palette.purified)
    for number, name in enumerate(blocks):
        left = MARGIN + number * (block + GAP)
        add_text(figure, left, 0.06, BLOCKS[name], palette, va="top", fontweight="bold", fontsize=DIGIT_FONT_SIZE)
        images: Tensor = getattr(show, name)
        for row, title in enumerate(("clean", attack, "purified")):
            top = HEAD + row * row_height
            add_text(figure, left, top + TITLE - 0.08, title, palette, color=colours[row], fontsize=DIGIT_FONT_SIZE)
            for column in range(columns):
                prediction, truth = int(show.labels[row, column]), int(show.y[column])
                labelled = name == "inputs"
                add_image(
                    figure, left + column * STEP, top + TITLE, SIDE, images[row, column].permute(1, 2, 0).numpy(),
                    palette, prediction=str(prediction) if labelled else None,
                    correct=prediction == truth if labelled else None, font_size=DIGIT_FONT_SIZE, label_pad=4,
                    line_widths=(1.2, 2.4) if labelled else (0.8, 0.8),
                )  # fmt: skip
    return figure


def draw_steps(show: Showcase, palette: Palette) -> Figure:
    """Mean auxiliary loss after t = 0 ... T steps, each example at the radius chosen for it."""
    figure, axes = _loss_axes(show, palette, "purification step t")
    steps = range(len(show.loss_by_step))
    axes.plot(steps, show.loss_by_step, color=palette.purified, marker="o", linewidth=2, label="being purified")
    axes.set_xticks([*steps])
    _finish(axes, palette)
    return figure


def draw_radii(show: Showcase, palette: Palette) -> Figure:
    """Mean auxiliary loss after all steps, every example at the same radius, with the attack's radius marked."""
    figure, axes = _loss_axes(show, palette, "purification radius $\\epsilon_{pfy}$")
    axes.plot(show.radii, show.loss_by_radius, color=palette.purified, marker="o", linewidth=2, label="purified")
    label = f"attack's radius, {show.eps_adv:.3g}"
    axes.axvline(show.eps_adv, color=palette.ink, linestyle=(0, (2, 2)), linewidth=1.2, label=label)
    _finish(axes, palette)
    return figure


def _loss_axes(show: Showcase, palette: Palette, x_label: str) -> tuple[Figure, Axes]:
    """Axes with lines for the clean and the adversarial loss."""
    figure, axes = page_axes(palette, 4.6, 3.3, x_label, "mean auxiliary loss")
    draw_loss_levels(axes, show.loss_by_step[0], show.loss_clean, palette)
    return figure, axes


def draw_loss_levels(axes: Axes, adversarial: float, clean: float, palette: Palette) -> None:
    """Horizontal lines at the mean loss of adversarial and of clean images."""
    levels = (
        ("adversarial", adversarial, palette.adversarial, (0, (6, 2))),
        ("clean", clean, palette.clean, (0, (4, 1, 1, 1))),
    )
    for label, level, colour, dashes in levels:
        axes.axhline(level, color=colour, linestyle=dashes, linewidth=1.8, label=label)


def _finish(axes: Axes, palette: Palette) -> None:
    show_zero(axes)
    axes.legend(loc="best", frameon=False, fontsize=PAGE_FONT_SIZE, labelcolor=palette.ink)
