"""A replayed pass is the pass it replaces; off a GPU, and of a network that learns, there is none."""

import pytest
import torch
from tiny import TASKS, noise_images, tiny_model

import soap
from soap._runtime import passes
from soap._runtime.isolation import frozen
from soap.attacks.losses import LOSSES
from soap.gradient_rules import Unrolled, logits_and_gradient, rule


def by_hand(model, x, criterion):
    """Logits and the gradient of the summed criterion, by autograd alone."""
    point = x.clone().requires_grad_()
    logits = model(point)
    return logits.detach(), torch.autograd.grad(criterion(logits).sum(), point)[0]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("task", TASKS)
def test_a_look_in_two_passes_is_the_look_in_one(task, loss, monkeypatch):
    model, x, y = tiny_model(task).eval(), noise_images(5), torch.arange(5) % 4
    asked = []
    monkeypatch.setattr(rule, "is_replayed", lambda model, x: asked.append(len(x)) or True)
    with frozen(model):
        logits, gradient = logits_and_gradient(model, x, lambda z: LOSSES[loss](z, y))
        wanted = by_hand(model, x, lambda z: LOSSES[loss](z, y))
    assert asked == [5]
    torch.testing.assert_close(logits, wanted[0])
    torch.testing.assert_close(gradient, wanted[1])


def test_rows_are_passed_in_parts(monkeypatch):
    monkeypatch.setattr(passes, "MAX_ROWS_PER_PASS", 4)
    model, x, upstream = tiny_model().eval(), noise_images(10), torch.rand(10, 4)
    sizes = []
    model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    with frozen(model):
        torch.testing.assert_close(passes.forward_logits(model, x), model(x))
        gradient = passes.input_gradient(model, x, upstream)
        assert sizes == [4, 4, 2, 10, 4, 4, 2]
        torch.testing.assert_close(gradient, by_hand(model, x, lambda z: (z * upstream).sum(1))[1])


def test_images_made_under_inference_mode_are_taken():
    model = tiny_model().eval()
    with torch.inference_mode():
        x = noise_images(2).clone()
        upstream = torch.ones(2, 4)
        assert passes.forward_logits(model, x).shape == (2, 4)
        assert passes.input_gradient(model, x, upstream).abs().sum() > 0


def test_on_the_cpu_nothing_is_replayed():
    model = tiny_model().eval()
    model.recordable = True
    assert not passes.is_replayed(model, noise_images(1))
    assert not passes.is_replayed(lambda x: x, noise_images(1))


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
def test_on_a_gpu_passes_replayed_equal_themselves_called(task):
    model, upstream = tiny_model(task).cuda().eval(), torch.rand(8, 4, device="cuda")
    for images in (noise_images(8).cuda(), noise_images(8).cuda().flip(0)):
        with frozen(model):
            model.recordable = True
            assert passes.is_replayed(model, images)
            fast = passes.forward_logits(model, images), passes.input_gradient(model, images, upstream)
            model.recordable = False
            wanted = by_hand(model, images, lambda z: (z * upstream).sum(1))
        torch.testing.assert_close(fast[0], wanted[0])
        torch.testing.assert_close(fast[1], wanted[1])


@pytest.mark.gpu
def test_on_a_gpu_a_network_that_learns_is_called():
    model = tiny_model().cuda().train()
    model.recordable = True
    assert not passes.is_replayed(model, noise_images(1).cuda())


@pytest.mark.gpu
def test_on_a_gpu_many_recordings_of_a_model_share_their_memory_and_agree():
    model = soap.load("mnist-fcn-dr", device="cuda")
    purify = soap.SOAP(model)
    robust = soap.Defence(model, purify)
    images = torch.rand(100, 1, 28, 28, device="cuda")
    first = {}
    for turn in range(2):  # the second time every recording has been overwritten by the others
        for rows in (100, 64, 33, 7, 1):
            x, y = images[:rows], torch.arange(rows, device="cuda") % 10
            with torch.no_grad():
                seen = robust(x), *Unrolled(model, purify).logits_and_gradient(x, lambda z, y=y: LOSSES["ce"](z, y))
            for number, value in enumerate(seen):
                known = first.setdefault((rows, number), value)
                assert torch.equal(known, value), (turn, rows, number)


def test_steps_back_are_replayed_for_purifiers_that_say_whose_promise_holds():
    model = tiny_model()
    assert soap.SOAP(model).recorded_by is model
    assert soap.purifiers.Hedge(model).recorded_by is model
