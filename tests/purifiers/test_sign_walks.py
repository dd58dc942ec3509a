"""Anti-adversary and Hedge: closed forms on linear models, a plain slow loop, and what every purifier promises."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import noise_images, state_of, tiny_model
from torch import nn
from torch.nn import functional as F

import soap
from soap._runtime.seeding import streams, uniform
from soap.gradient_rules import (
    MeanOverIterates,
    PathPurifier,
    StartPoint,
    StraightThrough,
    UnrollablePurifier,
    Unrolled,
    logits_and_gradient,
)
from soap.purifiers import AntiAdversary, Hedge, Purifier

BOTH = pytest.mark.parametrize("kind", [AntiAdversary, Hedge])
SHORT = {AntiAdversary: {"step_size": 0.05, "steps": 3}, Hedge: {"eps": 0.1, "step_size": 0.04, "steps": 6, "seed": 3}}


def two_sided(w: torch.Tensor) -> nn.Module:
    """Logits (w.x, -w.x)."""
    layer = nn.Linear(len(w), 2, bias=False, dtype=w.dtype)
    layer.weight.data = torch.stack([w, -w])
    return layer


W = torch.tensor([2.0, -1.0, 0.5, 0.0], dtype=torch.float64)
MIDDLE = torch.tensor([[0.6, 0.4, 0.5, 0.5], [0.3, 0.7, 0.5, 0.5]], dtype=torch.float64)  # w.x = 1.05, 0.15


def test_the_anti_adversary_of_a_linear_model_goes_straight_towards_its_prediction():
    bias = torch.tensor([0.0, 1.0], dtype=torch.float64)  # the second image is of class 1
    model = nn.Sequential(two_sided(W))
    model[0].bias = nn.Parameter(bias)
    out = AntiAdversary(model, step_size=0.05, steps=4)(MIDDLE)
    towards = torch.tensor([[1.0], [-1.0]], dtype=torch.float64) * W.sign()
    torch.testing.assert_close(out.x, MIDDLE + 0.2 * towards, atol=1e-12, rtol=0)
    logits = model(MIDDLE)
    torch.testing.assert_close(out.loss_before, F.cross_entropy(logits, logits.argmax(1), reduction="none"))
    assert (out.loss_after < out.loss_before).all()
    assert out.eps.tolist() == pytest.approx([0.2, 0.2])
    # The range of legal inputs is kept to.
    assert AntiAdversary(model, step_size=0.3, steps=4)(MIDDLE).x[0].tolist() == [1.0, 0.0, 1.0, 0.5]


def test_hedge_on_a_linear_model_ends_in_the_corner_that_is_surest():
    """With logits (z, -z) the sum of cross-entropies is 2 log(2 cosh z), so it climbs towards larger |z|."""
    model = two_sided(W)
    out = Hedge(model, 0.02, step_size=0.01, steps=10)(MIDDLE)  # so near that no start changes the sign of z
    moved = W != 0
    torch.testing.assert_close(out.x[:, moved], (MIDDLE + 0.02 * W.sign())[:, moved], atol=1e-12, rtol=0)
    free = ~moved  # no gradient: it stays where it was drawn
    assert torch.equal(out.x[:, free], Hedge(model, 0.02).start(MIDDLE)[:, free])
    z = MIDDLE @ W
    torch.testing.assert_close(out.loss_before, -2 * torch.log(2 * torch.cosh(z)))
    assert (out.loss_after < out.loss_before).all()
    assert out.eps.tolist() == [0.02, 0.02]


def plain(purify, model, image):
    """One image, read off the papers: K sign steps; Hedge from a random start, clipped to its ball."""
    label, classes = model(image).argmax(1), model(image).shape[1]
    hedged = isinstance(purify, Hedge)
    point = image.clone()
    if hedged:
        noise = uniform(streams(image, purify.seed), image[0].numel()).double().reshape(image.shape)
        point = torch.clamp(image + purify.eps * (2 * noise - 1), 0, 1)
    for _ in range(purify.steps):
        point = point.detach().requires_grad_()
        every = [F.cross_entropy(model(point), torch.tensor([c])) for c in range(classes)]
        loss = sum(every) if hedged else -F.cross_entropy(model(point), label)
        (gradient,) = torch.autograd.grad(loss, point)
        point = point.detach() + purify.step_size * gradient.sign()
        if hedged:
            point = torch.minimum(torch.maximum(point, image - purify.eps), image + purify.eps)
        point = point.clamp(0, 1)
    return point


@BOTH
def test_the_answer_is_the_plain_loops(kind):
    model = tiny_model(dtype=torch.float64)
    purify, x = kind(model, **SHORT[kind]), noise_images(5, dtype=torch.float64)
    expected = torch.cat([plain(purify, model, image) for image in x.split(1)])
    torch.testing.assert_close(purify(x).x, expected, atol=1e-9, rtol=0)
    changed = (purify(x).x - x).abs().amax()
    assert 0.09 < changed <= purify.eps + 1e-9


@BOTH
@settings(max_examples=10)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_an_answer_depends_on_no_batch_mate(kind, rows):
    model = tiny_model(dtype=torch.float64)
    purify, x = kind(model, **SHORT[kind]), noise_images(6, dtype=torch.float64)
    whole, part = purify(x), purify(x[rows])
    for name in ("x", "eps", "loss_before", "loss_after"):
        torch.testing.assert_close(getattr(part, name), getattr(whole, name)[rows], atol=1e-10, rtol=1e-8)


def test_hedge_starts_anywhere_in_its_ball_by_its_seed_and_the_image():
    model, x = tiny_model(), noise_images(40) * 0.5 + 0.25
    start = Hedge(model, 0.1).start(x)
    shares = ((start - x) / 0.1).flatten()
    assert shares.abs().max() <= 1 + 1e-5
    assert shares.mean().abs() < 0.05
    assert abs(shares.square().mean() - 1 / 3) < 0.02  # of a uniform draw from [-1, 1]
    assert torch.equal(Hedge(model, 0.1).start(x[7:9]), start[7:9])
    assert not torch.equal(Hedge(model, 0.1, seed=1).start(x), start)
    assert len({tuple(row.tolist()) for row in (start - x).flatten(1)}) == len(x)


@BOTH
def test_the_path_is_the_way_it_went_and_the_attackers_of_this_package_take_it(kind):
    model, x, y = tiny_model(), noise_images(4), torch.arange(4)
    purify = kind(model, **SHORT[kind])
    assert isinstance(purify, Purifier)
    assert isinstance(purify, PathPurifier)
    assert isinstance(purify, UnrollablePurifier)
    path, eps = purify.route(x)
    assert path.shape == (purify.steps + 1, *x.shape)
    assert torch.equal(path, purify.path(x))
    assert torch.equal(path[0], purify.start(x))
    assert torch.equal(path[-1], purify(x).x)
    assert torch.equal(eps, purify(x).eps)
    steps = (path[1:] - path[:-1]).abs().amax()
    assert steps <= purify.step_size + 1e-6
    attack = soap.attacks.PGD(eps=0.1, step_size=0.05, steps=2)
    for sight in (StraightThrough, StartPoint, MeanOverIterates, Unrolled):
        seen = sight(model, purify)
        assert torch.equal(seen(x), model(purify(x).x))
        assert 0 < (attack(seen, x, y) - x).abs().max() <= 0.1 + 1e-6


@BOTH
@pytest.mark.parametrize("smooth", [False, True])
def test_the_unrolled_gradient_goes_through_the_start_and_every_step(kind, smooth):
    """Against one backward pass through all steps, with tanh for sign on the way back (and forth, when smooth)."""
    model = tiny_model(dtype=torch.float64)
    purify, images = kind(model, **SHORT[kind]), noise_images(3, dtype=torch.float64) * 0.4 + 0.3
    _, direction = logits_and_gradient(Unrolled(model, purify, smooth=smooth), images, lambda logits: logits[:, 0])
    x = images.clone().requires_grad_()
    point = x + (purify.start(images) - images)
    for _ in range(purify.steps):
        (g,) = torch.autograd.grad(purify.loss(point).sum(), point, create_graph=True)
        width = g.detach().flatten(1).square().mean(1).sqrt().reshape(-1, 1, 1, 1)
        step = (g / width).tanh()
        step = step if smooth else step + (g.sign() - step).detach()
        point = x + (point - purify.step_size * step - x).clamp(-purify.eps - 1e-9, purify.eps + 1e-9)
    (expected,) = torch.autograd.grad(model(point)[:, 0].sum(), x)
    torch.testing.assert_close(direction, expected, atol=1e-8, rtol=1e-6)


@BOTH
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_everything_is_left_as_it_was_in_any_context(kind, context):
    model = tiny_model().train().requires_grad_(True)
    purify, images = kind(model, **SHORT[kind]), noise_images(3)
    expected, before = purify(images), state_of(model)
    with context():
        x = images.clone()
        out = purify(x)
        assert torch.equal(out.x, expected.x)
        assert torch.equal(x, images)
        assert not out.x.requires_grad
    assert torch.equal(soap.Defence(model.eval(), purify)(images), model(out.x))
    assert state_of(model)["weights"] == before["weights"]
    assert state_of(model.train()) == before


@BOTH
def test_memory_running_out_halves_the_part(kind):
    class Scarce(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = tiny_model(dtype=torch.float64)
            self.sizes = []

        def forward(self, x):
            self.sizes.append(len(x))
            if len(x) > 8:
                raise torch.OutOfMemoryError("no room")
            return self.model(x)

    model, x = Scarce(), noise_images(13, dtype=torch.float64)
    torch.testing.assert_close(kind(model, **SHORT[kind])(x).x, kind(model.model, **SHORT[kind])(x).x)
    assert max(model.sizes) == 13


def test_the_repr_tells_every_setting():
    model = tiny_model()
    assert repr(AntiAdversary(model)) == "AntiAdversary(step_size=0.15, steps=2)"
    assert repr(Hedge(model)) == f"Hedge(eps={8 / 255}, step_size={4 / 255}, steps=20, seed=0)"
    assert repr(Hedge(model, 0.25, step_size=0.5, steps=1, seed=7)) == "Hedge(eps=0.25, step_size=0.5, steps=1, seed=7)"


@pytest.mark.gpu
@BOTH
def test_the_gpu_replays_what_the_cpu_computes(kind):
    model, x = tiny_model(), noise_images(7)
    here = kind(model, **SHORT[kind])(x)
    model = tiny_model().cuda()
    model.recordable = True
    there = kind(model, **SHORT[kind])
    for _ in range(2):
        out = there(x.cuda())
        assert ((out.x.cpu() - here.x).abs() < 1e-4).float().mean() > 0.99  # a gradient near zero may flip its sign
        assert torch.allclose(out.loss_before.cpu(), here.loss_before, rtol=1e-3)
        assert torch.equal(there.path(x.cuda())[-1], out.x)


class Softmax(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :4].softmax(1)


class Blind(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :4].detach()


BAD = [
    (lambda m, x: AntiAdversary(m)(x * float("nan")), "NaN or infinite"),
    (lambda m, x: Hedge(m)(x * 255), r"it looks like 0\.\.255, divide by 255"),
    (lambda m, x: Hedge(m)(x[:, :, :5]), r"this model takes \[batch, 1, 8, 8\]"),
    (lambda m, x: AntiAdversary(m)(x.double()), "the input is torch.float64 but the model's parameters are"),
    (lambda m, x: Hedge(m)(x[:0]), "empty batch"),
    (lambda m, x: Hedge(m).path(x[0, 0, 0]), "add a batch dimension"),
    (lambda m, x: Hedge(Softmax())(x), "returned probabilities"),
    (lambda m, x: AntiAdversary(nn.Identity())(x), r"want float logits of shape \[2, classes\]"),
    (lambda m, x: Hedge(Blind())(x), "carries no gradient"),
    (lambda m, x: AntiAdversary(lambda x: x), "want an nn.Module from x to logits"),
    (lambda m, x: AntiAdversary(m, step_size=0.0), "step_size is 0.0"),
    (lambda m, x: AntiAdversary(m, steps=0), r"steps \(K\) is 0"),
    (lambda m, x: Hedge(m, -0.1), "eps is -0.1"),
    (lambda m, x: Hedge(m, float("inf")), "eps is inf"),
    (lambda m, x: Hedge(m, steps=1.5), r"steps \(K\) is 1.5"),
    (lambda m, x: Hedge(m, seed=-1), "seed is -1"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_one_clear_error(call, message):
    model = tiny_model()
    before = state_of(model)
    with pytest.raises(soap.InputError, match=message):
        call(model, noise_images(2))
    assert state_of(model) == before
