"""The side-by-side image: one line per image with the input, the changed image and their magnified difference."""

from collections.abc import Sequence
from pathlib import Path

from soap._files import atomic
from soap.data.pictures import magnify_difference, to_uint8
from soap.shapes import Float, Tensor

MAX_LINES = 12
"""Only the first images are drawn."""

PANEL_PX, MARGIN_PX, CAPTION_PX, FONT_PX = 200, 14, 24, 15


def draw_comparison(
    path: Path, before: Float[Tensor, "n c h w"], after: Float[Tensor, "n c h w"], captions: Sequence[tuple[str, str]]
) -> None:
    """Draw the first images and write a PNG file; `captions` go under the input and under the changed image."""
    from PIL import Image, ImageDraw, ImageFont

    lines = min(MAX_LINES, len(before))
    size = (3 * PANEL_PX + 4 * MARGIN_PX, lines * (PANEL_PX + CAPTION_PX + MARGIN_PX) + MARGIN_PX)
    canvas = Image.new("RGB", size, "white")
    drawing, font = ImageDraw.Draw(canvas), ImageFont.load_default(FONT_PX)
    for line in range(lines):
        change = after[line] - before[line]
        difference, factor = magnify_difference(change)
        magnified = f"difference x {factor:.3g}" if bool(change.any()) else "no difference"
        panels = (before[line], after[line], difference)
        for column, (panel, caption) in enumerate(zip(panels, (*captions[line], magnified), strict=True)):
            left = MARGIN_PX + column * (PANEL_PX + MARGIN_PX)
            top = MARGIN_PX + line * (PANEL_PX + CAPTION_PX + MARGIN_PX)
            image = Image.fromarray(to_uint8(panel)).convert("RGB")
            canvas.paste(image.resize((PANEL_PX, PANEL_PX), Image.Resampling.NEAREST), (left, top))
            drawing.text((left, top + PANEL_PX + 3), caption, fill="black", font=font)
    with atomic.replace_file(path) as temporary:
        canvas.save(temporary, format="PNG")
