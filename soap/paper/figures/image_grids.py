"""Example images: decoded digits (Figure 2), CIFAR-10 classes (4), the auxiliary tasks (6), every attack (8 to 10)."""

from functools import partial

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from soap.paper.example_images import Examples, TaskViews
from soap.paper.figure_data import FigureData
from soap.paper.model_names import METHOD_NAMES, network_of, title_of
from soap.report.accuracy import ATTACK_TITLES
from soap.report.drawing import Palette, add_image, add_text, empty_page, panel_row, show_message

DECODED_MODEL = "mnist-fcn-dr"
CLASS_NETWORKS = ("wide-resnet28", "resnet18")
"""Networks of Figure 4: the paper shows the first; without its images the second is drawn and the title says so."""
ATTACK, CLASSES, ATTACKS = "pgd", 10, 4


def draw_decoded(data: FigureData, palette: Palette) -> Figure:
    """Rows clean, adversarial and purified; inputs on the left, the decoder's output on the right."""
    side, step, start, gap, head, row_height = 0.5, 0.55, 1.1, 0.35, 0.5, 0.84  # inches
    shown = data.find(Examples, DECODED_MODEL)
    if shown is None or not shown.decoded.size:
        figure, (axes,) = panel_row(1, palette, width=8)
        show_message(axes, palette, f"no images of {DECODED_MODEL} yet")
        return figure
    stages = {
        "clean": shown.column("clean"),
        "adversarial": shown.column(ATTACK),
        "purified": shown.column(ATTACK, purified=True),
    }
    block = len(shown.truth) * step
    figure = empty_page(start + 2 * block + gap, head + len(stages) * row_height, palette)
    for left, title in ((start, "input of the encoder"), (start + block + gap, "output of the decoder")):
        add_text(figure, left, 0.3, title, palette, fontweight="bold", fontsize=12)
    for row, (stage, column) in enumerate(stages.items()):
        top = head + row * row_height
        add_text(figure, 0.06, top + side / 2, stage, palette, va="center", fontsize=11)
        for k in range(len(shown.truth)):
            _add_example(figure, start + k * step, top, side, shown, column, k, palette, font_size=10)
            add_image(figure, start + block + gap + k * step, top, side, shown.decoded[column, k], palette)
    return figure


def draw_classes(data: FigureData, palette: Palette) -> Figure:
    """A block a task: one column a class, rows clean, adversarial and purified."""
    blocks = {task: _first_network(task, data) for task in ("rp", "lc")}
    heights = [0.5 if shown is None else 3.9 for shown in blocks.values()]  # inches
    figure = empty_page(1.0 + CLASSES * 0.82 + 0.05, sum(heights), palette)
    top = 0.0
    for (task, shown), height in zip(blocks.items(), heights, strict=True):
        wanted = f"cifar10-{CLASS_NETWORKS[0]}-{task}"
        network = "" if shown is None else f", {network_of(shown.model)}"
        instead = "" if shown is not None and shown.model == wanted else f" (no images of {wanted} yet)"
        title = f"{METHOD_NAMES[task]}{network}{instead}"
        add_text(figure, 0.06, top + 0.28, title, palette, fontweight="bold", fontsize=12)
        if shown is not None:
            _draw_class_block(figure, top, shown, palette)
        top += height
    return figure


def _first_network(task: str, data: FigureData) -> Examples | None:
    """The examples of the first network that has some."""
    found = (data.find(Examples, f"cifar10-{network}-{task}") for network in CLASS_NETWORKS)
    return next((shown for shown in found if shown is not None), None)


def _draw_class_block(figure: Figure, top: float, shown: Examples, palette: Palette) -> None:
    side, step, start, head, row_height = 0.74, 0.82, 1.0, 0.72, 1.0  # inches
    for k, truth in enumerate(shown.truth):
        left = start + k * step
        add_text(figure, left + side / 2, top + head - 0.1, shown.classes[truth], palette, ha="center", fontsize=9)
        for row, (attack, purified) in enumerate((("clean", False), (ATTACK, False), (ATTACK, True))):
            column = shown.column(attack, purified=purified)
            _add_example(figure, left, top + head + row * row_height, side, shown, column, k, palette, font_size=8)
    for row, stage in enumerate(("clean", "adversarial", "purified")):
        add_text(figure, 0.06, top + head + row * row_height + side / 2, stage, palette, va="center", fontsize=11)


SIDE, STEP, PAIR_GAP, HEAD, ROW_HEIGHT = 0.66, 0.72, 0.12, 0.95, 0.88  # inches, of the blocks of `draw_attacks`


def draw_attacks(*models: str) -> partial[Figure]:
    """The drawing of Figures 8 to 10 for these models."""
    return partial(_draw_attacks, models)


