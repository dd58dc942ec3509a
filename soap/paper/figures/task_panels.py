"""A figure with one panel for each auxiliary task."""

from collections.abc import Callable
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.paper.figure_list import TASKS
from soap.paper.model_names import title_of
from soap.report.drawing import Palette
from soap.report.panels import panel_row, set_titles, show_message

PanelData = TypeVar("PanelData")


def draw_task_panels(
    find: Callable[[str], PanelData | None],
    draw_panel: Callable[[Axes, str, PanelData], None],
    missing: str,
    palette: Palette,
    *,
    width: float = 3.5,
    height: float = 3.2,
) -> Figure:
    """Draw each model's data; where `find` returns nothing, the panel shows `missing`, with {model} filled in."""
    figure, panels = panel_row(len(TASKS), palette, width=width, height=height)
    for axes, model in zip(panels, TASKS, strict=True):
        found = find(model)
        if found:
            draw_panel(axes, title_of(model), found)
        else:
            set_titles(axes, palette, title_of(model))
            show_message(axes, palette, missing.format(model=model))
    return figure
