"""Drawings of the paper's figures and ablations, from `FigureData` only. A panel without data says so."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from soap.errors import unknown
from soap.paper.figure_data import FigureData
from soap.paper.figures import (
    accuracy_curves,
    gradients,
    heat_map,
    image_grids,
    loss_curves,
    method,
    paired_bars,
    tasks,
    training_time,
)
from soap.report.drawing import LIGHT, Palette, save_figure

Drawing = Callable[[FigureData, Palette], Figure]

DRAWINGS: dict[str, Drawing] = {
    "figure-1": method.draw,
    "figure-2": image_grids.draw_decoded,
    "figure-3": loss_curves.draw,
    "figure-4": image_grids.draw_classes,
    "figure-5": accuracy_curves.draw_betas,
    "figure-6": tasks.draw,
    "figure-7": training_time.draw,
    "figure-8": image_grids.draw_attacks("mnist-fcn-dr", "mnist-cnn-dr"),
    "figure-9": image_grids.draw_attacks("cifar10-resnet18-rp", "cifar10-wide-resnet28-rp"),
    "figure-10": image_grids.draw_attacks("cifar10-resnet18-lc", "cifar10-wide-resnet28-lc"),
    "ablation-steps": heat_map.draw,
    "ablation-rotation": paired_bars.draw_rotation_losses,
    "ablation-radius": accuracy_curves.draw_radii,
    "ablation-leaking": paired_bars.draw_label_leaking,
    "ablation-gradients": gradients.draw,
}
"""By the names of `soap.paper.figure_list.FIGURES`."""


def draw(name: str, data: FigureData, out: Path, *, palette: Palette = LIGHT) -> list[Path]:
    """Write `out`/NAME.png and `out`/NAME.svg; the same data gives the same bytes."""
    if name not in DRAWINGS:
        raise unknown("figure", name, DRAWINGS)
    return save_figure(DRAWINGS[name](data, palette), out, name)
