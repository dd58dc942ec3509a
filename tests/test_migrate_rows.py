"""The migration of stored results: older schemas become the present one without loss; tracked files are migrated."""

import json
import re
import shutil
from pathlib import Path

import migrate_rows as tool
import pytest

from soap._files import checksums
from soap.bench.results import read as bench_rows
from soap.errors import FileError
from soap.evaluation.checks import MEASUREMENTS
from soap.evaluation.run_folder import RunFolder, open_run
from soap.report.row_text import attack_text, defence_text, eps_text, settings_text, training_text
from soap.results import Row, Store, from_json

ROOT = Path(__file__).parents[1]
OLD = ROOT / "tests" / "samples" / "rows-schema-1"
"""Files of schema 1 as older versions wrote them: every kind of row, plan and findings."""

BATCH = ROOT / "tests" / "samples" / "rows-schema-2"
"""Files of schema 2 and of `soap bench`, `soap export` and the service's load, which call `batch_size` batch."""

TRACKED = tool.files_under([ROOT / "soap" / "zoo", ROOT / "results"])


def old_texts(row: dict) -> tuple[str, ...]:
    """The display texts of a row of schema 1, with the present names of gradient rules and without digests."""
    settings = row["settings"]
    for old, new in tool.RULES.items():
        settings = re.sub(rf" on {old}(?=;|$)", f" on {new}", settings)
    settings = settings.replace(" batch=", " batch_size=")
    training = row["provenance"].get("training", "")
    return row["attack"], _without_digest(settings), row["eps_pfy"], row["defence"], training


def texts(row: Row) -> tuple[str, ...]:
    settings = _without_digest(settings_text(row.attack))
    defence = eps_text(row.defence), defence_text(row.defence)
    return attack_text(row.attack), settings, *defence, training_text(row.training)


def _without_digest(text: str) -> str:
    return re.sub(r"attempts [0-9a-f]{12}", "attempts", text)


@pytest.mark.parametrize("path", sorted(OLD.rglob("*.jsonl")), ids=lambda path: path.stem)
def test_migrated_rows_give_the_texts_of_the_old_ones(path):
    old = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    made = tool.migrate_rows(old)
    assert [texts(row) for row in made] == [old_texts(row) for row in old]
    for name in ("protocol", "model", "data", "n", "correct", "seconds", "measures"):
        assert [getattr(row, name) for row in made] == [row[name] for row in old]
    assert len({row.key for row in made}) == len({row["key"] for row in old})
    assert [from_json(json.loads(json.dumps(row.as_json()))) for row in made] == made


def without_name(content):
    """JSON values without what the migration from schema 2 may change."""
    if isinstance(content, list):
        return [without_name(item) for item in content]
    if not isinstance(content, dict):
        return content.replace("--batch-size", "--batch") if isinstance(content, str) else content
    named = {"batch" if key == "batch_size" else key: value for key, value in content.items()}
    return {key: without_name(value) for key, value in named.items() if key not in ("schema", "key", "checksum")}


def test_schema_2_differs_in_the_name_of_the_batch_size_alone(tmp_path):
    shutil.copytree(BATCH, tmp_path / "old")
    for path in tool.files_under([tmp_path]):
        old = path.read_text(encoding="utf-8")
        assert tool.migrate_file(path)
        new = path.read_text(encoding="utf-8")
        assert not tool.migrate_file(path)
        assert '"batch":' not in new
        assert "--batch " not in new
        pairs = zip(old.splitlines(), new.splitlines(), strict=True) if path.suffix == ".jsonl" else [(old, new)]
        for before, after in pairs:
            assert without_name(json.loads(after)) == without_name(json.loads(before))
    old = [json.loads(line)["key"] for line in (BATCH / "paper.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = Store(tmp_path / "old" / "paper.jsonl").read()
    assert [row.key == key for row, key in zip(rows, old, strict=True)] == [False, False, True, True]
    assert [row.provenance.batch_size for row in rows] == [500, 500, 128, 128]
    assert Store(tmp_path / "old" / "run" / "rows.jsonl").read()
    assert json.loads((tmp_path / "old" / "run" / "run.json").read_text(encoding="utf-8"))["batch_size"] == 1000
    assert bench_rows(tmp_path / "old" / "bench.jsonl")[0]["case"]["batch_size"] == 128


def test_files_of_schema_2_are_refused_with_the_command_that_migrates_them():
    for read in (Store(BATCH / "paper.jsonl").read, RunFolder(BATCH / "run").plan):
        with pytest.raises(FileError, match=r"tools/migrate_rows\.py"):
            read()
    with pytest.raises(FileError, match=r"tools/migrate_rows\.py"):
        bench_rows(BATCH / "bench.jsonl")


def test_a_damaged_row_of_schema_2_is_not_migrated(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text((BATCH / "paper.jsonl").read_text(encoding="utf-8").replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ValueError, match="checksum"):
        tool.migrate_file(path)


def test_files_are_migrated_in_place_once(tmp_path):
    shutil.copytree(OLD, tmp_path / "old")
    files = tool.files_under([tmp_path])
    assert {path.name for path in files} >= {"run.json", "findings.json", "rows.jsonl"}
    assert all(tool.migrate_file(path) for path in files)
    content = {path: path.read_bytes() for path in files}
    assert not any(tool.migrate_file(path) for path in files)
    assert {path: path.read_bytes() for path in files} == content
    for path in files:
        if path.suffix == ".jsonl":
            assert Store(path).read()
            assert all("checksum" in json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    assert json.loads((tmp_path / "old" / "run" / "run.json").read_text(encoding="utf-8"))["schema"] == tool.RUN_SCHEMA
    found = json.loads((tmp_path / "old" / "run" / "findings.json").read_text(encoding="utf-8"))["findings"]
    assert set(found[0]) == {"number", "name", "state", "measured", "meaning"}


def test_the_rows_of_a_migrated_run_are_those_of_its_migrated_plan():
    old = [json.loads(line) for line in (OLD / "run" / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    plan = tool.migrate_plan(json.loads((OLD / "run" / "run.json").read_text(encoding="utf-8")))
    steps = [step for row in tool.migrate_rows(old)[2:-2:2] for step in row.attack.steps]
    assert [one["attack"] for one in plan["attempts"]] == [json.loads(json.dumps(vars(step))) for step in steps]


@pytest.mark.parametrize("text", ["forever, seed 0", "3 epochs", "3 epochs, seed 0, fp32, and more"])
def test_an_unknown_training_is_an_error(text):
    with pytest.raises(ValueError, match="unknown training"):
        tool.training_of(text)


MIGRATE = "run python tools/migrate_rows.py soap/zoo results"


def test_every_tracked_file_is_migrated():
    assert len(TRACKED) > 50
    for path in TRACKED:
        text = path.read_text(encoding="utf-8")
        assert '"eps_pfy": "' not in text.partition("\n")[0] or path.suffix == ".json", f"{path}: {MIGRATE}"
        assert '"batch":' not in text, f"{path}: {MIGRATE}"


RUNS = [path.parent for path in TRACKED if path.name == "run.json"]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_plans_and_facts_of_stored_runs_are_read(run):
    folder = open_run(run)
    for one in MEASUREMENTS:
        fact = folder.read_fact(one.fact)
        assert fact is None or "problem" in fact or one.read(fact) is not None
    assert checksums.read_json(run / "seal.json", "")
    assert isinstance(RunFolder(run).plan()["target"]["defence"], dict)
