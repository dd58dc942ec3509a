"""CIFAR-10 images under PGD, purified, one a class, with the network's answers (Figure 4)."""

from matplotlib.figure import Figure

from soap.evaluation.examples import Examples, file_name
from soap.evaluation.gathered import Material
from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.report.paper_figures.thumbnails import blank, place, write

NETWORKS = ("wide-resnet28", "resnet18")
"""The paper shows the first; where its images are missing, the second stands in and the title says so."""
ATTACK, CLASSES = "pgd", 10
SIDE, STEP, LEFT, TOP, ROW = 0.74, 0.82, 1.0, 0.72, 1.0  # inches
BLOCK, LINE = 3.9, 0.5  # inches: a task with images, and one without


def draw(material: Material, palette: Palette) -> Figure:
    """A block a task: a column a class, rows clean, adversarial and purified."""
    blocks = {task: _shown(task, material) for task in ("rp", "lc")}
    heights = [LINE if shown is None else BLOCK for shown in blocks.values()]
    figure = blank(LEFT + CLASSES * STEP + 0.05, sum(heights), palette)
    top = 0.0
    for (task, shown), height in zip(blocks.items(), heights, strict=True):
        wanted = f"cifar10-{NETWORKS[0]}-{task}"
        network = "" if shown is None else f", {panels.network_of(shown.model)}"
        instead = "" if shown is not None and shown.model == wanted else f" (no images of {wanted} yet)"
        title = f"{panels.METHODS[task]}{network}{instead}"
        write(figure, 0.06, top + 0.28, title, palette, fontweight="bold", fontsize=12)
        if shown is not None:
            _draw_block(figure, top, shown, palette)
        top += height
    return figure


def _shown(task: str, material: Material) -> Examples | None:
    """The images of the first network that has any."""
    found = (material.find(file_name(f"cifar10-{network}-{task}"), Examples) for network in NETWORKS)
    return next((shown for shown in found if shown is not None), None)


def _draw_block(figure: Figure, top: float, shown: Examples, palette: Palette) -> None:
    for k, truth in enumerate(shown.truth):
        left = LEFT + k * STEP
        write(figure, left + SIDE / 2, top + TOP - 0.1, shown.classes[truth], palette, ha="center", fontsize=9)
        for row, (attack, purified) in enumerate((("clean", False), (ATTACK, False), (ATTACK, True))):
            column = shown.column(attack, purified=purified)
            answer = shown.answers[column][k]
            place(
                figure, left, top + TOP + row * ROW, SIDE, shown.images[column, k], palette,
                answer=shown.classes[answer], right=answer == truth, letters=8,
            )  # fmt: skip
    for row, stage in enumerate(("clean", "adversarial", "purified")):
        write(figure, 0.06, top + TOP + row * ROW + SIDE / 2, stage, palette, va="center", fontsize=11)
