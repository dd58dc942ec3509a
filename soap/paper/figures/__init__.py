"""The paper's figures and the pictures of its ablations, drawn from gathered files, rows and timings alone.

A panel whose data are missing says so; nothing is invented for it.
"""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from soap._files import atomic
from soap.errors import unknown
from soap.evaluation.gathered import Material
from soap.report.drawing import LIGHT, Palette, png, svg
from soap.report.paper_figures import (
    attack_examples,
    betas,
    class_examples,
    decoded,
    fixed_radii,
    gradients,
    heat_map,
    label_leaking,
    method,
    radius_curves,
    rotation_losses,
    tasks,
    training_time,
)

Drawing = Callable[[Material, Palette], Figure]

DRAWINGS: dict[str, Drawing] = {
    "figure-1": method.draw,
    "figure-2": decoded.draw,
    "figure-3": radius_curves.draw,
    "figure-4": class_examples.draw,
    "figure-5": betas.draw,
    "figure-6": tasks.draw,
    "figure-7": training_time.draw,
    "figure-8": attack_examples.mnist,
    "figure-9": attack_examples.rotation,
    "figure-10": attack_examples.consistency,
    "ablation-steps": heat_map.draw,
    "ablation-rotation": rotation_losses.draw,
    "ablation-radius": fixed_radii.draw,
    "ablation-leaking": label_leaking.draw,
    "ablation-gradients": gradients.draw,
}
"""By the names of `soap.paper.figures.FIGURES`."""


def draw(name: str, material: Material, out: Path, *, palette: Palette = LIGHT) -> list[Path]:
    """Write `out`/NAME.png and `out`/NAME.svg; the same material gives the same bytes."""
    if name not in DRAWINGS:
        raise unknown("figure", name, DRAWINGS)
    figure = DRAWINGS[name](material, palette)
    contents = {"png": png(figure), "svg": svg(figure)}
    paths = []
    for kind, content in contents.items():
        path = out / f"{name}.{kind}"
        with atomic.replacing(path) as temporary:
            temporary.write_bytes(content)
        paths.append(path)
    return paths


__all__ = ["DRAWINGS", "Drawing", "draw"]
