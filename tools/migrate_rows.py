"""Convert stored results of older versions to the present schema, in place: rows, plans, findings and requests.

    python tools/migrate_rows.py soap/zoo results

Rows of schema 1 stored attack, defence and training as display texts ("PGD(eps=0.3, steps=40)"); later ones store their
settings. Nothing is lost: `soap.report.row_text` makes the same texts from a converted row. Schema 2 called
`batch_size` batch, as did rows of `soap bench` and `soap export`. Files that hold other things, and those of the
present schema, stay as they are. Checksums are checked first and written anew.
"""

import argparse
import ast
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from soap._files import atomic, checksums
from soap._files.records import read_record
from soap.evaluation.plan import IMAGES_ONLY, LINF_ONLY, NO_ITERATES, NO_PURIFIER, NO_TASK, NOT_IN_SUITE
from soap.evaluation.run_folder import PLAN
from soap.evaluation.suite import COMMAND_FACT, FINDINGS
from soap.evaluation.suite_rows import WORST_STEP, attempts_digest
from soap.results import SCHEMA, Row, from_json, provenance_from_json
from soap.specs import BARE, AttackSpec, AttackStep, DefenceSpec, PriorTraining, TrainingSpec

RUN_SCHEMA = "soap-run/3"
"""Of the plans that this tool writes; tools/migrate_runs.py converts them further."""

RULES = {"bpda": "straight-through", "bpda-start": "start", "bpda-trajectory": "iterates"}
"""Gradient rules that have another name since schema 2."""

REASONS = {
    "there is no purifier": NO_PURIFIER,
    "the purifier does not tell its steps": NO_ITERATES,
    "there is no auxiliary task": NO_TASK,
    "its attack is of the Linf ball": LINF_ONLY,
    "it is for images alone": IMAGES_ONLY,
    "not in this suite": NOT_IN_SUITE,
}

RENAMED_SCHEMAS = {2: SCHEMA, "soap-run/2": RUN_SCHEMA, "soap-bench/1": "soap-bench/2"}
"""Schemas that differ from the present one by `batch` instead of `batch_size` alone."""

TASK_SETTINGS = ("gradient", "loss")
"""Settings of a SOAP purifier that belong to the auxiliary task."""

WORST = re.compile(r"the worst of (.+?)(?:; eps=([\d.e-]+), (\w+), attempts (\w+))?")
TRAINING = re.compile(
    r"(?P<epochs>\d+) epochs(?: by (?P<decay>\w+))?(?:, dropout (?P<dropout>[\d.]+))?, seed (?P<seed>\d+), "
    r"(?P<precision>\w+)(?:, stored in (?P<stored>[\w ]+))?"
    r"(?:; prior (?P<name>[\w.-]+), (?P<prior_epochs>\d+) epochs, seed (?P<prior_seed>\d+))?"
)


