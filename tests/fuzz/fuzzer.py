"""A coverage-guided fuzzer for one target: mutants of a growing pool are given to the readers of a file format.

A mutant that reaches a new line of the package joins the pool.
"""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from monitors import Hang, MemoryMonitor, is_memory_error, traced_lines
from mutations import Mutator

TIMEOUT_S = 5.0
"""CPU seconds for one input; intact files of this size take milliseconds."""

MEMORY_FACTOR = 64
"""Bytes that a reader may allocate per byte of its input, in addition to the target's `memory_mib`."""


@dataclass
class Tally:
    """Counts of one target: inputs tried, accepted and refused, lines of the package reached, and failures.

    kinds: for each kind of failure, its message and the path of the first input that caused it. refused_seeds: seeds
    that no reader accepts, although all should be accepted.
    """

    trials: int = 0
    accepted: int = 0
    refused: int = 0
    lines: int = 0
    failures: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    refused_seeds: list[str] = field(default_factory=list)


class Fuzzer:
    """Tries inputs on one target, in this process.

    is_refusal: whether an exception of a reader is an allowed refusal. found: the folder for inputs that cause a
    failure.
    """

    def __init__(self, target: Any, is_refusal: Callable[[BaseException], bool], found: Path, scratch: Path) -> None:
        self.target, self.is_refusal, self.found = target, is_refusal, found
        self.path = scratch / target.file
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.memory, self.lines, self.tally = MemoryMonitor(), set[tuple[str, int]](), Tally()
        signal.signal(signal.SIGPROF, _raise_hang)

    def run(self, corpus: Path, is_over: Callable[[], bool], seed: int) -> Tally:
        """Try the corpus first, then its mutants until `is_over`."""
        inputs = {path.name: path.read_bytes() for path in sorted(corpus.iterdir())}
        # The first call of a reader imports modules, which must not count as its memory.
        for content in inputs.values():
            self.path.write_bytes(content)
            for reader in self.target.readers:
                self._monitored(reader, len(content))
        for name, content in inputs.items():
            self.attempt(content)
            if name.startswith("seed-") and not self.accepted:
                self.attempt(self.target.repair(content))
                self.tally.refused_seeds += [] if self.accepted else [name]
        pool, mutator = list(inputs.values()), Mutator(self.target.tokens, seed)
        draw = random.Random(seed)
        while not is_over():
            mutant = mutator.mutant(pool)
            if self.attempt(self.target.repair(mutant) if draw.random() < 0.5 else mutant):
                pool.append(mutant)
        self.tally.lines = len(self.lines)
        return self.tally

    def attempt(self, content: bytes) -> bool:
        """Give the input to every reader; return whether it reached a new line."""
        self.path.write_bytes(content)
        known, self.accepted, failed = len(self.lines), False, False
        for reader in self.target.readers:
            accepted, kind, message = self._monitored(reader, len(content))
            self.accepted |= accepted
            failed |= bool(kind)
            if kind:
                self._store(content, f"{reader.__name__}: {kind}", message)
        self.tally.trials += 1
        self.tally.failures += failed
        self.tally.accepted += self.accepted
        self.tally.refused += not self.accepted
        return len(self.lines) > known

    def _monitored(self, reader: Callable[[Path], None], size: int) -> tuple[bool, str, str]:
        """Return whether the reader accepted the input, and the kind and message of a failure ("" without one)."""
        self.memory.allow(self.target.memory_mib * 2**20 + MEMORY_FACTOR * size)
        accepted, kind, message = False, "", ""
        signal.setitimer(signal.ITIMER_PROF, TIMEOUT_S)
        try:
            with traced_lines(self.lines):
                reader(self.path)
            accepted = True
        except (Exception, Hang) as error:
            if is_memory_error(error) or not self.is_refusal(error):
                kind = f"{'memory' if is_memory_error(error) else type(error).__name__} at {_line_of(error)}"
                message = str(error)[:200]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if not kind and self.memory.is_exceeded():
            kind = "memory"
            message = f"more than {self.target.memory_mib} MiB and {MEMORY_FACTOR} times the input"
        return accepted, kind, message

    def _store(self, content: bytes, kind: str, message: str) -> None:
        """Store the first input of each kind of failure."""
        if kind not in self.tally.kinds:
            path = self.found / f"{self.target.name}-{len(self.tally.kinds)}"
            path.write_bytes(content)
            self.tally.kinds[kind] = f"{message} ({path})"


def _line_of(error: BaseException) -> str:
    """Return the last line of the package, or of a reader in this folder, in the traceback."""
    step, line = error.__traceback__, "no line of the package"
    while step is not None:
        file = Path(step.tb_frame.f_code.co_filename)
        if {"soap", "fuzz"} & {*file.parts}:
            line = f"{file.name}:{step.tb_lineno}"
        step = step.tb_next
    return line


def _raise_hang(number: int, frame: FrameType | None) -> None:
    raise Hang
