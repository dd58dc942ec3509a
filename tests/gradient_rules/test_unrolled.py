"""The unrolled gradient against finite differences and plain autograd."""

import pytest
import torch
from tiny import TASKS, attacked_digits, noise_images, state_of, tiny_model

import soap
from soap.attacks import cross_entropy
from soap.auxiliary.consistency import GRADIENTS
from soap.bench.measures import Meter, counting_features
from soap.gradient_rules import (
    OwnGradient,
    StraightThrough,
    UnrollablePurifier,
    Unrolled,
    logits_and_gradient,
)

SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)


def of(y):
    return lambda logits: cross_entropy(logits, y)


def squares(logits):
    return logits.square().sum(1)


def double(task="reconstruction", gradient=None, **settings):
    """A smooth model, images and labels in float64, so that rounding does not flip the sign of a gradient near zero."""
    model = tiny_model(task, dtype=torch.float64)
    if gradient is not None:
        model.auxiliary.gradient = gradient
    return model, soap.SOAP(model, **settings), noise_images(3, dtype=torch.float64), torch.tensor([0, 1, 2])


def plain_steps(loss, x, eps, gamma, steps, scale, *, smooth, widths=None):
    """All steps in one graph, and scale * r of each; `widths` fixes them, as the derivative takes them to be.

    Sign steps to a clip's edge and back land on it but for rounding: `tie` leaves them inside.
    """
    point, used, tie = x, [], 0 if smooth else 1e-6
    for t in range(steps):
        live = point if point.requires_grad else point.detach().requires_grad_()
        (g,) = torch.autograd.grad(loss(live).sum(), live, create_graph=True)
        used.append(scale * g.detach().square().mean((1, 2, 3), keepdim=True).sqrt() if widths is None else widths[t])
        s = (g / used[-1]).tanh()
        s = s if smooth else s + (g.sign() - s).detach()
        delta = live - gamma * s - x
        point = x + torch.where(delta.abs() > eps + tie, eps * delta.sign(), delta)
        point = torch.where(point > 1 + tie, 1, torch.where(point < -tie, 0, point))
    return point, used


FORMS = [(task, None) for task in TASKS[:2]] + [("consistency", gradient) for gradient in GRADIENTS]


@pytest.mark.parametrize(("task", "gradient"), FORMS)
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_stepwise_backward_equals_autograd_through_all_steps(task, gradient, smooth, scale):
    model, purify, x, y = double(task, gradient, grid=(0.0, 0.07, 0.25), step_size=0.1)
    logits, direction = logits_and_gradient(Unrolled(model, purify, scale=scale, smooth=smooth), x, of(y))
    point, eps = x.clone().requires_grad_(), purify(x).eps[:, None, None, None]
    end, _ = plain_steps(purify.loss, point, eps, 0.1, 5, scale, smooth=smooth)
    torch.testing.assert_close(logits, model(end).detach())
    torch.testing.assert_close(direction, torch.autograd.grad(cross_entropy(model(end), y).sum(), point)[0])
    assert not torch.allclose(direction, logits_and_gradient(StraightThrough(model, purify), x, of(y))[1])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("radius", [0.02, 0.15, 0.5])
def test_smooth_gradient_equals_central_differences(task, radius):
    gradient = "exact" if task == "consistency" else None  # finite differences can check only a true gradient
    model, purify, x, y = double(task, gradient, eps=radius, step_size=0.05, steps=4)
    seen, eps = Unrolled(model, purify, smooth=True), torch.full((3, 1, 1, 1), radius, dtype=torch.float64)
    logits, direction = seen.logits_and_gradient(x, of(y))
    end, widths = plain_steps(purify.loss, x, eps, 0.05, 4, 1.0, smooth=True)
    torch.testing.assert_close(logits, model(end))
    torch.testing.assert_close(seen(x), model(end))

    def value(point):
        end, _ = plain_steps(purify.loss, point, eps, 0.05, 4, 1.0, smooth=True, widths=widths)
        return cross_entropy(model(end), y)

    generator, h = torch.Generator().manual_seed(0), 1e-6
    for _ in range(8):
        way = torch.randn(x.shape, dtype=torch.float64, generator=generator)
        numeric = (value(x + h * way) - value(x - h * way)) / (2 * h)
        torch.testing.assert_close((direction * way).sum((1, 2, 3)), numeric, atol=1e-8, rtol=1e-5)


class Kept:
    """Bytes that autograd keeps, now and at peak."""

    def __init__(self):
        self.now = self.most = 0

    def hold(self, tensor):
        return _Held(self, tensor)

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.hold, lambda held: held.tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


class _Held:
    def __init__(self, kept, tensor):
        self.kept, self.tensor, self.bytes = kept, tensor, tensor.nbytes
        kept.now += self.bytes
        kept.most = max(kept.most, kept.now)

    def __del__(self):
        self.kept.now -= self.bytes


def most_kept(work):
    with Kept() as kept:
        work()
    return kept.most


def test_memory_does_not_grow_with_steps():
    def measured(steps):
        """Peak memory of our backward pass and of autograd through all steps."""
        model, purify, x, y = double(eps=0.5, step_size=0.05, steps=steps)
        point, eps = x.clone().requires_grad_(), torch.full((3, 1, 1, 1), 0.5, dtype=torch.float64)
        ours = most_kept(lambda: Unrolled(model, purify).logits_and_gradient(x, of(y)))
        return ours, most_kept(lambda: plain_steps(purify.loss, point, eps, 0.05, steps, 1.0, smooth=False))

    (few, few_plain), (many, many_plain) = measured(2), measured(8)
    assert many == few > 0
    assert many_plain > 3 * few_plain  # so the count would detect growth


