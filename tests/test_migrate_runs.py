"""The migration of stored runs: present names of protocols and verdicts, and equal results."""

import json
import shutil
from pathlib import Path

import migrate_rows
import migrate_runs as tool
import pytest

from soap.evaluation.plan import protocols
from soap.evaluation.protocols import PROTOCOLS
from soap.evaluation.run_folder import open_run
from soap.evaluation.suite_rows import attempts_digest
from soap.evaluation.summary import WORST
from soap.evaluation.verdict import INVALID, WARNED
from soap.results import Row, Store

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "tests" / "samples" / "rows-schema-1"


@pytest.fixture
def old(tmp_path):
    """A stored run of the first version, with the names of before this migration."""
    shutil.copytree(SAMPLES / "run", tmp_path / "run")
    for path in migrate_rows.files_under([tmp_path]):
        assert migrate_rows.migrate_file(path)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """The rows of a full suite, with the names of before this migration."""
    lines = (SAMPLES / "suite-full.jsonl").read_text(encoding="utf-8").splitlines()
    return migrate_rows.migrate_rows([json.loads(line) for line in lines])


def by_name(rows: list[Row]) -> dict[tuple[str, bool], Row]:
    return {(row.attack.name, row.attack.against is None and row.defence.purifies): row for row in rows}


def test_rows_keep_their_numbers_under_the_present_names(rows):
    made = tool.migrate_rows(rows)
    before, after = by_name(rows), by_name(made)
    names = {**{name: name for name, _ in before}, **tool.NAMES, "black-box": "square"}
    for (name, own), row in before.items():
        found = after[names[name], own]
        assert (found.n, found.correct, found.seconds) == (row.n, row.correct, row.seconds)
        assert found.protocol in (*PROTOCOLS, WORST)
    assert len(made) == len(rows) + 1  # the substitute's own row
    assert len({row.key for row in made}) == len(made)
    assert tool.migrate_rows(made) == made


def test_black_box_becomes_substitute_and_square(rows):
    before, after = by_name(rows)["black-box", True], by_name(tool.migrate_rows(rows))
    substitute, square = after["substitute", True], after["square", True]
    assert [step.name for step in substitute.attack.steps] == ["StolenCopy"]
    assert [step.name for step in square.attack.steps] == ["StolenCopy", "Square"]
    assert substitute.correct == round(before.measures["after substitute"] * before.n) >= square.correct
    assert square.correct == before.correct


def test_the_worst_case_names_the_attempts_of_the_migrated_plan(old):
    for name in ("rows.jsonl", "run.json"):
        assert tool.migrate_file(old / name)
    plan, steps = open_run(old).plan(), {}
    for one in plan["attempts"]:
        steps.setdefault(one["protocol"], []).append(migrate_rows.AttackStep(**one["attack"]))
    worst = by_name(Store(old / "rows.jsonl").read())["worst", True].attack.steps[0]
    assert worst.settings["protocols"] == list(steps)
    assert worst.settings["attempts"] == attempts_digest(steps)


def test_a_migrated_run_opens_and_is_migrated_once(old):
    files = tool.files_under([old])
    changed = [path.name for path in files if tool.migrate_file(path)]
    assert {"run.json", "rows.jsonl", "findings.json"} <= set(changed)
    assert not any(tool.migrate_file(path) for path in files)
    plan = open_run(old).plan()
    assert {one["protocol"] for one in plan["attempts"]} | set(plan["left_out"]) == set(PROTOCOLS)
    assert (plan["random"], plan["draws"]) == (False, 1)


@pytest.mark.parametrize(
    ("was", "state", "name"), [("TRUSTED BOUND", "PASS", WARNED), ("UPPER BOUND ONLY", "FAIL", INVALID)]
)
def test_an_older_verdict_is_at_best_warned(was, state, name):
    findings = [{"number": n, "name": "", "state": state, "measured": "9 % black-box", "meaning": ""} for n in (1, 15)]
    made = tool.migrate_findings({"verdict": {"name": was, "reasons": ["bpda was not run"]}, "findings": findings})
    assert made["verdict"]["name"] == name
    assert made["verdict"]["reasons"][0] == "straight-through was not run"
    states = {one["number"]: one["state"] for one in made["findings"]}
    assert states == {1: state, 15: "NOT RUN", 20: "NOT RUN", 21: "NOT RUN", 22: "NOT RUN"}
    assert made["findings"][0]["measured"] == "9 % substitute and square"


def test_names_of_checks_stay():
    assert tool.renamed("check 13, white-box beats black-box: 1 %") == "check 13, white-box beats black-box: 1 %"


def test_every_tracked_run_is_migrated_and_stays_as_it_is(tmp_path):
    tracked = tool.files_under([ROOT / "results"])
    assert len(tracked) > 50
    for path in tracked:
        copy = tmp_path / path.name
        shutil.copyfile(path, copy)
        assert not tool.migrate_file(copy), path
        text = path.read_text(encoding="utf-8")
        assert '"bpda' not in text, path
        if path.name == "findings.json":
            assert json.loads(text)["verdict"]["name"] not in tool.VERDICTS, path
        if path.name == "run.json":
            protocols(open_run(path.parent).plan()["suite"])
