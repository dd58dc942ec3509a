"""Damage that a stranger could do to a file: bits, numbers, chunks and words changed, from a seed.

Positions are drawn near the beginning or the end as often as anywhere else: headers stand there.
"""

import random
import re
from collections.abc import Callable, Sequence

LONGEST = 2**17
"""Bytes of a mutant at most: what is larger teaches nothing more, only slower."""

NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 9, 15, 16, 27, 28, 29, 31, 32, 33, 63, 64, 100, 127, 128, 129, 255, 256, 257, 1000, 1024),
    *(4095, 4096, 32767, 32768, 65535, 65536, 65537, 10**6, 2**24, 10**8, 2**28, 2**30 - 1, 2**30, 2**31 - 1, 2**31),
    *(2**32 - 1, 2**32, 10**12, 2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1),
)
DECIMALS = (
    *(str(number).encode() for number in NUMBERS),
    *(b"-1", b"-0", b"-65537", b"0.5", b"-0.5", b"1e400", b"-1e400", b"1e-400", b"nan", b"inf", b"true", b"null"),
    *(b'""', b"[]", b"{}", b'"8/255"', b'"1/0"', b'"' + b"9" * 400 + b'/1"', b"9" * 30, b"9" * 400, b"9" * 5000),
)
DIGITS = re.compile(rb"-?\d[\d.eE+-]*")


class Mutator:
    """Mutants of the members of a pool; equal seeds give equal mutants."""

    def __init__(self, tokens: Sequence[bytes], seed: int) -> None:
        self.draw = random.Random(seed)
        self.tokens = tokens or (b"\0",)
        self.ways: tuple[Callable[[bytearray], None], ...] = (
            self._flip, self._flip, self._byte, self._integer, self._integer, self._decimal, self._decimal,
            self._token, self._token, self._remove, self._double, self._noise, self._cut,
        )  # fmt: skip

    def mutant(self, pool: Sequence[bytes]) -> bytes:
        """One to eight changes, few of them as a rule, to a member of the pool or to two halves of two."""
        content = bytearray(self.draw.choice(pool))
        if self.draw.random() < 0.1:
            other = self.draw.choice(pool)
            content = content[: self._place(content)] + other[self._place(other) :]
        for _ in range(min(8, 1 + int(self.draw.expovariate(0.7)))):
            self.draw.choice(self.ways)(content)
        return bytes(content[:LONGEST])

    def _place(self, content: bytes | bytearray) -> int:
        """A position: within the first or the last 2^k bytes, k random."""
        if not content:
            return 0
        near = min(len(content), 2 ** self.draw.randint(3, 17))
        return self.draw.randrange(near) if self.draw.random() < 0.75 else len(content) - 1 - self.draw.randrange(near)

    def _span(self, content: bytearray) -> tuple[int, int]:
        start = self._place(content)
        return start, min(len(content), start + 2 ** self.draw.randint(0, 12))

    def _flip(self, content: bytearray) -> None:
        if content:
            content[self._place(content)] ^= 1 << self.draw.randrange(8)

    def _byte(self, content: bytearray) -> None:
        if content:
            content[self._place(content)] = self.draw.choice((0, 1, 0x7F, 0x80, 0xFF, self.draw.randrange(256)))

    def _integer(self, content: bytearray) -> None:
        """A binary number, of either order, over what is there."""
        width, order = self.draw.choice((1, 2, 4, 8)), self.draw.choice(("big", "little"))
        number = self.draw.choice(NUMBERS) % 2 ** (8 * width)
        start = self._place(content)
        content[start : start + width] = number.to_bytes(width, order)

    def _decimal(self, content: bytearray) -> None:
        """Another number, or something else, for one in text."""
        start = self._place(content)
        found = DIGITS.search(content, start, start + 4096)
        if found:
            content[found.start() : found.end()] = self.draw.choice(DECIMALS)

    def _token(self, content: bytearray) -> None:
        """A word of the format, put in or put over."""
        token, start = self.draw.choice(self.tokens), self._place(content)
        content[start : start + (len(token) if self.draw.random() < 0.5 else 0)] = token

    def _remove(self, content: bytearray) -> None:
        start, end = self._span(content)
        del content[start:end]

    def _double(self, content: bytearray) -> None:
        """A chunk again, there or elsewhere, a few times or very often."""
        start, end = self._span(content)
        often = self.draw.choice((1, 1, 1, 2, 8, 2000))
        place = self.draw.choice((end, self._place(content)))
        content[place:place] = (content[start:end] * often)[:LONGEST]

    def _noise(self, content: bytearray) -> None:
        start = self._place(content)
        content[start:start] = self.draw.randbytes(2 ** self.draw.randint(0, 6))

    def _cut(self, content: bytearray) -> None:
        del content[self._place(content) :]
