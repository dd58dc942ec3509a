"""Shards of a suite run: merged, they are the run of one process; shards that do not belong together are refused."""

import shutil
from dataclasses import replace

import pytest
import small_runs
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import THREAT, change_batch, change_json, content, defence, images
from tiny import tiny_model

import soap
from soap.defence import Defence
from soap.errors import FileError, InputError
from soap.evaluation import AttackedShard, Threat, merge_runs, read_report
from soap.evaluation.run_folder import CONTINUED, RunFolder, shard_batches

SIZES = {"steps": 2, "queries": 5, "batch_size": 3}  # four batches of 11 images
COUNT = 3


@pytest.fixture(scope="module", autouse=True)
def no_git():
    """Avoid a call of git for every plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOAP_COMMIT", "test")
        yield


def finish(out, suite="noise"):
    """The call that makes the checks of a merged run."""
    return small_runs.run(out, suite=suite, **SIZES)


def shard(out, index, count=COUNT, *, suite="noise", threat=THREAT, model=None, data=None, **changes):
    given = {**SIZES, "suite": suite, **changes}
    given |= {"eps": threat.eps, "norm": threat.norm}
    return soap.evaluate(model or defence(), data or images(), shard=(index, count), out=out, **given)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folders of three finished shards; tests copy them before they change them."""
    place = tmp_path_factory.mktemp("shards")
    for index in range(COUNT):
        shard(place / str(index), index)
    return place


@pytest.fixture
def parts(made, tmp_path):
    place = shutil.copytree(made, tmp_path / "parts")
    return [place / str(index) for index in range(COUNT)]


@pytest.mark.parametrize("suite", ["quick", "square"])
def test_merged_shards_are_the_run_of_one_process(tmp_path, suite):
    whole = small_runs.run(tmp_path / "whole", suite=suite, **SIZES)
    places = [tmp_path / "run" / str(index) for index in range(COUNT)]
    for index in (2, 0, 1):
        found = shard(places[index], index, suite=suite)
        assert isinstance(found, AttackedShard)
    merge_runs(places[::-1], tmp_path / "merged")
    batches = {name: bits for name, bits in content(tmp_path / "whole").items() if name.endswith(".npz")}
    assert {name: bits for name, bits in content(tmp_path / "merged").items() if name.endswith(".npz")} == batches
    report = finish(tmp_path / "merged", suite)
    assert [row.key for row in report.rows] == [row.key for row in whole.rows]
    assert [row.correct for row in report.rows] == [row.correct for row in whole.rows]
    assert content(tmp_path / "merged") == content(tmp_path / "whole")


def test_shards_of_a_random_defence_make_the_draws_of_one_process(tmp_path):
    noisy = Defence(tiny_model(), lambda x: (x + 0.1 * torch.randn_like(x)).clamp(0, 1), name="noisy")
    for index, count in ((0, 1), (0, 2), (1, 2)):
        shard(tmp_path / f"{index}-{count}", index, count, suite="straight-through", model=noisy)
    for parts in (("0-1",), ("0-2", "1-2")):
        merge_runs([tmp_path / name for name in parts], tmp_path / f"merged-{len(parts)}")
    one, two = (content(tmp_path / f"merged-{count}") for count in (1, 2))
    assert one == two
    assert one["run.json"]["random"]
    assert any("drawn" in arrays for name, arrays in one.items() if name.endswith(".npz"))


def test_the_merged_run_is_not_attacked_again(parts, tmp_path, monkeypatch):
    """The command that finishes it only measures."""
    merge_runs(parts, tmp_path / "merged")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").rglob("*.npz")}
    assert len(stamps) == 4 * (1 + len(RunFolder(tmp_path / "merged").plan()["attempts"]))
    assert finish(tmp_path / "merged") is not None
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").rglob("*.npz")} == stamps


def test_a_shard_attacks_only_its_own_contiguous_images(made):
    rows = []
    for index in range(COUNT):
        folder = RunFolder(made / str(index))
        own = [row for _, attempt, number in folder.batch_names() if attempt is None
               for row in folder.read_batch(None, number).rows]  # fmt: skip
        assert own == list(range(own[0], own[-1] + 1))
        rows += own
        assert len([*folder.path.rglob("*.npz")]) == len([*folder.batch_names()])
        assert not (folder.path / "rows.jsonl").exists()
    assert rows == list(range(11))


