"""The fuzzer of one target: mutants of a growing pool, each given to the readers under watch.

A mutant that reaches a line of the package that none before it had reached joins the pool.
"""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from mutating import Mutator
from watching import Hang, Room, reached, starved

PATIENCE = 5.0
"""Seconds of processor time for one input; whole files of this size take milliseconds."""

TIMES = 64
"""Bytes that a reader may take for each byte of its input, beside the target's own room."""


@dataclass
class Tally:
    """What came of a target: inputs tried, taken and refused, lines of the package reached, and failures.

    kinds: for each kind of failure what was said, and where the first input of that kind is kept. untaken: seeds that
    no reader takes, as they should.
    """

    trials: int = 0
    accepted: int = 0
    refused: int = 0
    lines: int = 0
    failures: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    untaken: list[str] = field(default_factory=list)


class Fuzzer:
    """Tries inputs on one target, in this process.

    refusal: whether a reader may end with an exception. found: the folder for inputs that make a failure.
    """

    def __init__(self, target: Any, refusal: Callable[[BaseException], bool], found: Path, scratch: Path) -> None:
        self.target, self.refusal, self.found = target, refusal, found
        self.path = scratch / target.file
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.room, self.lines, self.tally = Room(), set[tuple[str, int]](), Tally()
        signal.signal(signal.SIGPROF, _hang)

    def run(self, corpus: Path, over: Callable[[], bool], seed: int) -> Tally:
        """The corpus first, then mutants of it until it is over."""
        kept = {path.name: path.read_bytes() for path in sorted(corpus.iterdir())}
        for content in kept.values():  # the first use of a reader imports what it needs, which is not its own memory
            self.path.write_bytes(content)
            for reader in self.target.readers:
                self._under_watch(reader, len(content))
        for name, content in kept.items():
            self.attempt(content)
            if name.startswith("seed-") and not self.taken:
                self.attempt(self.target.mend(content))
                self.tally.untaken += [] if self.taken else [name]
        pool, mutator = list(kept.values()), Mutator(self.target.tokens, seed)
        draw = random.Random(seed)
        while not over():
            mutant = mutator.mutant(pool)
            if self.attempt(self.target.mend(mutant) if draw.random() < 0.5 else mutant):
                pool.append(mutant)
        self.tally.lines = len(self.lines)
        return self.tally

    def attempt(self, content: bytes) -> bool:
        """Give the input to every reader; whether it reached a line that none before it had."""
        self.path.write_bytes(content)
        known, self.taken, failed = len(self.lines), False, False
        for reader in self.target.readers:
            accepted, kind, told = self._under_watch(reader, len(content))
            self.taken |= accepted
            failed |= bool(kind)
            if kind:
                self._keep(content, f"{reader.__name__}: {kind}", told)
        self.tally.trials += 1
        self.tally.failures += failed
        self.tally.accepted += self.taken
        self.tally.refused += not self.taken
        return len(self.lines) > known

    def _under_watch(self, reader: Callable[[Path], None], size: int) -> tuple[bool, str, str]:
        """Whether the reader took the input; and what is wrong with how it ended, as a kind and in words."""
        self.room.allow(self.target.room * 2**20 + TIMES * size)
        accepted, kind, told = False, "", ""
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
        try:
            with reached(self.lines):
                reader(self.path)
            accepted = True
        except (Exception, Hang) as error:
            if starved(error) or not self.refusal(error):
                kind = f"{'memory' if starved(error) else type(error).__name__} at {_place(error)}"
                told = str(error)[:200]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if not kind and self.room.overdrawn():
            kind, told = "memory", f"more than {self.target.room} MiB and {TIMES} times the input"
        return accepted, kind, told

    def _keep(self, content: bytes, kind: str, told: str) -> None:
        """One input a kind of failure."""
        if kind not in self.tally.kinds:
            kept = self.found / f"{self.target.name}-{len(self.tally.kinds)}"
            kept.write_bytes(content)
            self.tally.kinds[kind] = f"{told} ({kept})"


def _place(error: BaseException) -> str:
    """The last line of the package, or of a reader here, that an exception came through."""
    step, where = error.__traceback__, "no line of ours"
    while step is not None:
        file = Path(step.tb_frame.f_code.co_filename)
        if {"soap", "fuzz"} & {*file.parts}:
            where = f"{file.name}:{step.tb_lineno}"
        step = step.tb_next
    return where


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang
