"""Fuzz the readers of every file format, the corpus first, so that every run repeats earlier failures.

`make fuzz` fuzzes each format for five minutes and stores the counts, `make test` for a fifth of a second. `-k weights`
selects one format.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from counting import amount, count

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs timers and fork")

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
FORMATS = sorted(path.name for path in CORPUS.iterdir())
SECONDS = amount(0.2, 300)
MAX_CORPUS_BYTES = 150_000

pytest.importorskip("fastapi", reason="request bodies are read by the extra 'serve'")


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    """Fuzz in a separate process, without the run-time type checks of the tests, as for users."""
    folder = tmp_path_factory.mktemp("fuzz")
    report, found = folder / "report.json", folder / "found"
    chosen = {item.callspec.params["name"] for item in request.session.items if "reports" in item.fixturenames}
    command = [sys.executable, HERE / "run_fuzzers.py", report, found, str(SECONDS), *sorted(chosen)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text())


@pytest.mark.parametrize("name", FORMATS)
def test_fuzzed_files_are_accepted_with_valid_content_or_refused(reports, name):
    tally = reports[name]
    kinds = [f"{kind}: {message}" for kind, message in tally["kinds"].items()]
    count(
        f"fuzzed {name}: accepted with valid content or refused with a library error, in bounded time and memory",
        tally["trials"],
        ["; ".join(kinds)] * tally["failures"],
    )
    assert tally["trials"] > len(list((CORPUS / name).iterdir()))
    assert tally["refused"] > 0


@pytest.mark.parametrize("name", FORMATS)
def test_every_seed_is_accepted(reports, name):
    """Otherwise all mutants would fail at the first check, and the fuzzer would prove nothing."""
    assert reports[name]["refused_seeds"] == []
    assert reports[name]["accepted"] >= len([*(CORPUS / name).glob("seed-*")])


def test_corpus_is_small_and_complete():
    source = (HERE / "targets.py").read_text(encoding="utf-8")
    assert sorted(re.findall(r'\bname="([^"]+)"', source)) == FORMATS
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MAX_CORPUS_BYTES