def test_any_scale_gives_a_finite_gradient_for_digits():
    model = soap.load("mnist-fcn-dr")
    x, y = attacked_digits(model, 20)
    purify = soap.SOAP(model)
    expected = soap.Defence(model, purify)(x)
    for scale in SCALES:
        logits, direction = logits_and_gradient(Unrolled(model, purify, scale=scale), x, of(y))
        assert torch.equal(logits, expected)
        assert torch.isfinite(direction).all()
        assert (direction.abs().flatten(1).amax(1) > 0).all()


@pytest.mark.parametrize("task", TASKS)
def test_a_very_large_scale_equals_straight_through(task):
    model, purify, x, y = double(task, grid=(0.0, 0.1, 0.25))
    x = 0.3 + 0.4 * x
    expected = StraightThrough(model, purify).logits_and_gradient(x, of(y))
    torch.testing.assert_close(Unrolled(model, purify, scale=1e9).logits_and_gradient(x, of(y)), expected)


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_model_and_inputs_do_not_change_in_any_grad_mode(context, smooth):
    model, purify, _, y = double("consistency")
    expected = soap.Defence(model, purify)(noise_images(3, dtype=torch.float64)).detach()
    model.train().requires_grad_(True)
    seen = Unrolled(model, purify, smooth=smooth)
    before = state_of(model)
    with context():
        x = noise_images(3, dtype=torch.float64)
        kept = x.clone()
        logits, direction = seen.logits_and_gradient(x, of(y))
        assert torch.equal(x, kept)
        assert torch.equal(seen(x), logits)
    assert torch.equal(logits, expected) is not smooth
    assert not direction.requires_grad
    assert state_of(model) == before
    assert isinstance(seen, OwnGradient)
    assert isinstance(purify, UnrollablePurifier)


def test_an_image_gives_the_same_gradient_alone_and_in_a_batch():
    model, purify, x, y = double("rotation")
    seen = Unrolled(model, purify)
    together = seen.logits_and_gradient(x, of(y))
    for row in range(3):
        alone = seen.logits_and_gradient(x[row : row + 1], of(y[row : row + 1]))
        torch.testing.assert_close((alone[0][0], alone[1][0]), (together[0][row], together[1][row]))


def test_out_of_memory_halves_the_part_with_the_same_result(monkeypatch):
    model, purify, x, y = double()
    path, whole = purify.route(x), Unrolled(model, purify).logits_and_gradient(x, of(y))
    loss, sizes = purify.loss, []

    def scarce(points):
        sizes.append(len(points))
        if len(points) > 1:
            raise torch.OutOfMemoryError("no room")
        return loss(points)

    monkeypatch.setattr(purify, "route", lambda x: path)
    monkeypatch.setattr(purify, "loss", scarce)
    torch.testing.assert_close(Unrolled(model, purify).logits_and_gradient(x, of(y)), whole)
    assert max(sizes) == 3


def test_cost_is_one_purification_and_two_backward_passes_per_step():
    """On the paper's grid, passes of the encoder: 11 gradients and 5 losses, the classifier's, and T steps of one
    forward pass, its gradient, and the backward pass through both."""
    model = soap.load("mnist-fcn-dr")
    x, y = attacked_digits(model, 10)
    meter = Meter(x.device)
    twin = counting_features(model, meter)
    meter.reset()
    Unrolled(twin, soap.SOAP(twin)).logits_and_gradient(x, of(y))
    passes = meter.passes(len(x))
    assert (passes.forward, passes.backward) == (16 + 1 + 5, 11 + 1 + 5 * 2)


BAD = [
    (lambda m: Unrolled(m, lambda x: x), r"expected one with step_size, steps, bounds, loss\(x\).*straight-through"),
    (lambda m: Unrolled(m, soap.SOAP(m), scale=0.0), "scale is 0.0, expected a number above 0"),
    (lambda m: Unrolled(m, soap.SOAP(m), scale=float("nan")), "scale is nan"),
    (
        lambda m: Unrolled(m, soap.SOAP(m, "oracle")).logits_and_gradient(noise_images(2), squares),
        "no defence and has no path",
    ),
    (lambda m: Unrolled(m, soap.SOAP(m)).logits_and_gradient(noise_images(2) * 255, squares), "divide by 255"),
    (
        lambda m: Unrolled(m, soap.SOAP(m)).logits_and_gradient(noise_images(2), lambda z: z.detach().sum(1)),
        "no gradient",
    ),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("call", "message"), BAD, ids=range(len(BAD)))
def test_bad_input_raises(call, message):
    model = tiny_model()
    before = state_of(model)
    with pytest.raises(soap.InputError, match=message):
        call(model)
    assert state_of(model) == before


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
def test_gpu_replay_gives_the_same_gradient(task):
    model, x, y = tiny_model(task).cuda(), noise_images(8).cuda(), torch.arange(8, device="cuda") % 4
    seen = Unrolled(model, soap.SOAP(model))
    model.recordable = True
    fast = seen.logits_and_gradient(x, of(y))
    model.recordable = False
    plain = seen.logits_and_gradient(x, of(y))
    assert torch.equal(fast[0], plain[0])
    torch.testing.assert_close(fast[1], plain[1])
