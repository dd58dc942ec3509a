"""Drawings of the paper's figures and ablations, from `FigureData` only. A panel without data says so."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from soap.errors import unknown
from soap.paper.figure_data import FigureData
from soap.paper.figures import bars, curves, image_grids, method
from soap.report.drawing import LIGHT, Palette, save_figure

Drawing = Callable[[FigureData, Palette], Figure]

DRAWINGS: dict[str, Drawing] = {
    "figure-1": method.draw,
    "figure-2": image_grids.draw_decoded,
    "figure-3": curves.draw_losses,
    "figure-4": image_grids.draw_classes,
    "figure-5": curves.draw_betas,
    "figure-6": image_grids.draw_tasks,
    "figure-7": bars.draw_training_time,
    "figure-8": image_grids.draw_attacks("mnist-fcn-dr", "mnist-cnn-dr"),
    "figure-9": image_grids.draw_attacks("cifar10-resnet18-rp", "cifar10-wide-resnet28-rp"),
    "figure-10": image_grids.draw_attacks("cifar10-resnet18-lc", "cifar10-wide-resnet28-lc"),
    "ablation-steps": curves.draw_steps,
    "ablation-rotation": bars.draw_rotation_losses,
    "ablation-radius": curves.draw_radii,
    "ablation-leaking": bars.draw_label_leaking,
    "ablation-gradients": bars.draw_gradients,
}
"""By the names of `soap.paper.figure_list.FIGURES`."""


def draw(name: str, data: FigureData, out: Path, *, palette: Palette = LIGHT) -> list[Path]:
    """Write `out`/NAME.png and `out`/NAME.svg; the same data gives the same bytes."""
    if name not in DRAWINGS:
        raise unknown("figure", name, DRAWINGS)
    return save_figure(DRAWINGS[name](data, palette), out, name)