def test_a_stopped_shard_resumes_with_the_same_bits(made, tmp_path):
    questions = iter(range(10**6))
    assert shard(tmp_path / "1", 1, stop=lambda: next(questions) >= 1) is None
    with pytest.raises(FileError, match="shard 1 is not finished"):
        merge_runs([made / "0", tmp_path / "1", made / "2"], tmp_path / "merged")
    found = shard(tmp_path / "1", 1)
    assert (found.index, found.count, [*found.images]) == (1, 3, [3, 4, 5])
    assert content(tmp_path / "1") == content(made / "1")


@given(batches=st.integers(1, 300), count=st.integers(1, 300))
def test_shards_cover_every_batch_once_in_even_parts(batches, count):
    shards = [shard_batches(batches, index, count) for index in range(count)]
    assert [number for each in shards for number in each] == list(range(batches))
    sizes = [len(each) for each in shards]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("index", "count", "message"),
    [
        (3, 3, "expected 0/3 to 2/3"),
        (-1, 3, "count from 0"),
        (0, 5, "5 shards of 4 batches"),
        (0, 0, "shard is 0/0"),
    ],
)
def test_impossible_shards_raise(tmp_path, index, count, message):
    with pytest.raises(InputError, match=message):
        shard(tmp_path / "run", index, count)
    assert not (tmp_path / "run").exists()


def test_evaluate_takes_a_shard(made, tmp_path):
    found = soap.evaluate(defence(), images(), suite="noise", eps=THREAT.eps, out=tmp_path / "0", shard=(0, 3), **SIZES)
    assert content(found.folder.path) == content(made / "0")
    with pytest.raises(InputError, match="shard divides the run of a suite"):
        soap.evaluate(defence(), images(), attacks={"fgsm": soap.attacks.FGSM(eps=0.1)}, shard=(0, 2))


