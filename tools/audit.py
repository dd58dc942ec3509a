"""Ask pip-audit whether any pinned package has known vulnerabilities, and believe it only as far as it looked:

    python tools/audit.py [requirements.lock]

pip-audit goes into a throw-away environment. It says "no known vulnerabilities" even where its feed knows none of the
packages, or answers with nothing; so what it really looked at is counted here. Exit codes: 0 all packages were looked
at and none is vulnerable; 1 some are; 3 not audited, or not all.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CLEAN, VULNERABLE, NOT_AUDITED = 0, 1, 3
LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"


def pinned(lock: Path) -> list[str]:
    """The names of the packages of a lock file, each spelled as indexes do."""
    lines = (line.partition("#")[0].partition("==") for line in lock.read_text(encoding="utf-8").splitlines())
    return [_spelled(name) for name, is_pinned, _ in lines if is_pinned]


def audit(pip_audit: Sequence[str], lock: Path) -> tuple[int, str]:
    """The exit code and what to say, by the command that is pip-audit."""
    options = ("--requirement", str(lock), "--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off")
    done = subprocess.run([*pip_audit, *options], capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return NOT_AUDITED, f"not audited: the feed could not be reached ({last[:300]})."
    return verdict(pinned(lock), found)


def verdict(names: Sequence[str], found: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """The exit code and what to say of what pip-audit found about these packages."""
    looked_at = {_spelled(one["name"]): one for one in found if "skip_reason" not in one}
    bad = [f"{one['name']} {one['version']}: {_told(flaw)}" for one in looked_at.values() for flaw in one["vulns"]]
    left = [name for name in names if name not in looked_at]
    some = f"{len(names) - len(left)} of {len(names)} packages audited"
    if bad:
        return VULNERABLE, "\n".join([f"{some}; {len(bad)} known vulnerabilities:", *bad])
    if len(left) == len(names):
        reason = next((one["skip_reason"] for one in found if "skip_reason" in one), "it answered with nothing")
        return NOT_AUDITED, f"not audited: the feed could not be reached, or knows none of the packages ({reason})."
    if left:
        return NOT_AUDITED, f"{some}, no known vulnerabilities in these; not audited: {', '.join(left)}."
    return CLEAN, f"{some}: no known vulnerabilities."


def _told(flaw: dict[str, Any]) -> str:
    fixed = ", ".join(flaw.get("fix_versions") or ()) or "no version yet"
    return f"{flaw['id']}, mended in {fixed}"


def _spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def main(lock: Path) -> int:
    """Install pip-audit aside, and say what it finds."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit"]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            code, words = NOT_AUDITED, f"not audited: pip-audit could not be installed ({last[:300]})."
        else:
            code, words = audit([str(python), "-m", "pip_audit"], lock)
    print(words)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else LOCK))
