"""How figures look to a person: tables, shares with their intervals, sizes, and class labels."""

from typing import Literal

import rich.box
import rich.table

from soap import report
from soap.data.sources import SOURCES
from soap.recipes import Recipe
from soap.results import Row


def table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> rich.table.Table:
    """An empty table; `right` names the columns flush right, `whole` further ones that a narrow terminal folds last."""
    made = rich.table.Table(box=rich.box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=column in right + whole)
    return made


def percent(share: float) -> str:
    """0.9312 -> '93.1 %'."""
    return f"{100 * share:.1f} %"


def figure(row: Row | None) -> str:
    """Accuracy and its 95 % interval in per cent, or a dash where nothing was measured."""
    return "-" if row is None else report.percent(row)


def size(count: int) -> str:
    """A file's size."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def class_names(recipe: Recipe, classes: int) -> list[str]:
    """What the model's classes are called: as in its published data set, else by number."""
    names = SOURCES[recipe.data].classes if recipe.data in SOURCES else ()
    return list(names) if len(names) == classes else [str(label) for label in range(classes)]
