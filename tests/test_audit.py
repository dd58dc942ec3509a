"""tools/audit.py reports a package as clean only if it was audited."""

import json
import re
import sys

import audit as tool
import pytest

LOCK = "# pinned\nnumpy==2.4.1\nPillow==13.0.0  # pictures\nast_serialize==0.1\n"


def audited(name, *vulns):
    return {"name": name, "version": "1.0", "vulns": list(vulns)}


def skipped(name):
    return {"name": name, "skip_reason": f"not found: {name}"}


FLAW = {"id": "PYSEC-1", "fix_versions": ["1.1", "2.0"], "description": "bad"}
CLEAN = [audited("numpy"), audited("pillow"), audited("ast-serialize")]

TWO = [audited("numpy", FLAW), skipped("pillow")]
NONE = [skipped("numpy"), skipped("pillow"), skipped("ast-serialize")]

RESULTS = {
    "all clean": (CLEAN, 0, 0, r"3 of 3 packages audited: no known vulnerabilities\."),
    "one vulnerable": ([audited("numpy", FLAW), *CLEAN[1:]], 1, 1, "1 known .*\nnumpy 1.0: PYSEC-1, fixed in 1.1"),
    "vulnerable, and one skipped": (TWO, 1, 1, "1 of 3 .*\nnumpy 1.0: PYSEC-1"),
    "no fixed version": ([audited("numpy", {"id": "X", "fix_versions": []})], 1, 1, "X, fixed in no version yet"),
    "all skipped": (NONE, 0, 3, "^not audited: the feed could"),
    "one skipped": ([*CLEAN[:2], skipped("ast-serialize")], 0, 3, "2 of 3 .*; not audited: ast-serialize"),
    "one missing": (CLEAN[:2], 0, 3, "2 of 3 .*; not audited: ast-serialize"),
    "nothing": ([], 0, 3, "^not audited: .*returned nothing"),
}


def run(tmp_path, script):
    (tmp_path / "fake.py").write_text(script)
    (tmp_path / "some.lock").write_text(LOCK)
    return tool.audit([sys.executable, str(tmp_path / "fake.py")], tmp_path / "some.lock")


@pytest.mark.parametrize(("found", "exit_code", "code", "message"), RESULTS.values(), ids=RESULTS)
def test_exit_code_and_message_for_each_result_of_pip_audit(tmp_path, found, exit_code, code, message):
    """A fake that writes what pip-audit 2.10 writes, with the same text on stderr for every result."""
    result = json.dumps({"dependencies": found, "fixes": []})
    lines = ["import sys", f"print({result!r})", "print('No known vulnerabilities found', file=sys.stderr)"]
    got, text = run(tmp_path, "\n".join([*lines, f"sys.exit({exit_code})"]))
    assert got == code
    assert re.search(message, text), text


@pytest.mark.parametrize(
    "script",
    ["raise OSError('cannot resolve')", "print('[]')", "print('{}')", "print('null')", "print('no JSON')", ""],
)
def test_without_a_feed_nothing_is_reported_as_clean(tmp_path, script):
    code, words = run(tmp_path, script)
    assert code == tool.NOT_AUDITED
    assert words.startswith("not audited: the feed could not be reached")


def test_pip_audit_gets_the_lock_file(tmp_path):
    _, words = run(tmp_path, "import sys\nprint('|'.join(sys.argv), file=sys.stderr)")
    assert f"--requirement|{tmp_path / 'some.lock'}|--no-deps|--disable-pip" in words


def test_lock_of_this_repository_is_parsed():
    names = tool.pinned(tool.LOCK)
    assert len(names) == tool.LOCK.read_text(encoding="utf-8").count("==")
    assert {"torch", "numpy", "safetensors", "pillow"} <= {*names}