def _draw_attacks(models: tuple[str, ...], data: FigureData, palette: Palette) -> Figure:
    """Blocks of models side by side: a row a class, columns clean, then adversarial and purified for each attack."""
    block = (1 + 2 * ATTACKS) * STEP + ATTACKS * PAIR_GAP + 0.3
    found = [data.find(Examples, model) for model in models]
    figure = empty_page(len(models) * block, HEAD + CLASSES * ROW_HEIGHT + 0.08 if any(found) else HEAD, palette)
    for number, (model, shown) in enumerate(zip(models, found, strict=True)):
        left = number * block + 0.1
        add_text(figure, left, 0.26, title_of(model), palette, fontweight="bold", fontsize=12)
        if shown is None:
            add_text(figure, left, 0.6, f"no images of {model} yet", palette, style="italic")
        else:
            _draw_attack_block(figure, left, shown, palette)
    return figure


def _draw_attack_block(figure: Figure, left: float, shown: Examples, palette: Palette) -> None:
    add_text(figure, left + SIDE / 2, HEAD - 0.1, "clean", palette, ha="center", fontsize=9)
    places = [(0, left)]
    for number, attack in enumerate(shown.attacks):
        start = left + (1 + 2 * number) * STEP + (number + 1) * PAIR_GAP
        title = ATTACK_TITLES[attack]
        add_text(figure, start + STEP - 0.02, HEAD - 0.32, title, palette, ha="center", fontweight="bold")
        for k, name in enumerate(("adv.", "purified")):
            add_text(figure, start + k * STEP + SIDE / 2, HEAD - 0.1, name, palette, ha="center", fontsize=9)
            places.append((shown.column(attack, purified=bool(k)), start + k * STEP))
    font_size = 9 if all(name.isdigit() for name in shown.classes) else 6.5
    for row in range(len(shown.truth)):
        for column, start in places:
            _add_example(figure, start, HEAD + row * ROW_HEIGHT, SIDE, shown, column, row, palette, font_size=font_size)


def _add_example(
    figure: Figure,
    left: float,
    top: float,
    side: float,
    shown: Examples,
    column: int,
    k: int,
    palette: Palette,
    *,
    font_size: float,
) -> None:
    """The k-th example of a column with its prediction."""
    prediction, correct = shown.predictions[column][k], shown.predictions[column][k] == shown.truth[k]
    add_image(
        figure, left, top, side, shown.images[column, k], palette, prediction=shown.classes[prediction],
        correct=correct, font_size=font_size,
    )  # fmt: skip


VIEWS_DATA = "cifar10"
TURNS = ("0°", "90°", "180°", "270°")
VIEWS = ("random view", "flipped crop")


def draw_tasks(data: FigureData, palette: Palette) -> Figure:
    """Left: four rotations, whose angle is predicted; right: two views, whose logits must agree."""
    side, step, gap = 1.3, 1.45, 0.6  # inches
    upper, lower = 0.55, 2.65  # inches: y of the image and of its copies
    shown = data.find(TaskViews, VIEWS_DATA)
    if shown is None:
        figure, (axes,) = panel_row(1, palette, width=8)
        show_message(axes, palette, f"no views of an image of {VIEWS_DATA} yet")
        return figure
    turns, views = len(TURNS) * step, len(VIEWS) * step
    figure = empty_page(0.3 + turns + gap + views, 5.1, palette)
    blocks = (
        (0.15, turns, "Rotation prediction", shown.turns, TURNS, "which turn? one of four for each copy"),
        (0.15 + turns + gap, views, "Label consistency", shown.views, VIEWS, "the same answer to both"),
    )
    for left, width, title, copies, names, question in blocks:
        middle = left + (width - (step - side)) / 2
        add_text(figure, middle, 0.35, title, palette, ha="center", fontweight="bold", fontsize=13)
        add_image(figure, middle - side / 2, upper, side, shown.image, palette)
        for k, name in enumerate(names):
            x = left + k * step
            _draw_arrow(figure, (middle, upper + side + 0.06), (x + side / 2, lower - 0.05), palette.ink)
            add_image(figure, x, lower, side, copies[k], palette)
            add_text(figure, x + side / 2, lower + side + 0.25, name, palette, ha="center", fontsize=12)
        add_text(figure, middle, lower + side + 0.68, question, palette, ha="center", fontsize=12, style="italic")
    source = f"the first {shown.label} of the test set, image {shown.place:,}; the noise of training is left out"
    add_text(figure, 0.15, 5.0, source, palette, fontsize=9)
    return figure


def _draw_arrow(figure: Figure, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    """An arrow between two points in inches from the upper left corner."""
    width, height = figure.get_size_inches()
    ends = [(x / width, 1 - y / height) for x, y in (start, end)]
    figure.add_artist(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=14, color=colour, linewidth=1.3))
