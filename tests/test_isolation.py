"""A frozen network comes back as it was."""

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


def shown(model: nn.Module) -> tuple[list[bool], list[bool]]:
    return [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("fails", [False, True])
def test_modes_and_parameters_come_back(fails: bool) -> None:
    model = network()
    before = shown(model)
    assert True in before[0]
    assert False in before[0]
    try:
        with isolated(model):
            assert not any(shown(model)[0])
            assert not any(shown(model)[1])
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert shown(model) == before


def test_borrowing_twice_gives_back_once_each() -> None:
    model = network()
    before = shown(model)
    with isolated(model):
        inside = shown(model)
        with isolated(model):
            pass
        assert shown(model) == inside
    assert shown(model) == before


def test_of_several_threads_the_last_one_gives_back() -> None:
    """The first to leave switched the other's network to training, under its feet."""
    model, came, first_left = network(), threading.Event(), threading.Event()
    before, seen = shown(model), []

    def second() -> None:
        with isolated(model):
            came.set()
            assert first_left.wait(10)
            seen.append(shown(model))

    with ThreadPoolExecutor(1) as pool:
        with isolated(model):
            inside = shown(model)
            done = pool.submit(second)
            assert came.wait(10)
        first_left.set()
        done.result()
    assert seen == [inside]
    assert shown(model) == before


def test_answering_leaves_parameters_alone() -> None:
    model = network()
    modes, learning = shown(model)
    with eval_mode(model):
        assert shown(model) == ([False] * len(modes), learning)
    assert shown(model) == (modes, learning)


@pytest.mark.parametrize("fails", [False, True])
def test_the_random_state_comes_back(fails: bool) -> None:
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


def test_any_callable_may_be_borrowed_and_the_random_state_is_kept() -> None:
    before = torch.get_rng_state()
    with isolated(lambda x: x + torch.rand(1)):
        torch.rand(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_already_there_are_left_alone() -> None:
    model = nn.Linear(2, 2)
    model(torch.rand(1, 2)).sum().backward()
    before = model.weight.grad.clone()
    with isolated(model):
        x = torch.rand(1, 2, requires_grad=True)
        model(x).sum().backward()
    assert torch.equal(model.weight.grad, before)


@pytest.mark.gpu
def test_the_random_state_of_the_gpu_comes_back() -> None:
    torch.rand(1, device="cuda")
    before = torch.cuda.get_rng_state()
    with preserved_random_state():
        torch.rand(5, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), before)
