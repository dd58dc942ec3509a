"""The fuzzer itself: readers that do each kind of wrong are caught at it, and good ones are not."""

import json
import mmap
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fuzzing
import mutating
import pytest
from watching import STATUS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no timers and forks to watch by")

HERE = Path(__file__).parent


class RefusedError(Exception):
    pass


def fuzzer(tmp_path, *readers):
    target = SimpleNamespace(name="own", file="a/input", readers=readers, tokens=(b"key",), mend=bytes.upper, room=8)
    (tmp_path / "found").mkdir()
    return fuzzing.Fuzzer(target, refused, tmp_path / "found", tmp_path / "scratch")


def refused(error):
    return isinstance(error, RefusedError)


def good(path):
    if len(path.read_bytes()) % 2:
        raise RefusedError


def foreign(path):
    if b"x" in path.read_bytes():
        raise KeyError("x")


def endless(path):
    while True:
        pass


def deaf(path):
    try:
        while True:
            pass
    except Exception as error:
        raise RefusedError from error


def greedy(path):
    mmap.mmap(-1, 2**28).close()  # reserved, never touched, and given back


def starving(path):
    try:
        raise MemoryError
    except MemoryError as error:
        raise RefusedError from error


def test_a_good_reader_has_no_failures(tmp_path):
    one = fuzzer(tmp_path, good)
    for content in (b"", b"1", b"22" * 1000):
        one.attempt(content)
    assert (one.tally.trials, one.tally.accepted, one.tally.refused, one.tally.failures) == (3, 2, 1, 0)


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        (foreign, "foreign: KeyError at test_fuzzer.py:"),
        (endless, "endless: Hang at "),
        (deaf, "deaf: Hang at "),
        pytest.param(greedy, "greedy: memory", marks=pytest.mark.skipif(not STATUS.exists(), reason="no /proc here")),
        (starving, "starving: memory at "),
    ],
)
def test_a_bad_reader_is_caught_and_the_input_kept(tmp_path, monkeypatch, reader, kind):
    monkeypatch.setattr(fuzzing, "PATIENCE", 0.1)
    one = fuzzer(tmp_path, good, reader)
    one.attempt(b"x!")
    one.attempt(b"x!!!")
    assert one.tally.failures == 2
    assert len(one.tally.kinds) == 1
    assert next(iter(one.tally.kinds)).startswith(kind)
    assert (tmp_path / "found" / "own-0").read_bytes() == b"x!"


def hidden(path):
    """Fails behind a word that no single change makes: only a pool that grows gets there."""
    from soap.data.mnist import read_idx
    from soap.errors import FileError

    try:
        read_idx(path, 1)
    except FileError as error:
        raise RefusedError from error
    raise LookupError


def test_new_lines_lead_the_way_in(tmp_path):
    """From an empty file to one of two magic numbers and a length that fits, which chance alone would not meet."""
    one = fuzzer(tmp_path, hidden)
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
import running
running.GRACE = 0.5

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
    targets[name] = SimpleNamespace(name=name, file="in", readers=(reader,), tokens=(), mend=bytes, room=64)
print(json.dumps(running.supervise(targets, lambda error: False, root, 0.1, root / "found")))
"""


def test_crashes_and_hangs_of_whole_processes_are_told(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROCESSES, tmp_path], cwd=HERE, capture_output=True, check=True)
    tallies = json.loads(done.stdout)
    assert list(tallies["crash"]["kinds"]) == ["crash with exit code -6"]
    assert list(tallies["blocked"]["kinds"]) == ["hang that no signal ends"]
    assert (tmp_path / "found" / "crash-crash").read_bytes() == b"a" * 9
    assert (tallies["fine"]["failures"], tallies["fine"]["untaken"]) == (0, [])
    assert tallies["fine"]["accepted"] == tallies["fine"]["trials"] > 1


def test_equal_seeds_give_equal_mutants_and_few_are_alike():
    pool = [b"{'shape': (28, 28), 'n': 7}" * 20, bytes(100)]
    first, second = ([mutator.mutant(pool) for _ in range(500)] for mutator in map(made, (1, 1)))
    assert first == second
    assert len(set(first)) > 450
    assert first[:20] != [made(2).mutant(pool) for _ in range(20)]
    assert max(map(len, first)) <= mutating.LONGEST
    assert any(b"magic" in mutant for mutant in first)


def made(seed):
    return mutating.Mutator((b"magic",), seed)


def test_an_empty_pool_member_does_no_harm():
    mutator = made(0)
    assert any(mutator.mutant([b""]) for _ in range(200))