def migrate_rows(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows of schema 1, all of one file, as rows of the present schema."""
    return [_row(row, rows) for row in rows]


def _row(old: Mapping[str, Any], file: Sequence[Mapping[str, Any]]) -> Row:
    provenance = with_batch_size({**old["provenance"], "training": None})
    made = provenance_from_json(provenance)
    training = training_of(old["provenance"].get("training", ""))
    return Row(
        **{name: old[name] for name in ("protocol", "model", "data", "n", "correct", "seconds", "measures")},
        attack=attack_of(old, file),
        defence=defence_of(old["defence"], old["eps_pfy"]),
        provenance=type(made)(**{**vars(made), "training": training}),
    )


def attack_of(old: Mapping[str, Any], file: Sequence[Mapping[str, Any]]) -> AttackSpec:
    """The attack of a row. file: all rows of its file; the worst case refers to the protocols of its run."""
    suite, _, name = old["attack"].removeprefix("suite ").rpartition(": ")
    text, _, against = old["settings"].partition("; against ")
    if match := WORST.fullmatch(text):
        steps: tuple[AttackStep, ...] = (_worst_step(old, match, file),)
    else:
        steps = tuple(step_of(part) for part in text.split("; "))
    aimed = _defence_behind(old, against, file) if against else None
    return AttackSpec(name=name, steps=steps, suite=suite or None, against=aimed)


def _defence_behind(old: Mapping[str, Any], against: str, file: Sequence[Mapping[str, Any]]) -> DefenceSpec:
    """The defence that a bare row's attack was aimed at, with the radius of its own row."""
    eps = next(row["eps_pfy"] for row in file if row["defence"] == against and row["model"] == old["model"])
    return defence_of(against, eps)


def _worst_step(old: Mapping[str, Any], match: re.Match[str], file: Sequence[Mapping[str, Any]]) -> AttackStep:
    """The worst case of a suite. Its radius was stored with six digits, so it comes from the run's other rows."""
    protocols, eps, norm, digest = match[1].split(", "), match[2], match[3], match[4]
    if digest is None:  # rows of the first versions name the protocols alone
        return AttackStep(name=WORST_STEP, settings={"protocols": protocols})
    run = {
        row["protocol"]: row["settings"]
        for row in file
        if row["attack"].startswith("suite ")
        and row["protocol"] in protocols
        and not row["attack"].endswith((": clean", ": worst"))
        and _run_of(row) == _run_of(old)
        and "; against " not in row["settings"]
    }
    if _old_digest(sorted(run.items())) != digest:
        raise ValueError(f"{old['model']}: the protocols of the worst case {old['key']} are not in the same file")
    steps = {name: [step_of(part) for part in run[name].split("; ")] for name in protocols}
    exact = {step.settings["eps"] for each in steps.values() for step in each}
    radius = next(value for value in exact if f"{value:g}" == eps)
    settings = {"protocols": protocols, "eps": radius, "norm": norm, "attempts": attempts_digest(steps)}
    return AttackStep(name=WORST_STEP, settings=settings)


def _run_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What all rows of one suite run share; a bare row belongs to the run of the defence its attack was aimed at."""
    against = row["settings"].partition("; against ")[2] or row["defence"]
    by = row["provenance"]
    suite = row["attack"].rpartition(": ")[0]
    return (row["model"], suite, against, by["weights_sha256"], by["data_sha256"], by["images"], by["date"])


def _old_digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def step_of(text: str) -> AttackStep:
    """An attack from its text: "APGD(eps=0.3, ...) on unrolled, scale=3"; the auxiliary task follows a comma."""
    call, _, seen = text.rpartition(" on ") if " on " in text else (text, "", "")
    end = call.rindex(")") + 1
    name, settings = _call(call[:end])
    if further := call[end:].removeprefix(", "):
        settings["task"] = _call(f"task({further})")[1]
    rule, _, scale = seen.partition(", scale=")
    return AttackStep(
        name=name,
        settings=with_batch_size(settings),
        rule=RULES.get(rule, rule) or None,
        scale=float(scale) if scale else None,
    )


def defence_of(text: str, eps_pfy: str) -> DefenceSpec:
    """A defence from its text and its radius."""
    if text == "none":
        return BARE
    eps: float | str | None = None if eps_pfy == "none" else eps_pfy
    if isinstance(eps, str) and re.fullmatch(r"[\d.e-]+", eps):
        eps = float(eps)
    if text.startswith("inside "):
        return DefenceSpec(name="inside", settings={"module": text.removeprefix("inside ")})
    if "(" not in text:
        return DefenceSpec(name=text, eps=eps)
    name, settings = _call(text)
    if name == "SOAP" and (task := {key: settings.pop(key) for key in TASK_SETTINGS if key in settings}):
        precision = {"precision": settings.pop("precision")} if "precision" in settings else {}
        settings |= {"task": task, **precision}
    return DefenceSpec(name=name, settings=settings, eps=eps)


def training_of(text: str) -> TrainingSpec | None:
    """A training from its text; None if it is empty."""
    if not text:
        return None
    match = TRAINING.fullmatch(text)
    if match is None:
        raise ValueError(f"unknown training {text!r}")
    prior = None
    if match["name"]:
        prior = PriorTraining(name=match["name"], epochs=int(match["prior_epochs"]), seed=int(match["prior_seed"]))
    return TrainingSpec(
        epochs=int(match["epochs"]),
        seed=int(match["seed"]),
        precision=match["precision"],
        decay=match["decay"],
        dropout=None if match["dropout"] is None else float(match["dropout"]),
        stored=match["stored"],
        prior=prior,
    )


def _call(text: str) -> tuple[str, dict[str, Any]]:
    """(name, settings) of "NAME(key=value, ...)"."""
    generator = re.fullmatch(r"(DefenseGAN\()([\w.-]+)(, .*)", text)
    node = ast.parse(generator[1] + generator[3].removeprefix(", ") if generator else text, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"not a call: {text!r}")
    settings = {str(each.arg): _value(each.value) for each in node.keywords}
    return node.func.id, {"generator": generator[2], **settings} if generator else settings


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        name, settings = _call(ast.unparse(node))
        return {"name": name, "settings": settings}
    value = ast.literal_eval(node)
    return list(value) if isinstance(value, tuple) else value


def migrate_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The content of run.json of schema 1 as that of the present one."""
    target, stated = plan["target"], plan["provenance"]
    migrated = {
        **{name: value for name, value in plan.items() if name != checksums.CHECKSUM_FIELD},
        "schema": RUN_SCHEMA,
        "target": {"name": target["name"], "defence": asdict(defence_of(target["defence"], target["eps_pfy"]))},
        "attempts": [
            {"protocol": one["protocol"], "name": one["name"], "attack": asdict(step_of(one["settings"]))}
            for one in plan["attempts"]
        ],
        "left_out": {name: REASONS[why] for name, why in plan["left_out"].items()},
        "provenance": {**stated, "training": _as_json(training_of(stated.get("training", "")))},
    }
    renamed: dict[str, Any] = with_batch_size(migrated)
    return renamed


def _as_json(training: TrainingSpec | None) -> dict[str, Any] | None:
    return None if training is None else asdict(training)


def with_batch_size(content: Any) -> Any:
    """JSON values with `batch_size` for the key "batch", and --batch-size in commands."""
    if isinstance(content, list):
        return [with_batch_size(item) for item in content]
    if not isinstance(content, dict):
        return content
    renamed = {"batch_size" if key == "batch" else key: with_batch_size(value) for key, value in content.items()}
    if isinstance(command := renamed.get("command"), str):
        renamed["command"] = re.sub(r"--batch(?![-\w])", "--batch-size", command)
    return renamed


def migrate_line(line: str) -> str:
    """A line of schema 2, or of `soap bench`, `soap export` and tools/load_service.py, in the present schema."""
    old = checksums.loads(line.encode())
    new = with_batch_size(old)
    if new == old:
        return line
    new["schema"] = RENAMED_SCHEMAS.get(old.get("schema", ""), old.get("schema"))
    if new["schema"] != SCHEMA:
        return json.dumps(new, sort_keys=True)
    steps = old["attack"]["steps"]
    made = from_json({**new, "key": _key(new)})
    if made.key != old["key"] and steps == new["attack"]["steps"]:
        raise ValueError(f"the row {old['key']} was changed after it was written: its key does not fit")
    return checksums.dumps(made.as_json())


def _key(content: Mapping[str, Any]) -> str:
    return read_record(Row, {each.name: content[each.name] for each in fields(Row)}).key


def migrate_file(path: Path) -> bool:
    """Convert one file; False if it holds nothing of an older schema."""
    if path.suffix == ".json":
        content = json.loads(path.read_bytes())
        migrated = _migrated_json(path.name, content)
        if migrated == content:
            return False
        if checksums.CHECKSUM_FIELD in content:
            checksums.verify(path.read_bytes(), content)
            migrated.pop(checksums.CHECKSUM_FIELD, None)
            checksums.write_json(path, migrated)
        else:
            atomic.write_text(path, json.dumps(migrated, indent=1) + "\n")
        return True
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    if rows and all(row.get("schema") == 1 and "eps_pfy" in row for row in rows):
        migrated_lines = [checksums.dumps(row.as_json()) for row in migrate_rows(rows)]
    else:
        migrated_lines = [migrate_line(line) for line in lines]
    if migrated_lines == lines:
        return False
    atomic.write_text(path, "".join(f"{line}\n" for line in migrated_lines))
    return True


def _migrated_json(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """A plan, the findings or the request of a run in the present schema."""
    if name == PLAN and content.get("schema") == "soap-run/1":
        return migrate_plan(content)
    migrated: dict[str, Any] = with_batch_size(content)
    if name == PLAN and content.get("schema") in RENAMED_SCHEMAS:
        migrated["schema"] = RUN_SCHEMA
    for one in migrated["findings"] if name == FINDINGS else []:
        if "said" in one:
            one["measured"], one["meaning"] = one.pop("figure"), one.pop("said")
    return migrated


def files_under(places: Iterable[Path]) -> list[Path]:
    """The files that may hold rows, plans, findings or requests."""
    names = ("*.jsonl", PLAN, FINDINGS, f"{COMMAND_FACT}.json")
    return sorted({path for place in places for name in names for path in place.rglob(name)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="Searched with all its subfolders.")
    for found in files_under(parser.parse_args().folders):
        if migrate_file(found):
            print(found)
