"""A replay returns what the function returns: on the CPU it is called, on a GPU it is recorded.

Replayed passes equal called passes; on a CPU, and in training mode, nothing is replayed.
"""

import pytest
import torch
from tiny import TASKS, noise_images, tiny_model
from torch import Tensor, nn

import soap
from soap._runtime import cuda_graphs, devices
from soap._runtime.cuda_graphs import (
    MIN_ROWS_DETERMINISTIC,
    _next_power_of_two,
    map_samples,
    min_rows_for_determinism,
    replayed,
)
from soap._runtime.isolation import frozen
from soap.attacks.losses import LOSSES
from soap.gradient_rules import Unrolled, logits_and_gradient, rule
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


def test_function_is_called_on_the_cpu():
    model = Doubles()
    x, y = torch.rand(3, 2), torch.arange(3)
    out = replayed(model, "double", model.work, x, y)
    assert torch.equal(out[0], 2 * x)
    assert model.calls == 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_map_samples_applies_the_function_to_each_sample(device):
    seen, x, y = [], torch.rand(5, 2, device=device), torch.arange(5, device=device)

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        seen.append(len(x))
        return x * 2, y + 1

    for _ in range(3):
        double, more = map_samples(function, x, y)
        assert torch.equal(double, 2 * x)
        assert torch.equal(more, y + 1)
    assert set(seen) == {1}


def test_batches_are_padded_to_the_next_power_of_two():
    assert [_next_power_of_two(n) for n in (1, 2, 3, 4, 5, 100, 128, 129)] == [1, 2, 4, 4, 8, 128, 128, 256]


def test_replays_are_padded_further_only_if_deterministic(monkeypatch):
    model, x = Doubles(), torch.rand(3, 2)
    with devices.cudnn_deterministic():
        assert min_rows_for_determinism(model, x) == 1  # on the CPU nothing is replayed
        monkeypatch.setattr(cuda_graphs, "is_replayable", lambda *_: True)
        assert min_rows_for_determinism(model, x) == MIN_ROWS_DETERMINISTIC
    assert min_rows_for_determinism(model, x) == 1


@pytest.mark.parametrize("kind", ["soap", "hedge", "logits"])
def test_purifiers_and_passes_pad_to_the_deterministic_batch_size(kind, monkeypatch):
    sizes = []
    modules = {"soap": sign_steps, "hedge": sign_steps, "logits": cuda_graphs}
    monkeypatch.setattr(modules[kind], "min_rows_for_determinism", lambda *_: 8)
    monkeypatch.setattr(modules[kind], "replayed", lambda *given: _recorded_size(sizes, *given))
    model, x = tiny_model().eval(), noise_images(3)
    call = {
        "soap": lambda: soap.SOAP(model, 0.1)(x).x,
        "hedge": lambda: soap.purifiers.Hedge(model, eps=0.1)(x).x,
        "logits": lambda: cuda_graphs.forward_logits(model, x),
    }[kind]
    assert len(call()) == 3
    assert sizes == [8]


def _recorded_size(sizes, owner, key, function, *inputs):
    sizes.append(len(inputs[0]))
    return function(*inputs)


