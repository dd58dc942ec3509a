"""Digits as the network is shown them and as its decoder sees them (Figure 2)."""

from matplotlib.figure import Figure

from soap.evaluation.examples import Examples, file_name
from soap.evaluation.gathered import Material
from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.report.paper_figures.thumbnails import blank, place, write

MODEL, ATTACK = "mnist-fcn-dr", "pgd"
SIDE, STEP, LEFT, GAP, TOP, ROW = 0.5, 0.55, 1.1, 0.35, 0.5, 0.84  # inches


def draw(material: Material, palette: Palette) -> Figure:
    """Three rows (clean, adversarial, purified), inputs on the left and what is decoded from them on the right."""
    shown = material.find(file_name(MODEL), Examples)
    if shown is None or not shown.decoded.size:
        figure, (axes,) = panels.side_by_side(1, palette, width=8)
        panels.say(axes, palette, f"no images of {MODEL} yet")
        return figure
    stages = {
        "clean": shown.column("clean"),
        "adversarial": shown.column(ATTACK),
        "purified": shown.column(ATTACK, purified=True),
    }
    block = len(shown.truth) * STEP
    figure = blank(LEFT + 2 * block + GAP, TOP + len(stages) * ROW, palette)
    for left, title in ((LEFT, "input of the encoder"), (LEFT + block + GAP, "output of the decoder")):
        write(figure, left, 0.3, title, palette, fontweight="bold", fontsize=12)
    for row, (stage, column) in enumerate(stages.items()):
        top = TOP + row * ROW
        write(figure, 0.06, top + SIDE / 2, stage, palette, va="center", fontsize=11)
        for k, truth in enumerate(shown.truth):
            answer = shown.answers[column][k]
            place(
                figure, LEFT + k * STEP, top, SIDE, shown.images[column, k], palette,
                answer=str(answer), right=answer == truth, letters=10,
            )  # fmt: skip
            place(figure, LEFT + block + GAP + k * STEP, top, SIDE, shown.decoded[column, k], palette)
    return figure
