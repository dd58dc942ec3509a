"""A replay is the call it replaces: on the CPU it is that call, on a GPU it is recorded and proved."""

import pytest
import torch
from tiny import TASKS, noise_images, tiny_model
from torch import Tensor, nn

import soap
from soap._runtime import cuda_graphs, devices, passes
from soap._runtime.cuda_graphs import REPEATABLE, _bucket, least_rows, replayed, row_by_row
from soap.purifiers import sign_steps


class Doubles(nn.Module):
    recordable = True

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.calls = 0

    def work(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        return x * self.factor, y + 1


def test_on_the_cpu_the_function_is_called():
    model = Doubles()
    x, y = torch.rand(3, 2), torch.arange(3)
    out = replayed(model, "double", model.work, x, y)
    assert torch.equal(out[0], 2 * x)
    assert model.calls == 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_row_by_row_is_the_function_of_every_row(device):
    seen, x, y = [], torch.rand(5, 2, device=device), torch.arange(5, device=device)

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        seen.append(len(x))
        return x * 2, y + 1

    for _ in range(3):
        double, more = row_by_row(function, x, y)
        assert torch.equal(double, 2 * x)
        assert torch.equal(more, y + 1)
    assert set(seen) == {1}


def test_rows_are_padded_to_the_next_power_of_two():
    assert [_bucket(n) for n in (1, 2, 3, 4, 5, 100, 128, 129)] == [1, 2, 4, 4, 8, 128, 128, 256]


def test_only_repeatable_replays_are_padded_further(monkeypatch):
    model, x = Doubles(), torch.rand(3, 2)
    with devices.cudnn_deterministic():
        assert least_rows(model, x) == 1  # on the CPU nothing is replayed
        monkeypatch.setattr(cuda_graphs, "replays", lambda *_: True)
        assert least_rows(model, x) == REPEATABLE
    assert least_rows(model, x) == 1


@pytest.mark.parametrize("kind", ["soap", "hedge", "answers"])
def test_what_gives_answers_asks_for_the_padding(kind, monkeypatch):
    seen = []
    rooms = {"soap": soap.purifiers.soap, "hedge": sign_steps, "answers": passes}
    monkeypatch.setattr(rooms[kind], "least_rows", lambda *_: 8)
    monkeypatch.setattr(rooms[kind], "replayed", lambda *given: _seen(seen, *given))
    model, x = tiny_model().eval(), noise_images(3)
    call = {
        "soap": lambda: soap.SOAP(model, 0.1)(x).x,
        "hedge": lambda: soap.purifiers.Hedge(model, eps=0.1)(x).x,
        "answers": lambda: passes.forward_logits(model, x),
    }[kind]
    assert len(call()) == 3
    assert seen == [8]


def _seen(seen, owner, key, function, *inputs):
    seen.append(len(inputs[0]))
    return function(*inputs)


@pytest.mark.gpu
def test_a_repeatable_answer_does_not_depend_on_how_many_are_asked_for():
    model = soap.load("cifar10-resnet18-lc").cuda()  # others keep the label, not the last bit of a logit
    x = torch.rand(150, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    robust = soap.Defence(model, soap.SOAP(model))
    with torch.no_grad(), devices.cudnn_deterministic():
        whole = robust(x)
        for size in (1, 7, 32, 100):
            parts = [robust(part) for part in torch.split(x[:100], size)]
            assert torch.equal(torch.cat(parts), whole[:100]), size


@pytest.mark.gpu
def test_replays_read_new_inputs_new_weights_and_ragged_batches():
    model = Doubles().cuda()
    for n in (5, 7, 8, 5):
        x, y = torch.rand(n, 2, device="cuda"), torch.arange(n, device="cuda")
        out = replayed(model, "double", model.work, x, y)
        assert torch.equal(out[0], 2 * x)
        assert torch.equal(out[1], y + 1)
    assert model.calls == 2  # warm-up and recording, once
    model.factor.fill_(3.0)
    assert torch.equal(replayed(model, "double", model.work, x, y)[0], 3 * x)
    model.factor = nn.Parameter(torch.tensor(4.0, device="cuda"), requires_grad=False)
    assert torch.equal(replayed(model, "double", model.work, x, y)[0], 4 * x)
    cuda_graphs.forget(model)


def test_only_models_that_promise_it_are_recorded():
    assert not tiny_model().recordable
    assert soap.load("mnist-fcn-dr").recordable
    attacks = soap.attacks
    assert attacks.FGSM(eps=0.1).recordable
    assert attacks.PGD(eps=0.1, step_size=0.1, steps=2).recordable
    assert not attacks.PGD(eps=0.1, step_size=0.1, steps=2, start="random").recordable
    assert not attacks.PGD(eps=0.1, step_size=0.1, steps=2, restarts=2).recordable
    assert not attacks.DeepFool().recordable


@pytest.mark.gpu
def test_without_the_promise_the_function_is_called():
    model = Doubles().cuda()
    model.recordable = False
    for _ in range(3):
        x = torch.rand(3, 2, device="cuda")
        assert torch.equal(replayed(model, "double", model.work, x, torch.arange(3, device="cuda"))[0], 2 * x)
    assert model.calls == 3


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
def test_purifier_and_attack_replayed_equal_themselves_called(task):
    model, x = tiny_model(task).cuda(), noise_images(6).cuda()
    model.recordable = True
    y = model(x).argmax(1)
    attack = soap.attacks.PGD(eps=0.2, step_size=0.05, steps=6)
    purify = soap.SOAP(model)
    fast = attack(model, x, y)
    cleaned = purify(fast)
    model.recordable = False
    assert torch.equal(attack(model, x, y), fast)
    plain = purify(fast)
    assert torch.equal(plain.x, cleaned.x)
    assert torch.equal(plain.eps, cleaned.eps)
    assert torch.equal(plain.loss_after, cleaned.loss_after)


@pytest.mark.gpu
def test_bf16_purifies_on_the_gpu():
    model, x = tiny_model().cuda(), noise_images(6).cuda()
    out = soap.SOAP(model, precision="bf16")(x)
    assert out.x.dtype == torch.float32
    assert (out.loss_after <= out.loss_before * 1.01).all()
