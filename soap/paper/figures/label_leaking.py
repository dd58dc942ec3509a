"""FGSM adversarial training: accuracy on clean images and under FGSM (section 4.1)."""

from matplotlib.figure import Figure

from soap.evaluation.gathered import Material
from soap.evaluation.swept import by_attack
from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.report.paper_figures.paired_bars import Case, draw_pairs, share

MODELS = ("mnist-fcn-fgsm-at", "mnist-cnn-fgsm-at", "cifar10-resnet18-fgsm-at", "cifar10-wide-resnet28-fgsm-at")


def draw(material: Material, palette: Palette) -> Figure:
    """A pair of bars a network; where the second is the longer, labels leak."""
    figure, (axes,) = panels.side_by_side(1, palette, width=7.5, height=4.2)
    cases = []
    for model in MODELS:
        rows = by_attack(material.rows, model)
        name = f"{panels.network_of(model)}\n{panels.data_of(model)}"
        pair = (share(rows.get("none")), share(rows.get("fgsm")))
        cases.append(Case(name, pair, f"no rows of {model} clean and under FGSM yet"))
    panels.head(axes, palette, "Networks trained on FGSM examples", "accuracy, %")
    draw_pairs(axes, cases, ("clean images", "under FGSM"), palette)
    return figure
