"""tools/audit.py never calls clean what nobody looked at."""

import json
import re
import sys

import audit as tool
import pytest

LOCK = "# pinned\nnumpy==2.4.1\nPillow==13.0.0  # pictures\nast_serialize==0.1\n"


def looked_at(name, *vulns):
    return {"name": name, "version": "1.0", "vulns": list(vulns)}


def skipped(name):
    return {"name": name, "skip_reason": f"not found: {name}"}


FLAW = {"id": "PYSEC-1", "fix_versions": ["1.1", "2.0"], "description": "bad"}
CLEAN = [looked_at("numpy"), looked_at("pillow"), looked_at("ast-serialize")]

TWO = [looked_at("numpy", FLAW), skipped("pillow")]
NONE = [skipped("numpy"), skipped("pillow"), skipped("ast-serialize")]

ANSWERS = {
    "all clean": (CLEAN, 0, 0, r"3 of 3 packages audited: no known vulnerabilities\."),
    "one vulnerable": ([looked_at("numpy", FLAW), *CLEAN[1:]], 1, 1, "1 known .*\nnumpy 1.0: PYSEC-1, mended in 1.1"),
    "vulnerable, and one skipped": (TWO, 1, 1, "1 of 3 .*\nnumpy 1.0: PYSEC-1"),
    "no version mends it": ([looked_at("numpy", {"id": "X", "fix_versions": []})], 1, 1, "X, mended in no version yet"),
    "all skipped": (NONE, 0, 3, "^not audited: the feed could"),
    "one skipped": ([*CLEAN[:2], skipped("ast-serialize")], 0, 3, "2 of 3 .*; not audited: ast-serialize"),
    "one left out": (CLEAN[:2], 0, 3, "2 of 3 .*; not audited: ast-serialize"),
    "nothing": ([], 0, 3, "^not audited: .*answered with nothing"),
}


def run(tmp_path, script):
    (tmp_path / "fake.py").write_text(script)
    (tmp_path / "some.lock").write_text(LOCK)
    return tool.audit([sys.executable, str(tmp_path / "fake.py")], tmp_path / "some.lock")


@pytest.mark.parametrize(("found", "exit_code", "code", "says"), ANSWERS.values(), ids=ANSWERS)
def test_what_pip_audit_finds(tmp_path, found, exit_code, code, says):
    """A fake that writes what pip-audit 2.10 writes; on the error stream it says the same in any case, as that does."""
    answer = json.dumps({"dependencies": found, "fixes": []})
    lines = ["import sys", f"print({answer!r})", "print('No known vulnerabilities found', file=sys.stderr)"]
    got, words = run(tmp_path, "\n".join([*lines, f"sys.exit({exit_code})"]))
    assert got == code
    assert re.search(says, words), words


@pytest.mark.parametrize(
    "script",
    ["raise OSError('cannot resolve')", "print('[]')", "print('{}')", "print('null')", "print('no JSON')", ""],
)
def test_without_a_feed_nothing_is_called_clean(tmp_path, script):
    code, words = run(tmp_path, script)
    assert code == tool.NOT_AUDITED
    assert words.startswith("not audited: the feed could not be reached")


def test_it_is_given_the_lock(tmp_path):
    _, words = run(tmp_path, "import sys\nprint('|'.join(sys.argv), file=sys.stderr)")
    assert f"--requirement|{tmp_path / 'some.lock'}|--no-deps|--disable-pip" in words


def test_the_lock_of_this_repository_is_understood():
    names = tool.pinned(tool.LOCK)
    assert len(names) == tool.LOCK.read_text(encoding="utf-8").count("==")
    assert {"torch", "numpy", "safetensors", "pillow"} <= {*names}
