"""Examples of every attack, attacked and purified, with the network's answers (Figures 8 to 10)."""

from functools import partial

from matplotlib.figure import Figure

from soap.evaluation.examples import Examples, file_name
from soap.evaluation.gathered import Material
from soap.report.accuracy import TITLES
from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.report.paper_figures.thumbnails import blank, place, write

CLASSES, ATTACKS = 10, 4
SIDE, STEP, PAIR, TOP, ROW = 0.66, 0.72, 0.12, 0.95, 0.88  # inches; PAIR parts one attack from the next
SHORT = {"adv.": False, "purified": True}


def draw(models: tuple[str, ...], material: Material, palette: Palette) -> Figure:
    """A block a model, side by side: a row a class, columns clean, then adversarial and purified for each attack."""
    block = (1 + 2 * ATTACKS) * STEP + ATTACKS * PAIR + 0.3
    found = [material.find(file_name(model), Examples) for model in models]
    figure = blank(len(models) * block, TOP + CLASSES * ROW + 0.08 if any(found) else TOP, palette)
    for number, (model, shown) in enumerate(zip(models, found, strict=True)):
        left = number * block + 0.1
        title = f"{panels.method_of(model)}, {panels.network_of(model)}"
        write(figure, left, 0.26, title, palette, fontweight="bold", fontsize=12)
        if shown is None:
            write(figure, left, 0.6, f"no images of {model} yet", palette, style="italic")
        else:
            _draw_block(figure, left, shown, palette)
    return figure


def _draw_block(figure: Figure, left: float, shown: Examples, palette: Palette) -> None:
    write(figure, left + SIDE / 2, TOP - 0.1, "clean", palette, ha="center", fontsize=9)
    places = [(0, left)]
    for number, attack in enumerate(shown.attacks):
        start = left + (1 + 2 * number) * STEP + (number + 1) * PAIR
        write(figure, start + STEP - 0.02, TOP - 0.32, TITLES[attack], palette, ha="center", fontweight="bold")
        for k, (name, purified) in enumerate(SHORT.items()):
            write(figure, start + k * STEP + SIDE / 2, TOP - 0.1, name, palette, ha="center", fontsize=9)
            places.append((shown.column(attack, purified=purified), start + k * STEP))
    digits = all(name.isdigit() for name in shown.classes)
    for row, truth in enumerate(shown.truth):
        for column, start in places:
            answer = shown.answers[column][row]
            place(
                figure, start, TOP + row * ROW, SIDE, shown.images[column, row], palette,
                answer=shown.classes[answer], right=answer == truth, letters=9 if digits else 6.5,
            )  # fmt: skip


mnist = partial(draw, ("mnist-fcn-dr", "mnist-cnn-dr"))
rotation = partial(draw, ("cifar10-resnet18-rp", "cifar10-wide-resnet28-rp"))
consistency = partial(draw, ("cifar10-resnet18-lc", "cifar10-wide-resnet28-lc"))
