"""Damaged copies of a file, from a seed: cut off anywhere, or with one bit flipped."""

import random
from collections.abc import Iterator

from counting import amount

CUTS, FLIPS = amount(60, 1_000), amount(300, 10_000)


def cut_off(content: bytes, *, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """(what was done, the content without its end); at the first and the last byte, too."""
    draw = random.Random(seed)
    for number in range(CUTS):
        at = {0: 0, 1: len(content) - 1}.get(number, draw.randrange(len(content)))
        yield f"cut off at byte {at} of {len(content)}", content[:at]


def flipped(content: bytes, *, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """(what was done, the content with one other bit)."""
    draw = random.Random(seed)
    for _ in range(FLIPS):
        at, bit = draw.randrange(len(content)), draw.randrange(8)
        yield f"bit {bit} of byte {at} flipped", content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
