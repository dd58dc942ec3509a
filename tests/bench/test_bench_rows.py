"""Rows, models, images and memory of benchmarks."""

import json
from pathlib import Path

import pytest
import torch

import soap
from soap._runtime.allocator import kept_memory
from soap.bench import append, read
from soap.bench.batches import bench_purify
from soap.bench.inputs import BenchSetup, bench_images, load_bench_model, training_set
from soap.bench.measures import with_peak_memory
from soap.bench.results import _without_paths, path_metrics
from soap.errors import FileError, InputError
from soap.recipes import read as recipe

CPU = torch.device("cpu")
SETUP = BenchSetup(device=CPU, rate=1e9)


@pytest.fixture(scope="module")
def row():
    return bench_purify(SETUP, load_bench_model("mnist-fcn-dr", CPU), batch_size=2, repeats=2)


def test_a_row_is_complete_and_read_back_unchanged(row, tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    append(path, row)
    append(path, row)
    back = read(path)
    assert back == [json.loads(json.dumps(row))] * 2
    (one, _) = back
    assert set(one["paths"]) == {"ours", "plain"}
    assert one["paths"]["ours"]["passes"] == {"forward": 16, "backward": 11}
    assert one["paths"]["plain"]["passes"] == {"forward": 66, "backward": 55}
    assert one["case"] == {"batch_size": 2, "steps": 5, "grid": 11, "precision": "fp32"}
    assert one["share"] == pytest.approx(one["floor"]["seconds"] / one["paths"]["ours"]["seconds"]["median"])
    assert set(one["provenance"]) == {
        "version", "commit", "torch", "python", "device", "processor", "threads", "date", "command",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["not json", "[]", '{"schema": "soap-bench/0"}'])
def test_an_invalid_line_is_named_in_the_error(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(FileError, match="line 1"):
        read(path)


def test_ratios_are_of_medians_and_uncounted_passes_are_none():
    from soap.bench.measures import PassCount

    seconds = {"ours": [1.0, 2.0, 9.0], "plain": [6.0, 8.0, 7.0]}
    seen = {"ours": PassCount(forward=0, backward=0), "plain": PassCount(forward=3, backward=2)}
    got = path_metrics(seconds, 10, seen, {"plain": 7})
    assert (got["ours"]["ratio"], got["plain"]["ratio"]) == (1, 3.5)
    assert got["ours"]["images_per_second"] == 5
    assert (got["ours"]["passes"], got["plain"]["passes"]) == (None, {"forward": 3, "backward": 2})
    assert (got["ours"]["peak_bytes"], got["plain"]["peak_bytes"]) == (None, 7)


def test_a_recipe_gets_random_weights():
    before = torch.get_rng_state()
    path = str(Path(soap.recipes.__file__).with_name("cifar100-resnet18-lc.toml"))  # its name means bundled weights
    one, two, other = (load_bench_model(path, CPU, seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    same = [torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(next(one.model.parameters()), next(other.model.parameters()))
    assert (one.weights, one.model.training) == ("random, seed 0", False)
    assert load_bench_model("mnist-fcn-dr", CPU).weights == "trained"


def test_bench_images_are_digits_or_noise_with_their_source(tmp_path):
    digits, source = bench_images(SETUP, load_bench_model("mnist-fcn-dr", CPU), 2001)
    assert source == "mnist-mini/test, 2 times over"
    assert torch.equal(digits[2000], digits[0])
    elsewhere = BenchSetup(device=CPU, rate=1e9, seed=4, root=tmp_path)
    noise, source = bench_images(elsewhere, load_bench_model("cifar10-resnet18-rp", CPU), 3)
    assert (source, tuple(noise.shape)) == ("uniform noise, seed 4", (3, 3, 32, 32))
    assert 0 <= noise.min() < noise.max() <= 1


def test_noise_has_the_number_and_shape_of_the_training_images(tmp_path):
    plan = recipe("cifar100-resnet18-rp")
    data = training_set(plan, soap.recipes.build(plan), 64, root=tmp_path)
    assert (len(data), tuple(data.x.shape[1:]), len(data.classes)) == (64, (3, 32, 32), 100)
    assert data.name == "uniform noise, seed 0"


def test_an_unknown_model_or_recipe_is_an_error():
    with pytest.raises(InputError, match="unknown model or recipe 'mnist-fcn-d'; did you mean mnist-fcn-dr"):
        load_bench_model("mnist-fcn-d", CPU)


def test_peak_memory_of_a_call():
    megabytes = 64
    result, peak = with_peak_memory(lambda: torch.ones(megabytes * 2**18).sum().item(), CPU)
    assert result == megabytes * 2**18
    assert peak is None or megabytes * 2**20 * 0.9 < peak < megabytes * 2**20 * 2


def test_peak_memory_counts_blocks_that_were_freed_before():
    megabytes = 64
    with kept_memory():  # the block below is freed but stays resident
        torch.ones(megabytes * 2**18)
        _, peak = with_peak_memory(lambda: torch.ones(megabytes * 2**18).sum().item(), CPU)
    assert peak is None or megabytes * 2**20 * 0.9 < peak < megabytes * 2**20 * 2


def test_memory_that_cannot_be_measured_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr("soap.bench.measures.PROC_CLEAR_REFS", tmp_path / "missing" / "file")
    assert with_peak_memory(lambda: 3, CPU) == (3, None)


def test_the_recorded_command_has_no_local_paths():
    given = ["bench", "purify", "--results", "/home/me/rows.jsonl", "--batch-size", "3", "--data-root=/data", "-q"]
    assert _without_paths(given) == ["bench", "purify", "--batch-size", "3", "-q"]
    assert _without_paths([]) == []
