"""Check the pinned packages for known vulnerabilities with pip-audit:

    python tools/audit.py [requirements.lock]

pip-audit is installed into a temporary environment. It prints "no known vulnerabilities" even if its feed knows none of
the packages or returns nothing, so this script counts the packages that were audited. Exit codes: 0 all packages were
audited and none is vulnerable; 1 some are vulnerable; 3 some packages were not audited.
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
    """Return the package names of a lock file, normalised as package indexes do."""
    lines = (line.partition("#")[0].partition("==") for line in lock.read_text(encoding="utf-8").splitlines())
    return [_normalised(name) for name, is_pinned, _ in lines if is_pinned]


def audit(pip_audit: Sequence[str], lock: Path) -> tuple[int, str]:
    """Run pip-audit on a lock file; return the exit code and the message."""
    options = ("--requirement", str(lock), "--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off")
    done = subprocess.run([*pip_audit, *options], capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return NOT_AUDITED, f"not audited: the feed could not be reached ({last[:300]})."
    return verdict(pinned(lock), found)


def verdict(names: Sequence[str], found: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """Return the exit code and the message for pip-audit's result on the packages `names`."""
    audited = {_normalised(one["name"]): one for one in found if "skip_reason" not in one}
    bad = [f"{one['name']} {one['version']}: {_describe(flaw)}" for one in audited.values() for flaw in one["vulns"]]
    skipped = [name for name in names if name not in audited]
    count = f"{len(names) - len(skipped)} of {len(names)} packages audited"
    if bad:
        return VULNERABLE, "\n".join([f"{count}; {len(bad)} known vulnerabilities:", *bad])
    if len(skipped) == len(names):
        reason = next((one["skip_reason"] for one in found if "skip_reason" in one), "it returned nothing")
        return NOT_AUDITED, f"not audited: the feed could not be reached, or knows none of the packages ({reason})."
    if skipped:
        return NOT_AUDITED, f"{count}, no known vulnerabilities in these; not audited: {', '.join(skipped)}."
    return CLEAN, f"{count}: no known vulnerabilities."


def _describe(flaw: dict[str, Any]) -> str:
    fixed = ", ".join(flaw.get("fix_versions") or ()) or "no version yet"
    return f"{flaw['id']}, fixed in {fixed}"


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def main(lock: Path) -> int:
    """Install pip-audit into a temporary environment, run it and print the message; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit"]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            code, message = NOT_AUDITED, f"not audited: pip-audit could not be installed ({last[:300]})."
        else:
            code, message = audit([str(python), "-m", "pip_audit"], lock)
    print(message)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else LOCK))
