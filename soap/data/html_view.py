"""Views of objects in notebooks: tables of text, which is escaped, and images as one embedded PNG."""

from collections.abc import Mapping, Sequence
from html import escape

import torch

from soap.data.pictures import base64_png
from soap.shapes import Tensor

MAX_IMAGES = 10
"""Images of a strip."""


def html_table(lines: Sequence[Mapping[str, object]]) -> str:
    """A table with one row for each line and the names of the first line as header."""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in (lines[0] if lines else ()))
    rows = ("".join(f"<td>{escape(str(value))}</td>" for value in line.values()) for line in lines)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def image_strip(*batches: Tensor) -> str:
    """The first images of each batch side by side, one batch below another; empty for inputs other than images."""
    if any(batch.ndim != 4 or batch.shape[1] not in (1, 3) for batch in batches):
        return ""
    rows = [torch.cat([*batch[:MAX_IMAGES].detach().float().cpu().clamp(0, 1)], 2) for batch in batches]
    strip = torch.cat(rows, 1)
    width = max(strip.shape[2], 48 * min(MAX_IMAGES, len(batches[0])))
    style = f"width:{width}px;image-rendering:pixelated"
    return f'<img src="data:image/png;base64,{base64_png(strip)}" alt="" style="{style}">'
