"""Tables and numbers for the terminal."""

from typing import Literal

import rich.box
import rich.table

from soap import report
from soap.results import Row


def table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> rich.table.Table:
    """An empty table; `right` names right-aligned columns, `whole` others that a narrow terminal does not fold."""
    made = rich.table.Table(box=rich.box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=column in right + whole)
    return made


def percent(share: float) -> str:
    """0.9312 -> '93.1 %'."""
    return f"{100 * share:.1f} %"


def accuracy(row: Row | None) -> str:
    """Accuracy in per cent with its 95 % interval, or a dash if there is no result."""
    return "-" if row is None else report.percent(row)


def size(count: int) -> str:
    """The size of a file in kB or MB."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
