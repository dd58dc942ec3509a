"""The side-by-side picture: a row an image, with the input, what became of it, and the difference magnified."""

from collections.abc import Sequence
from pathlib import Path

import torch

from soap._files import atomic
from soap.cli.outputs import pixels
from soap.shapes import Float, Tensor

ROWS = 12
"""The first images only: a sheet is for looking at."""

SIDE, MARGIN, CAPTION, TITLE = 200, 14, 24, 15  # pixels: a panel, between panels, a caption's height and letters


def draw(
    path: Path,
    before: Float[Tensor, "n c h w"],
    after: Float[Tensor, "n c h w"],
    captions: Sequence[tuple[str, str]],
) -> None:
    """Draw the first rows; `captions` stand under the input and under what became of it."""
    from PIL import Image, ImageDraw, ImageFont

    shown = min(ROWS, len(before))
    size = (3 * SIDE + 4 * MARGIN, shown * (SIDE + CAPTION + MARGIN) + MARGIN)
    sheet = Image.new("RGB", size, "white")
    draft, font = ImageDraw.Draw(sheet), ImageFont.load_default(TITLE)
    for row in range(shown):
        difference, gain = magnified(after[row] - before[row])
        panels = (before[row], after[row], difference)
        for column, (panel, caption) in enumerate(zip(panels, (*captions[row], gain), strict=True)):
            left, top = MARGIN + column * (SIDE + MARGIN), MARGIN + row * (SIDE + CAPTION + MARGIN)
            image = Image.fromarray(pixels(panel)).convert("RGB")
            sheet.paste(image.resize((SIDE, SIDE), Image.Resampling.NEAREST), (left, top))
            draft.text((left, top + SIDE + 3), caption, fill="black", font=font)
    with atomic.replace_file(path) as temporary:
        sheet.save(temporary, format="PNG")


def magnified(difference: Float[Tensor, "c h w"]) -> tuple[Float[Tensor, "c h w"], str]:
    """The difference about mid grey, its largest value at black or white; and how far that magnifies it."""
    largest = float(difference.abs().max())
    if largest == 0:
        return torch.full_like(difference, 0.5), "no difference"
    return 0.5 + difference / (2 * largest), f"difference x {0.5 / largest:.3g}"
