"""`isolated`, `frozen` and `eval_mode` restore the model and the random state."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from soap._runtime.isolation import eval_mode, isolated, preserved_random_state


def network() -> nn.Module:
    """Mixed modes, one frozen parameter."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5)), nn.Linear(2, 2))
    model[1][0].eval()
    model[0].weight.requires_grad_(False)
    return model


def flags(model: nn.Module) -> tuple[list[bool], list[bool]]:
    return [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("fails", [False, True])
def test_modes_and_parameter_flags_are_restored(fails: bool) -> None:
    model = network()
    before = flags(model)
    assert True in before[0]
    assert False in before[0]
    try:
        with isolated(model):
            assert not any(flags(model)[0])
            assert not any(flags(model)[1])
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert flags(model) == before


def test_nested_use_restores_at_the_outer_end() -> None:
    model = network()
    before = flags(model)
    with isolated(model):
        inside = flags(model)
        with isolated(model):
            pass
        assert flags(model) == inside
    assert flags(model) == before


def test_last_of_several_threads_restores_the_flags() -> None:
    """The first thread that leaves must not switch the model back to training for the other."""
    model, came, first_left = network(), threading.Event(), threading.Event()
    before, seen = flags(model), []

    def second() -> None:
        with isolated(model):
            came.set()
            assert first_left.wait(10)
            seen.append(flags(model))

    with ThreadPoolExecutor(1) as pool:
        with isolated(model):
            inside = flags(model)
            done = pool.submit(second)
            assert came.wait(10)
        first_left.set()
        done.result()
    assert seen == [inside]
    assert flags(model) == before


def test_eval_mode_does_not_freeze_parameters() -> None:
    model = network()
    modes, learning = flags(model)
    with eval_mode(model):
        assert flags(model) == ([False] * len(modes), learning)
    assert flags(model) == (modes, learning)


@pytest.mark.parametrize("fails", [False, True])
def test_random_state_is_restored(fails: bool) -> None:
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    try:
        with preserved_random_state():
            torch.rand(5)
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert torch.equal(torch.rand(3), wanted)


def test_isolated_accepts_any_callable_and_restores_the_random_state() -> None:
    before = torch.get_rng_state()
    with isolated(lambda x: x + torch.rand(1)):
        torch.rand(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_existing_gradients_are_not_changed() -> None:
    model = nn.Linear(2, 2)
    model(torch.rand(1, 2)).sum().backward()
    before = model.weight.grad.clone()
    with isolated(model):
        x = torch.rand(1, 2, requires_grad=True)
        model(x).sum().backward()
    assert torch.equal(model.weight.grad, before)


@pytest.mark.gpu
def test_random_state_of_the_gpu_is_restored() -> None:
    torch.rand(1, device="cuda")
    before = torch.cuda.get_rng_state()
    with preserved_random_state():
        torch.rand(5, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), before)