@pytest.mark.gpu
def test_deterministic_logits_do_not_depend_on_the_batch_size():
    model = soap.load("cifar10-resnet18-lc").cuda()  # other models keep the label, not the last bit of a logit
    x = torch.rand(150, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    robust = soap.Defence(model, soap.SOAP(model))
    with torch.no_grad(), devices.cudnn_deterministic():
        whole = robust(x)
        for size in (1, 7, 32, 100):
            parts = [robust(part) for part in torch.split(x[:100], size)]
            assert torch.equal(torch.cat(parts), whole[:100]), size


@pytest.mark.gpu
def test_replays_use_new_inputs_new_weights_and_partial_batches():
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
    cuda_graphs.release_graphs(model)


def test_recordable_is_set_for_known_models_and_attacks_only():
    assert not tiny_model().recordable
    assert soap.load("mnist-fcn-dr").recordable
    attacks = soap.attacks
    assert attacks.FGSM(eps=0.1).recordable
    assert attacks.PGD(eps=0.1, step_size=0.1, steps=2).recordable
    assert not attacks.PGD(eps=0.1, step_size=0.1, steps=2, start="random").recordable
    assert not attacks.PGD(eps=0.1, step_size=0.1, steps=2, restarts=2).recordable
    assert not attacks.DeepFool().recordable


@pytest.mark.gpu
def test_function_is_called_if_the_module_is_not_recordable():
    model = Doubles().cuda()
    model.recordable = False
    for _ in range(3):
        x = torch.rand(3, 2, device="cuda")
        assert torch.equal(replayed(model, "double", model.work, x, torch.arange(3, device="cuda"))[0], 2 * x)
    assert model.calls == 3


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
def test_replayed_purifier_and_attack_equal_the_called_ones(task):
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


def by_hand(model, x, criterion):
    """Logits and the gradient of the summed criterion, by autograd alone."""
    point = x.clone().requires_grad_()
    logits = model(point)
    return logits.detach(), torch.autograd.grad(criterion(logits).sum(), point)[0]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("task", TASKS)
def test_gradient_in_two_passes_equals_autograd(task, loss, monkeypatch):
    model, x, y = tiny_model(task).eval(), noise_images(5), torch.arange(5) % 4
    asked = []
    monkeypatch.setattr(rule, "is_replayed", lambda model, x: asked.append(len(x)) or True)
    with frozen(model):
        logits, gradient = logits_and_gradient(model, x, lambda z: LOSSES[loss](z, y))
        wanted = by_hand(model, x, lambda z: LOSSES[loss](z, y))
    assert asked == [5]
    torch.testing.assert_close(logits, wanted[0])
    torch.testing.assert_close(gradient, wanted[1])


def test_passes_are_split_into_parts(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_ROWS_PER_PASS", 4)
    model, x, upstream = tiny_model().eval(), noise_images(10), torch.rand(10, 4)
    sizes = []
    model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    with frozen(model):
        torch.testing.assert_close(cuda_graphs.forward_logits(model, x), model(x))
        gradient = cuda_graphs.input_gradient(model, x, upstream)
        assert sizes == [4, 4, 2, 10, 4, 4, 2]
        torch.testing.assert_close(gradient, by_hand(model, x, lambda z: (z * upstream).sum(1))[1])


def test_images_made_in_inference_mode_are_accepted():
    model = tiny_model().eval()
    with torch.inference_mode():
        x = noise_images(2).clone()
        upstream = torch.ones(2, 4)
        assert cuda_graphs.forward_logits(model, x).shape == (2, 4)
        assert cuda_graphs.input_gradient(model, x, upstream).abs().sum() > 0


def test_nothing_is_replayed_on_the_cpu():
    model = tiny_model().eval()
    model.recordable = True
    assert not cuda_graphs.is_replayed(model, noise_images(1))
    assert not cuda_graphs.is_replayed(lambda x: x, noise_images(1))


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
def test_gpu_replayed_passes_equal_called_passes(task):
    model, upstream = tiny_model(task).cuda().eval(), torch.rand(8, 4, device="cuda")
    for images in (noise_images(8).cuda(), noise_images(8).cuda().flip(0)):
        with frozen(model):
            model.recordable = True
            assert cuda_graphs.is_replayed(model, images)
            fast = cuda_graphs.forward_logits(model, images), cuda_graphs.input_gradient(model, images, upstream)
            model.recordable = False
            wanted = by_hand(model, images, lambda z: (z * upstream).sum(1))
        torch.testing.assert_close(fast[0], wanted[0])
        torch.testing.assert_close(fast[1], wanted[1])


@pytest.mark.gpu
def test_gpu_network_in_training_mode_is_not_replayed():
    model = tiny_model().cuda().train()
    model.recordable = True
    assert not cuda_graphs.is_replayed(model, noise_images(1).cuda())


@pytest.mark.gpu
def test_gpu_recordings_of_a_model_share_memory_and_agree():
    model = soap.load("mnist-fcn-dr", device="cuda")
    purify = soap.SOAP(model)
    robust = soap.Defence(model, purify)
    images = torch.rand(100, 1, 28, 28, device="cuda")
    first = {}
    for turn in range(2):  # in the second turn the other recordings have overwritten the shared memory
        for rows in (100, 64, 33, 7, 1):
            x, y = images[:rows], torch.arange(rows, device="cuda") % 10
            with torch.no_grad():
                seen = robust(x), *Unrolled(model, purify).logits_and_gradient(x, lambda z, y=y: LOSSES["ce"](z, y))
            for number, value in enumerate(seen):
                known = first.setdefault((rows, number), value)
                assert torch.equal(known, value), (turn, rows, number)


def test_purifiers_name_the_network_that_allows_replay():
    model = tiny_model()
    assert soap.SOAP(model).recorded_by is model
    assert soap.purifiers.Hedge(model).recorded_by is model
