"""The fuzzer itself: each kind of faulty reader is detected, and correct readers are not reported."""

import json
import mmap
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fuzzer
import mutations
import pytest
from monitors import STATUS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs timers and fork")

HERE = Path(__file__).parent


class RefusedError(Exception):
    pass


def make_fuzzer(tmp_path, *readers):
    target = SimpleNamespace(
        name="own", file="a/input", readers=readers, tokens=(b"key",), repair=bytes.upper, memory_mib=8
    )
    (tmp_path / "found").mkdir()
    return fuzzer.Fuzzer(target, refused, tmp_path / "found", tmp_path / "scratch")


def refused(error):
    return isinstance(error, RefusedError)


def good(path):
    if len(path.read_bytes()) % 2:
        raise RefusedError


def raises_key_error(path):
    if b"x" in path.read_bytes():
        raise KeyError("x")


def hangs(path):
    while True:
        pass


def catches_exceptions(path):
    try:
        while True:
            pass
    except Exception as error:
        raise RefusedError from error


def reserves_memory(path):
    mmap.mmap(-1, 2**28).close()  # reserved, not used, freed at once


def runs_out_of_memory(path):
    try:
        raise MemoryError
    except MemoryError as error:
        raise RefusedError from error


def test_correct_reader_has_no_failures(tmp_path):
    one = make_fuzzer(tmp_path, good)
    for content in (b"", b"1", b"22" * 1000):
        one.attempt(content)
    assert (one.tally.trials, one.tally.accepted, one.tally.refused, one.tally.failures) == (3, 2, 1, 0)


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        (raises_key_error, "raises_key_error: KeyError at test_fuzzer.py:"),
        (hangs, "hangs: Hang at "),
        (catches_exceptions, "catches_exceptions: Hang at "),
        pytest.param(
            reserves_memory,
            "reserves_memory: memory",
            marks=pytest.mark.skipif(not STATUS.exists(), reason="no /proc here"),
        ),
        (runs_out_of_memory, "runs_out_of_memory: memory at "),
    ],
)
def test_faulty_reader_is_detected_and_its_input_stored(tmp_path, monkeypatch, reader, kind):
    monkeypatch.setattr(fuzzer, "TIMEOUT_S", 0.1)
    one = make_fuzzer(tmp_path, good, reader)
    one.attempt(b"x!")
    one.attempt(b"x!!!")
    assert one.tally.failures == 2
    assert len(one.tally.kinds) == 1
    assert next(iter(one.tally.kinds)).startswith(kind)
    assert (tmp_path / "found" / "own-0").read_bytes() == b"x!"


def fails_deep_inside(path):
    """Fails behind a header that no single mutation produces: only a growing pool reaches it."""
    from soap.data.binary_files import read_idx
    from soap.errors import FileError

    try:
        read_idx(path, 1)
    except FileError as error:
        raise RefusedError from error
    raise LookupError


def test_coverage_guides_the_fuzzer_to_valid_files(tmp_path):
    """From an empty file to one with two magic numbers and a matching length, which chance alone would not find."""
    one = make_fuzzer(tmp_path, fails_deep_inside)
    one.target.tokens = (b"\0\0\x08\x01", b"\0\0\0\x01")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "empty").write_bytes(b"")
    tally = one.run(corpus, lambda: one.tally.failures > 0 or one.tally.trials == 20_000, seed=0)
    assert ["LookupError" in kind for kind in tally.kinds] == [True]


PROCESSES = """
import json, os, sys, time
from pathlib import Path
from types import SimpleNamespace
import run_fuzzers
run_fuzzers.GRACE_S = 0.5

def crash(path):
    os.abort()

def blocked(path):
    time.sleep(3600)

def fine(path):
    pass

root = Path(sys.argv[1])
targets = {}
for reader in (crash, blocked, fine):
    name = reader.__name__
    (root / name).mkdir()
    (root / name / "seed-a").write_bytes(b"a" * 9)
    targets[name] = SimpleNamespace(name=name, file="in", readers=(reader,), tokens=(), repair=bytes, memory_mib=64)
print(json.dumps(run_fuzzers.supervise(targets, lambda error: False, root, 0.1, root / "found")))
"""


def test_crashes_and_hangs_of_processes_are_reported(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROCESSES, tmp_path], cwd=HERE, capture_output=True, check=True)
    tallies = json.loads(done.stdout)
    assert list(tallies["crash"]["kinds"]) == ["crash with exit code -6"]
    assert list(tallies["blocked"]["kinds"]) == ["hang that no signal ends"]
    assert (tmp_path / "found" / "crash-crash").read_bytes() == b"a" * 9
    assert (tallies["fine"]["failures"], tallies["fine"]["refused_seeds"]) == (0, [])
    assert tallies["fine"]["accepted"] == tallies["fine"]["trials"] > 1


def test_equal_seeds_give_equal_mutants_and_most_differ():
    pool = [b"{'shape': (28, 28), 'n': 7}" * 20, bytes(100)]
    first, second = ([mutator.mutant(pool) for _ in range(500)] for mutator in map(mutator_of, (1, 1)))
    assert first == second
    assert len(set(first)) > 450
    assert first[:20] != [mutator_of(2).mutant(pool) for _ in range(20)]
    assert max(map(len, first)) <= mutations.MAX_MUTANT_BYTES
    assert any(b"magic" in mutant for mutant in first)


def mutator_of(seed):
    return mutations.Mutator((b"magic",), seed)


def test_mutator_accepts_an_empty_file():
    mutator = mutator_of(0)
    assert any(mutator.mutant([b""]) for _ in range(200))
