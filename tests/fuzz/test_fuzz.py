"""Every format that is read, fuzzed; the corpus first, so that what once made a failure is tried again in every run.

`make fuzz` gives each format five minutes and keeps the counts; `make test` a second. `-k weights` fuzzes that alone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from counting import amount, count

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no timers and forks to watch by")

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
FORMATS = sorted(path.name for path in CORPUS.iterdir())
SECONDS = amount(1, 300)
MOST = 150_000
"""Bytes of the corpus in all."""

pytest.importorskip("fastapi", reason="the bodies of requests are read by the extra 'serve'")


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    """In a process of its own, and so without the run-time checks of types that the tests have: as users do."""
    folder = tmp_path_factory.mktemp("fuzz")
    report, found = folder / "report.json", folder / "found"
    chosen = {item.callspec.params["name"] for item in request.session.items if "reports" in item.fixturenames}
    command = [sys.executable, HERE / "running.py", report, found, str(SECONDS), *sorted(chosen)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text())


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_is_read_is_taken_sanely_or_refused(reports, name):
    tally = reports[name]
    told = [f"{kind}: {words}" for kind, words in tally["kinds"].items()]
    count(
        f"fuzzed {name}: taken sanely or refused with our own error, in time and in bounded memory",
        tally["trials"],
        ["; ".join(told)] * tally["failures"],
    )
    assert tally["trials"] > len(list((CORPUS / name).iterdir()))
    assert tally["refused"] > 0


@pytest.mark.parametrize("name", FORMATS)
def test_every_seed_is_taken(reports, name):
    """Else the mutants would all fail at the first check, and the fuzzer would prove nothing."""
    assert reports[name]["untaken"] == []
    assert reports[name]["accepted"] >= len([*(CORPUS / name).glob("seed-*")])


def test_the_corpus_is_small_and_complete():
    source = (HERE / "targets.py").read_text(encoding="utf-8")
    assert sorted(line.split('"')[1] for line in source.splitlines() if line.strip().startswith("name=")) == FORMATS
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MOST
