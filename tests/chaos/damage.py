"""Damaged copies of a file, from a seed: truncated anywhere, or with one bit flipped."""

import random
from collections.abc import Iterator

from counting import amount

TRUNCATIONS, FLIPS = amount(60, 1_000), amount(300, 10_000)


def truncated(content: bytes, *, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield (description, truncated content); the first two are empty and one byte short."""
    draw = random.Random(seed)
    for number in range(TRUNCATIONS):
        at = {0: 0, 1: len(content) - 1}.get(number, draw.randrange(len(content)))
        yield f"truncated at byte {at} of {len(content)}", content[:at]


def flipped(content: bytes, *, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield (description, content with one bit flipped)."""
    draw = random.Random(seed)
    for _ in range(FLIPS):
        at, bit = draw.randrange(len(content)), draw.randrange(8)
        yield f"bit {bit} of byte {at} flipped", content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
