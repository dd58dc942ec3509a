"""Distribution as seen by one process; real processes are in tests/training/test_two_processes.py."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soap._runtime import devices, distributed
from soap._runtime.distributed import Processes
from soap.cli import main
from soap.data import gaussian_noise
from soap.errors import InputError


def test_single_process_does_not_import_accelerate():
    source = """
import sys, torch
from soap._runtime import distributed
with distributed.process_group(torch.device("cpu")) as group:
    assert group == distributed.Processes() == distributed.processes()
    assert group.is_main and not group.is_distributed
    assert group.shard(7) == slice(0, 7)
    assert group.any(True) and not group.any(False)
    assert group.broadcast_text("text") == "text"
    table = torch.ones(3)
    group.sum_disjoint(table)
    group.broadcast([table])
    with group.main_first():
        group.barrier()
    assert table.tolist() == [1, 1, 1]
assert not [name for name in sys.modules if name.startswith("accelerate")]
"""
    subprocess.run([sys.executable, "-c", source], check=True)


@settings(max_examples=30)
@given(world=st.integers(1, 5), rows=st.integers(1, 4), copies=st.integers(1, 4), width=st.integers(1, 9))
def test_parts_of_a_shared_draw_equal_the_draw_of_one_process(world, rows, copies, width):
    whole = torch.randn(copies * world * rows, width, generator=torch.Generator().manual_seed(3))
    parts = []
    for rank in range(world):
        generator = torch.Generator().manual_seed(3)
        with distributed.shared_batch(Processes(rank=rank, world_size=world), rows):
            parts.append(
                distributed.normal_like(torch.zeros(copies * rows, width), generator).reshape(copies, rows, width)
            )
        after = torch.randn(1, generator=generator)  # the generators of all processes stay equal
        assert after == torch.randn(1, generator=spent(3, whole.numel()))
    assert torch.equal(torch.cat(parts, 1).flatten(0, 1), whole)


def spent(seed: int, numbers: int) -> torch.Generator:
    """Return a generator that has drawn so many numbers."""
    generator = torch.Generator().manual_seed(seed)
    torch.randn(numbers, generator=generator)
    return generator


def test_noise_outside_a_shared_batch_is_drawn_as_in_one_process():
    x = torch.rand(6, 3)
    wanted = (x + 0.2 * torch.randn(6, 3, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    with distributed.shared_batch(Processes(rank=1, world_size=2), 6):
        shared = gaussian_noise(x, 0.2, torch.Generator().manual_seed(1))
    assert not torch.equal(shared, wanted)
    torch.testing.assert_close(gaussian_noise(x, 0.2, torch.Generator().manual_seed(1)), wanted)


@given(world=st.integers(1, 9), share=st.integers(1, 9))
def test_shards_cover_a_batch_once(world, share):
    parts = [Processes(rank=rank, world_size=world).shard(world * share) for rank in range(world)]
    assert [row for part in parts for row in range(world * share)[part]] == list(range(world * share))


@pytest.mark.parametrize(
    ("world", "rank", "message"),
    [("two", "0", "WORLD_SIZE is 'two'"), ("2", None, "RANK is None"), ("2", "first", "RANK is 'first'")],
)
def test_incomplete_launcher_environment_raises(monkeypatch, world, rank, message):
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(InputError, match=message):
        distributed.launched_count()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models"], "soap models runs in one process, WORLD_SIZE is 2"),
        (["purify", "x.png", "--out", "y"], "soap purify runs in one process, WORLD_SIZE is 2"),
        (["train", "mnist-fcn-dr", "--device", "cuda:0"], "'cuda:0' is one for all 2 processes"),
        (["train", "mnist-fcn-dr", "--device", "cuda"], "process 1 of this machine has no GPU of its own"),
    ],
)
def test_command_for_one_process_raises_in_every_launched_process(monkeypatch, capsys, arguments, message):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("process 1: error: ")
    assert message in printed.err


def test_every_process_gets_its_own_gpu(monkeypatch):
    for name, value in {"WORLD_SIZE": "8", "RANK": "6", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert devices.pick_device("auto") == devices.pick_device("cuda") == torch.device("cuda:2")
    assert devices.pick_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert devices.pick_device("auto") == torch.device("cpu")


def test_missing_accelerate_raises_with_the_package_to_install(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(InputError, match=r"pip install .*scale"), distributed.process_group(torch.device("cpu")):
        pass
