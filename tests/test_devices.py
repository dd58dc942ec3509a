"""Devices, seeds, and stopping at a safe point."""

import json
import os
import signal
import struct

import pytest
import torch

from soap._files import tensor_files
from soap._runtime import devices, interrupts, seeding
from soap.errors import FileError, InputError


def test_devices_by_name():
    assert devices.pick_device("cpu") == torch.device("cpu")
    assert devices.pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for wrong in ("gpu", "tpu", "cpu:x", ""):
        with pytest.raises(InputError, match="unknown device"):
            devices.pick_device(wrong)


def test_repeatable_is_put_back_whoever_leaves_first(monkeypatch):
    for before in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", before)
        one, other = devices.cudnn_deterministic(), devices.cudnn_deterministic()
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)  # as a thread that came first and leaves first
        assert torch.backends.cudnn.deterministic
        other.__exit__(None, None, None)
        assert torch.backends.cudnn.deterministic is before


def test_seeds_differ_for_every_seed_and_counter():
    seeds = {seeding.seed_for(seed, a, b) for seed in range(10) for a in range(10) for b in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeding.seed_for(3, 1, 4) == seeding.seed_for(3, 1, 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_interrupts(number):
    before = signal.getsignal(number)
    with interrupts.stop_on_signal() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_an_unknown_precision_is_refused():
    with pytest.raises(InputError, match="'fp32', 'bf16'"):
        devices.autocast(torch.device("cpu"), "fp16")


def test_a_tensor_of_more_dimensions_than_torch_counts_is_refused(tmp_path):
    path = tmp_path / "deep.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(FileError, match=r"deep.safetensors: tensor 'a' has 65 dimensions, want at most 64"):
        tensor_files.load_tensors(path)
