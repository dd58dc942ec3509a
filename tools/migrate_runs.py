"""Convert stored suite runs to the present names of protocols and verdicts, in place (run.json soap-run/3 to 4).

    python tools/migrate_runs.py results

Protocols have the names of their gradient rules: bpda is straight-through, bpda-start is start, bpda-trajectory is
iterates. black-box becomes substitute and square. Its Square attacked what the substitute had left, so the new square
row keeps both steps; the substitute's own count comes from the measure that the row stored, and the seconds of both
stay with square. Verdicts are CHECKS PASSED, CHECKS WARNED and INVALID. A run without the newer protocols and checks
is at best CHECKS WARNED, and check 15 of older versions, which compared the classifier on points made against the
defence, counts as not run. Other files, and files that are converted already, stay as they are. Checksums are written
anew.
"""

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from soap._files import atomic, checksums
from soap.evaluation.checks import CHECKS, FAIL, NOT_RUN
from soap.evaluation.plan import NOT_IN_SUITE
from soap.evaluation.protocols import PROTOCOLS
from soap.evaluation.run_folder import PLAN, SCHEMA
from soap.evaluation.suite import FINDINGS
from soap.evaluation.suite_rows import attempts_digest
from soap.evaluation.summary import WORST
from soap.evaluation.verdict import INVALID, PASSED, WARNED
from soap.results import SCHEMA as ROW_SCHEMA
from soap.results import Row, from_json
from soap.specs import AttackStep

OLD_SCHEMA = "soap-run/3"
NAMES = {"bpda-trajectory": "iterates", "bpda-start": "start", "bpda": "straight-through"}
"""Protocols by their old names; a name comes after those that begin with it."""

BLACK_BOX, SPLIT = "black-box", ("substitute", "square")
VERDICTS = {"TRUSTED BOUND": PASSED, "UPPER BOUND ONLY": WARNED, "NOT A ROBUSTNESS NUMBER": INVALID}
NEWER_CHECKS = (15, 20, 21, 22)
OLDER_SUITE = (
    "measured before the protocols exact, surrogate and decision and the checks 15 and 20 to 22 of this version"
)

_TEXT = re.compile(r"(?<!beats )\b(bpda-trajectory|bpda-start|bpda|black-box)(?=[\s,;:.)\"]|$)")
_GAIN = re.compile(r"gain [^;]*points; ")


def renamed(text: str) -> str:
    """The text with the present names of protocols."""
    return _TEXT.sub(lambda match: NAMES.get(match[1], " and ".join(SPLIT)), text)


def migrate_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of a file; those outside of suites stay as they are."""
    made: list[Row] = []
    for row in rows:
        suite = row.attack.suite
        if suite is None:
            made.append(row)
            continue
        name = NAMES.get(row.attack.name, row.attack.name)
        attack = replace(row.attack, name=name, suite=NAMES.get(suite, "square" if suite == BLACK_BOX else suite))
        if name == WORST:
            made.append(replace(row, attack=replace(attack, steps=(_worst_step(row, rows),))))
        elif name == BLACK_BOX:
            made += _split(replace(row, attack=attack))
        else:
            made.append(replace(row, protocol=NAMES.get(row.protocol, row.protocol), attack=attack))
    return made


def _split(row: Row) -> list[Row]:
    """The rows of substitute and square that a row of black-box becomes; square alone for the bare classifier."""
    if len(row.attack.steps) == 1:
        return [replace(row, protocol=SPLIT[0], attack=replace(row.attack, name=SPLIT[0]))]
    first, last = (f"after {name}" for name in SPLIT)
    made = []
    if first in row.measures:
        alone = replace(row.attack, name=SPLIT[0], steps=row.attack.steps[:1])
        share = {first: row.measures[first]}
        count = round(row.measures[first] * row.n)
        made.append(replace(row, protocol=SPLIT[0], attack=alone, correct=count, seconds=0.0, measures=share))
    rest = {name: value for name, value in row.measures.items() if name == last}
    return [*made, replace(row, protocol=SPLIT[1], attack=replace(row.attack, name=SPLIT[1]), measures=rest)]


def _worst_step(row: Row, rows: Sequence[Row]) -> AttackStep:
    """The step of the worst case, with the present names and the digest of the run's attempts."""
    step = row.attack.steps[0]
    settings = dict(step.settings)
    settings["protocols"] = [new for old in settings["protocols"] for new in _new_names(old)]
    if "attempts" in settings:
        steps: dict[str, list[AttackStep]] = {}
        for other in rows:
            if other.attack.name in step.settings["protocols"] and _run_of(other) == _run_of(row):
                names = _new_names(other.attack.name)
                if len(names) == 1 or len(other.attack.steps) == 1:
                    steps.setdefault(names[0], list(other.attack.steps))
                else:
                    for name, each in zip(names, other.attack.steps, strict=True):
                        steps.setdefault(name, [each])
        settings["attempts"] = attempts_digest({name: steps[name] for name in settings["protocols"] if name in steps})
        settings["protocols"] = [name for name in settings["protocols"] if name in steps]
    return replace(step, settings=settings)