OTHERS = {
    "weights": ({"model": lambda: Defence((model := tiny_model(seed=4)), soap.SOAP(model, 0.1))}, "weights_sha256 is"),
    "defence": ({"model": lambda: Defence((model := tiny_model()), soap.SOAP(model, 0.2))}, "target is"),
    "data": ({"data": lambda: images(10)}, "data is"),
    "threat": ({"threat": lambda: Threat(eps=0.03)}, "threat is"),
    "suite": ({"suite": lambda: "transfer"}, "suite is"),
    "seed": ({"seed": lambda: 1}, "seed is"),
    "batch_size": ({"batch_size": lambda: 2}, "batch_size is"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_shards_of_different_runs_are_refused(parts, tmp_path, case):
    changes, message = OTHERS[case]
    shutil.rmtree(parts[2])
    shard(parts[2], 2, **{name: make() for name, make in changes.items()})
    with pytest.raises(InputError, match=message) as error:
        merge_runs(parts, tmp_path / "merged")
    assert str(parts[2]) in str(error.value)
    assert not (tmp_path / "merged").exists()


def test_shards_with_different_attacks_are_refused(parts, tmp_path):
    change_json(parts[1] / "run.json", lambda plan: plan["attempts"][0]["attack"]["settings"].update(draws=1))
    with pytest.raises(InputError, match="attempts is"):
        merge_runs(parts, tmp_path / "merged")


def test_missing_and_repeated_shards_are_refused(parts, tmp_path):
    out = tmp_path / "merged"
    with pytest.raises(InputError, match=r"of 3 shards, 0, 2 is missing"):
        merge_runs(parts[1:2], out)
    again = shutil.copytree(parts[1], tmp_path / "again")
    with pytest.raises(InputError, match="both shard 1 of 3"):
        merge_runs([*parts, again], out)
    shard(tmp_path / "half", 1, 2)
    with pytest.raises(InputError, match=r"one of 3 shards and .* one of 2"):
        merge_runs([parts[0], tmp_path / "half"], out)
    with pytest.raises(InputError, match="no shard given"):
        merge_runs([], out)
    assert not out.exists()


def test_a_changed_shard_is_refused(parts, tmp_path):
    change_batch(parts[1], 0, 1, lambda batch: {"defended": batch.defended + 1})
    with pytest.raises(FileError, match="attempts/00/0001 was changed after the shard was finished"):
        merge_runs(parts, tmp_path / "merged")
    (parts[1] / "attempts" / "00" / "0001.npz").unlink()
    with pytest.raises(FileError, match="attempts/00/0001 is missing"):
        merge_runs(parts, tmp_path / "merged")


@pytest.mark.parametrize("value", [None, 3, {}, {"index": 3, "count": 3}, {"index": 0.5, "count": 3}, {"index": 0}])
def test_a_damaged_shard_entry_is_refused(parts, tmp_path, value):
    change_json(parts[0] / "run.json", lambda plan: plan.update(shard=value))
    with pytest.raises(FileError, match="its shard is not valid"):
        merge_runs(parts, tmp_path / "merged")


def test_a_shard_and_a_whole_run_are_not_mixed_up(parts, tmp_path):
    with pytest.raises(InputError, match="is shard 0 of 3, expected a whole run"):
        read_report(parts[0], images())
    with pytest.raises(InputError, match="holds another run: its shard"):
        finish(parts[0])
    with pytest.raises(InputError, match="holds another run: its shard"):
        shard(parts[0], 1)
    merge_runs(parts, tmp_path / "merged")
    with pytest.raises(InputError, match="is a whole run, expected a shard"):
        merge_runs([tmp_path / "merged", *parts[1:]], tmp_path / "again")


def test_a_repeated_merge_keeps_the_run_and_another_run_is_not_overwritten(parts, tmp_path):
    out = tmp_path / "merged"
    merge_runs(parts, out)
    finish(out)
    before = content(out)
    merge_runs(parts, out)
    assert content(out) == before
    change_batch(out, 0, 0, lambda batch: {"bare": batch.bare + 1})
    with pytest.raises(InputError, match="has another attempts/00/0000"):
        merge_runs(parts, out)


def test_versions_and_devices_of_all_shards_are_stored(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("SOAP_COMMIT", "later")
    shutil.rmtree(parts[1])
    questions = iter(range(10**6))
    shard(parts[1], 1, stop=lambda: next(questions) >= 1)
    monkeypatch.setenv("SOAP_COMMIT", "latest")
    shard(parts[1], 1)
    monkeypatch.setenv("SOAP_COMMIT", "test")
    merged = merge_runs(parts, tmp_path / "merged")
    assert [one["commit"] for one in merged.read_fact(CONTINUED)["by"]] == ["later", "latest"]
    report = finish(tmp_path / "merged")
    assert "resumed at later" in next(one.measured for one in report.findings if one.number == 19)


def test_a_forged_attack_in_a_shard_is_found_by_verification(parts, tmp_path):
    """A seal can be written again; `soap verify` classifies the images of the merged run."""
    small_runs.change_batch(parts[0], 0, 0, lambda batch: {"x": batch.x * 0 + 0.5})
    small_runs.forge_fingerprints(parts[0])
    merge_runs(parts, tmp_path / "merged")
    finish(tmp_path / "merged")
    found = soap.evaluation.verify_run(defence(), images(), tmp_path / "merged")
    assert any("not in the ball" in problem for problem in found.problems)


def test_random_attacks_depend_on_the_batch_of_the_whole_run(made):
    """Equal shards would otherwise attack equally, and no test would notice seeds that count from each shard."""
    batch = RunFolder(made / "1").read_batch(0, 1)
    data, seeds = images(), []
    for number in (0, 1):
        seed = soap._runtime.seeding.seed_for(0, 0, number) % 2**31
        rows = batch.rows
        attack = replace(soap.attacks.Noise(eps=THREAT.eps, draws=20), seed=seed)
        seeds.append(attack(defence(), data.x[rows], data.y[rows]).numpy().tobytes())
    assert batch.x.tobytes() == seeds[1] != seeds[0]
