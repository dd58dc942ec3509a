"""Devices, cuDNN settings, seeds, and stopping on a signal."""

import os
import signal

import pytest
import torch

from soap._runtime import devices, seeding
from soap.cli.console import stop_on_signal
from soap.errors import InputError


def test_pick_device_accepts_known_names_only():
    assert devices.pick_device("cpu") == torch.device("cpu")
    assert devices.pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for wrong in ("gpu", "tpu", "cpu:x", ""):
        with pytest.raises(InputError, match="unknown device"):
            devices.pick_device(wrong)


def test_unknown_precision_is_refused():
    with pytest.raises(InputError, match="'fp32', 'bf16'"):
        devices.autocast(torch.device("cpu"), "fp16")


def test_cudnn_setting_is_restored_when_the_last_thread_leaves(monkeypatch):
    for before in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", before)
        first, second = devices.cudnn_deterministic(), devices.cudnn_deterministic()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)  # as a thread that enters first and leaves first
        assert torch.backends.cudnn.deterministic
        second.__exit__(None, None, None)
        assert torch.backends.cudnn.deterministic is before


def test_seeds_differ_for_every_seed_and_counter():
    seeds = {seeding.seed_for(seed, a, b) for seed in range(10) for a in range(10) for b in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeding.seed_for(3, 1, 4) == seeding.seed_for(3, 1, 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_requests_a_stop_and_second_interrupts(number):
    before = signal.getsignal(number)
    with stop_on_signal() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