def _new_names(old: str) -> tuple[str, ...]:
    return SPLIT if old == BLACK_BOX else (NAMES.get(old, old),)


def _run_of(row: Row) -> tuple[Any, ...]:
    """What all rows of one suite run share."""
    by, aimed = row.provenance, row.attack.against or row.defence
    return row.model, row.attack.suite, repr(aimed), by.weights_sha256, by.data_sha256, by.images, by.date


def migrate_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The content of run.json of soap-run/3 as that of soap-run/4."""
    attempts = [
        {
            **one,
            "protocol": one["name"] if one["protocol"] == BLACK_BOX else NAMES.get(one["protocol"], one["protocol"]),
        }
        for one in plan["attempts"]
    ]
    why = {new: reason for old, reason in plan["left_out"].items() for new in _new_names(old)}
    done = {one["protocol"] for one in attempts}
    return {
        **{name: value for name, value in plan.items() if name != checksums.CHECKSUM_FIELD},
        "schema": SCHEMA,
        "suite": NAMES.get(plan["suite"], plan["suite"]),
        "attempts": attempts,
        "left_out": {name: why.get(name, NOT_IN_SUITE) for name in PROTOCOLS if name not in done},
        "random": False,
        "exact": False,
        "gradient": "",
        "draws": 1,
    }


def migrate_findings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Verdict and findings in the present words."""
    findings = [
        {**one, "measured": renamed(one["measured"]), "meaning": renamed(one["meaning"])}
        for one in content["findings"]
        if one["number"] not in NEWER_CHECKS
    ]
    newer = "Not measured by the version of the suite that made this run; run the suite again."
    cost = "".join(f"; {_GAIN.sub('', one['measured'])}" for one in content["findings"] if one["number"] == 15)
    findings += [
        {
            "number": n,
            "name": CHECKS[n].name,
            "state": NOT_RUN,
            "measured": f"not measured{cost if n == 15 else ''}",
            "meaning": newer,
        }
        for n in NEWER_CHECKS
    ]
    old = content["verdict"]
    failed = any(one["state"] == FAIL for one in findings)
    reasons = [renamed(reason) for reason in old["reasons"]]
    verdict = {"name": INVALID, "reasons": reasons} if failed else {"name": WARNED, "reasons": [*reasons, OLDER_SUITE]}
    return {"verdict": verdict, "findings": sorted(findings, key=lambda one: int(one["number"]))}


def migrate_file(path: Path) -> bool:
    """Convert one file; False if nothing in it is old."""
    text = path.read_text(encoding="utf-8")
    if path.name == FINDINGS:
        content = json.loads(text)
        if content["verdict"]["name"] not in VERDICTS:
            return False
        atomic.write_text(path, json.dumps(migrate_findings(content), indent=1) + "\n")
        return True
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
        if not rows or not all("attack" in row and row.get("schema") == ROW_SCHEMA for row in rows):
            return False
        if renamed(text) == text:  # a present run may have protocols that the old suite did not have
            return False
        before = [from_json(checksums.loads(line.encode())) for line in text.splitlines()]
        if (after := migrate_rows(before)) == before:
            return False
        atomic.write_text(path, "".join(f"{checksums.dumps(row.as_json())}\n" for row in after))
        return True
    content = json.loads(text)
    if path.name == PLAN:
        if content.get("schema") != OLD_SCHEMA:
            return False
        checksums.write_json(path, migrate_plan(content))
        return True
    if (made := renamed(text)) == text:
        return False
    content = json.loads(made)
    checked = content.pop(checksums.CHECKSUM_FIELD, None)
    if checked is None:
        atomic.write_text(path, made)
    else:
        checksums.write_json(path, content)
    return True


def files_under(places: Iterable[Path]) -> list[Path]:
    """The rows, plans, findings and facts of stored runs."""
    names = ("*.jsonl", PLAN, FINDINGS, "facts/*.json", "asked.json")
    return sorted({path for place in places for name in names for path in place.rglob(name)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="Searched with all its subfolders.")
    for found in files_under(parser.parse_args().folders):
        if migrate_file(found):
            print(found)
