"""The HTML page of `soap demo`: one file without network requests, for screen, phone and print; and its figures."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.evaluation.showcase import STAGES, Showcase
from soap.report.drawing import (
    DARK,
    LIGHT,
    PAGE_FONT_SIZE,
    add_image,
    add_text,
    draw_loss_levels,
    empty_page,
    page_axes,
    show_zero,
)
from soap.report.html import environment, picture
from soap.report.row_text import ATTACK_TITLES, UPPER_BOUND, defence_text, percent, settings_text, under_attack
from soap.results import Row
from soap.shapes import Tensor

BLOCKS = {"inputs": "what the network is shown", "decoded": "what its decoder makes of it"}
SIDE, STEP, MARGIN, GAP = 0.5, 0.57, 0.03, 0.45  # inches: image, distance of images, page margin, gap between blocks
HEAD, TITLE, LABEL = 0.34, 0.34, 0.35  # inches: above a block, above a row of images, below it
DIGIT_FONT_SIZE = 14  # points


def render_demo(rows: Sequence[Row], show: Showcase, *, attack: str, command: str, seconds: float) -> str:
    """The page as text. All its numbers come from `rows` and `show`.

    attack: the attack of the rows that `show` shows. command, seconds: how the rows were made.
    """
    lines = under_attack(rows)
    shown = next(line for line in lines if line.bare.attack.name == attack)
    title = ATTACK_TITLES.get(attack, attack)
    attacked = f"attacked by {title}"
    correct = [int((labels == show.y).sum()) for labels in show.labels]
    of = len(show.y)
    predictions = (
        f"{of} digits in three rows. Correctly classified: {correct[0]} of {of} clean, {correct[1]} of {of} under "
        f"{title}, {correct[2]} of {of} purified."
    )
    levels = f"clean {show.loss_clean:.4f}, adversarial {show.loss_by_step[0]:.4f}"
    by_step = ", ".join(f"{loss:.4f}" for loss in show.loss_by_step)
    by_radius = ", ".join(f"{r:.3g}: {loss:.4f}" for r, loss in zip(show.radii, show.loss_by_radius, strict=True))
    return (
        environment()
        .get_template("demo.html")
        .render(
            lines=lines,
            shown=shown,
            show=show,
            correct=correct,
            percent=percent,
            upper_bound=UPPER_BOUND,
            light=LIGHT,
            dark=DARK,
            inputs=picture(draw_digits(show, attack=attacked, blocks=("inputs",)), predictions),
            decoded=picture(
                draw_digits(show, attack=attacked, blocks=("decoded",)),
                f"What the decoder rebuilds from each of the same {of} digits: clean, under {title}, purified.",
            ),
            steps=picture(draw_steps(show), f"Mean auxiliary loss: {levels}; being purified, from step 0: {by_step}."),
            radii=picture(draw_radii(show), f"Mean auxiliary loss: {levels}; purified with radius {by_radius}."),
            provenance=shown.bare.provenance,
            settings_text=settings_text,
            defence_text=defence_text,
            command=command,
            seconds=seconds,
        )
    )


def draw_digits(show: Showcase, *, attack: str = "adversarial", blocks: Sequence[str] = tuple(BLOCKS)) -> Figure:
    """Three rows of images in each block, one column a class, with the prediction under each input (Figure 2).

    A correct prediction has a tick, a wrong one a cross, in different colours. attack: title of the second row.
    """
    columns = len(show.y)
    block = columns * STEP - (STEP - SIDE)
    row_height = TITLE + SIDE + LABEL
    figure = empty_page(2 * MARGIN + len(blocks) * block + (len(blocks) - 1) * GAP, HEAD + len(STAGES) * row_height)
    colours = (LIGHT.clean, LIGHT.adversarial, LIGHT.purified)
    for number, name in enumerate(blocks):
        left = MARGIN + number * (block + GAP)
        add_text(figure, left, 0.06, BLOCKS[name], va="top", fontweight="bold", fontsize=DIGIT_FONT_SIZE)
        images: Tensor = getattr(show, name)
        for row, title in enumerate(("clean", attack, "purified")):
            top = HEAD + row * row_height
            add_text(figure, left, top + TITLE - 0.08, title, color=colours[row], fontsize=DIGIT_FONT_SIZE)
            for column in range(columns):
                prediction, truth = int(show.labels[row, column]), int(show.y[column])
                labelled = name == "inputs"
                add_image(
                    figure, left + column * STEP, top + TITLE, SIDE, images[row, column].permute(1, 2, 0).numpy(),
                    prediction=str(prediction) if labelled else None,
                    correct=prediction == truth if labelled else None, font_size=DIGIT_FONT_SIZE, label_pad=4,
                    line_widths=(1.2, 2.4) if labelled else (0.8, 0.8),
                )  # fmt: skip
    return figure


def draw_steps(show: Showcase) -> Figure:
    """Mean auxiliary loss after t = 0 ... T steps, each example at the radius chosen for it."""
    figure, axes = _loss_axes(show, "purification step t")
    steps = range(len(show.loss_by_step))
    axes.plot(steps, show.loss_by_step, color=LIGHT.purified, marker="o", linewidth=2, label="being purified")
    axes.set_xticks([*steps])
    _finish(axes)
    return figure


def draw_radii(show: Showcase) -> Figure:
    """Mean auxiliary loss after all steps, every example at the same radius, with the attack's radius marked."""
    figure, axes = _loss_axes(show, "purification radius $\\epsilon_{pfy}$")
    axes.plot(show.radii, show.loss_by_radius, color=LIGHT.purified, marker="o", linewidth=2, label="purified")
    label = f"attack's radius, {show.eps_adv:.3g}"
    axes.axvline(show.eps_adv, color=LIGHT.ink, linestyle=(0, (2, 2)), linewidth=1.2, label=label)
    _finish(axes)
    return figure


def _loss_axes(show: Showcase, x_label: str) -> tuple[Figure, Axes]:
    """Axes with lines for the clean and the adversarial loss."""
    figure, axes = page_axes(4.6, 3.3, x_label, "mean auxiliary loss")
    draw_loss_levels(axes, show.loss_by_step[0], show.loss_clean)
    return figure, axes


def _finish(axes: Axes) -> None:
    show_zero(axes)
    axes.legend(loc="best", frameon=False, fontsize=PAGE_FONT_SIZE, labelcolor=LIGHT.ink)
