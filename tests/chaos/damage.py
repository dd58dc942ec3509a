"""Damaged copies of a file: truncated anywhere, or with one bit flipped; of a small file every possible copy."""

import random
from collections.abc import Iterator, Sequence

from counting import LONG, part_of

TRUNCATIONS, FLIPS = (1_000, 10_000) if LONG else (60, 300)
"""Copies of a file that all parts of a run make together, if it is large enough for that many."""


def truncated(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (description, truncated content); the first two are empty and one byte short."""
    for at in _chosen(len(content), TRUNCATIONS, first=(0, len(content) - 1)):
        yield f"truncated at byte {at} of {len(content)}", content[:at]


def flipped(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (description, content with one bit flipped)."""
    for number in _chosen(8 * len(content), FLIPS):
        at, bit = divmod(number, 8)
        yield f"bit {bit} of byte {at} flipped", content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def _chosen(possible: int, count: int, *, first: Sequence[int] = ()) -> list[int]:
    """Return this part's share of `count` different random numbers below `possible`, or of all if there are fewer."""
    chosen = [*first, *(at for at in random.Random(0).sample(range(possible), min(possible, count)) if at not in first)]
    whole = chosen[:count]
    return [whole[number] for number in (part_of(len(whole)) if LONG else range(len(whole)))]
