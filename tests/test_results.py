"""Result rows and their store: intervals, round trips, and errors for damaged files."""

import dataclasses
import json
import math
import multiprocessing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soap.errors import FileError
from soap.results import Provenance, Row, Store, from_json, wilson
from soap.specs import BARE, AttackSpec, AttackStep, DefenceSpec, TrainingSpec

PROVENANCE = Provenance(
    weights_sha256="a" * 64, data_sha256="b" * 64, images="0..99 of test", seed=0, batch_size=10, version="0",
    commit=None, torch="2", python="3", device="cpu", date="2026-01-01",
    training=TrainingSpec(epochs=3, seed=0, precision="fp32"),
)  # fmt: skip
ATTACK = AttackSpec(name="pgd", steps=(AttackStep(name="PGD", settings={"eps": 0.3, "norm": "linf"}),))
DEFENCE = DefenceSpec(name="SOAP", settings={"eps": "min-aux", "grid": [0.0, 0.1]}, eps="min-aux")
ROW = Row(
    protocol="transfer", model="m", data="d", attack=ATTACK, defence=DEFENCE,
    n=100, correct=61, seconds=1.5, provenance=PROVENANCE, measures={"success": 0.5},
)  # fmt: skip


def test_wilson_agrees_with_published_values():
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)


@given(n=st.integers(1, 10_000), data=st.data())
def test_wilson_contains_the_share_and_solves_its_equation(n, data):
    correct = data.draw(st.integers(0, n))
    low, high = wilson(correct, n)
    assert 0 <= low <= correct / n + 1e-12
    assert correct / n - 1e-12 <= high <= 1
    for p in (low, high):  # the bounds are where the score test is just rejected: |share - p| = z sqrt(p (1 - p) / n)
        if 1e-9 < p < 1 - 1e-9:
            assert abs(correct / n - p) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / n), abs=1e-6)


def test_rows_are_read_as_they_were_written(tmp_path):
    store = Store(tmp_path / "sub" / "rows.jsonl")
    assert store.read() == []
    rows = [dataclasses.replace(ROW, correct=k) for k in range(5)]
    for row in rows:
        store.append(row)
    assert store.read() == rows
    first = json.loads(store.path.read_text().splitlines()[3])
    assert (first["accuracy"], first["schema"], first["key"]) == (0.03, 3, ROW.key)


def test_equal_keys_mean_the_same_measurement():
    later = dataclasses.replace(PROVENANCE, date="2027", device="gpu", torch="3", batch_size=99)
    assert dataclasses.replace(ROW, seconds=9.0, correct=3, provenance=later).key == ROW.key
    stronger = AttackSpec(name="pgd", steps=(AttackStep(name="PGD", settings={"eps": 1.0, "norm": "linf"}),))
    other = dataclasses.replace(DEFENCE, eps="oracle")
    changes = [{"attack": stronger}, {"defence": other}, {"defence": BARE}, {"n": 99}, {"data": "e"}]
    changes += [{"attack": dataclasses.replace(ATTACK, against=DEFENCE)}]
    changes += [{"provenance": dataclasses.replace(PROVENANCE, weights_sha256="c" * 64)}]
    keys = {dataclasses.replace(ROW, **change).key for change in changes}
    assert len(keys | {ROW.key}) == len(changes) + 1


def test_an_incomplete_last_line_is_skipped_and_then_removed(tmp_path, caplog):
    store = Store(tmp_path / "rows.jsonl")
    store.append(ROW)
    assert store.read() == [ROW]
    assert not caplog.messages
    whole = store.path.read_bytes()
    for cut in (1, 50, len(whole) - 1):
        store.path.write_bytes(whole + whole[:cut])
        caplog.clear()
        assert store.read() == [ROW]
        assert "rows.jsonl: skipped the incomplete last line" in caplog.messages[0]
    caplog.clear()
    store.append(dataclasses.replace(ROW, correct=1))
    assert f"({len(whole) - 1} bytes)" in caplog.messages[0]
    assert [row.correct for row in store.read()] == [61, 1]


def test_every_flipped_bit_of_a_row_is_found(tmp_path):
    store = Store(tmp_path / "rows.jsonl")
    store.append(ROW)
    first = store.path.read_bytes()
    store.append(dataclasses.replace(ROW, correct=1))
    whole = store.path.read_bytes()
    for place in range(len(first)):
        for bit in range(0, 8, 3):
            store.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            with pytest.raises(FileError, match=r"rows\.jsonl, line 1"):
                store.read()


def test_rows_without_a_checksum_are_read(tmp_path):
    store = Store(tmp_path / "rows.jsonl")
    old = json.dumps(ROW.as_json(), sort_keys=True) + "\n"
    store.path.write_text(old)
    store.append(ROW)
    assert store.read() == [ROW, ROW]
    store.path.write_text(old.replace('"correct": 61', '"correct": 71'))
    with pytest.raises(FileError, match="its accuracy does not fit"):
        store.read()


DAMAGE = [
    (b"not json\n", "Expecting value"),
    (b"[]\n", "it is not a JSON object"),
    (b"{}\n", "schema is None, expected 3"),
    (b'{"schema": 3}\n', "not a result row"),
    (json.dumps({**ROW.as_json(), "seconds": 1, "checksum": "sha256:" + 64 * "a"}).encode() + b"\n", "does not match"),
    (json.dumps({**ROW.as_json(), "correct": 101}).encode() + b"\n", "101 correct of 100"),
    (json.dumps({**ROW.as_json(), "model": "better"}).encode() + b"\n", "changed after it was written"),
    (b"\xff\xfe\n", "Expecting value|utf-8"),
    (b"[" * 100_000 + b"\n", "nested too deeply|Expecting"),
]


@pytest.mark.parametrize(("line", "message"), DAMAGE, ids=[message for _, message in DAMAGE])
def test_a_damaged_line_raises_an_error_with_its_number(tmp_path, line, message):
    store = Store(tmp_path / "rows.jsonl")
    store.append(ROW)
    with store.path.open("ab") as file:
        file.write(line)
    before = store.path.read_bytes()
    with pytest.raises(FileError, match=rf"rows\.jsonl, line 2: .*({message})"):
        store.read()
    with pytest.raises(FileError, match="line 2"):
        store.append(ROW)
    assert store.path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        {"attack": "pgd"},
        {"attack": {"name": "pgd", "steps": "PGD()"}},
        {"defence": {"name": 3, "settings": {}, "eps": None}},
        {"defence": {"name": "SOAP", "settings": [], "eps": None}},
        {"n": True},
        {"seconds": math.inf},
        {"measures": {"success": "high"}},
        {"model": "\ud800"},
    ],
)
def test_a_row_with_a_value_of_another_type_is_rejected(change):
    with pytest.raises(ValueError, match=r"its |expected|lone surrogate|JSON compliant"):
        from_json({**ROW.as_json(), "attack": json.loads(json.dumps(ROW.as_json()["attack"])), **change})


def test_from_json_inverts_as_json():
    assert from_json(json.loads(json.dumps(ROW.as_json()))) == ROW


def write_many(path, who):
    for number in range(30):
        Store(path).append(dataclasses.replace(ROW, model=f"{who}-{number}"))


def test_several_processes_append_to_one_file(tmp_path):
    """Regression: a process removed the rows of others as incomplete writes."""
    path = tmp_path / "rows.jsonl"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=write_many, args=(path, who)) for who in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert sorted(row.model for row in Store(path).read()) == sorted(f"{w}-{n}" for w in "abc" for n in range(30))
