"""The three BPDA rules against autograd, closed forms and slow loops."""

from types import SimpleNamespace

import pytest
import torch
from tiny import TASKS, attacked_digits, noise_images, state_of, tiny_model
from torch import nn

import soap
from soap.attacks import APGD, PGD, cross_entropy, margin
from soap.bench.measures import Meter, counting_logits, counting_losses
from soap.gradient_rules import MeanOverIterates, OwnGradient, StartPoint, StraightThrough, logits_and_gradient

SIGHTS = (StraightThrough, StartPoint, MeanOverIterates)


def of(loss, y):
    return lambda logits: loss(logits, y)


def gradient_at(model, point, criterion):
    point = point.detach().requires_grad_()
    return torch.autograd.grad(criterion(model(point)).sum(), point)[0]


@pytest.fixture(scope="module")
def digits():
    model = soap.load("mnist-fcn-dr")
    return model, *attacked_digits(model, 20)


@pytest.mark.parametrize("loss", [cross_entropy, margin])
def test_straight_through_equals_autograd_through_the_defence(digits, loss):
    model, x, y = digits
    purify = soap.SOAP(model)
    point = x.clone().requires_grad_()
    logits = soap.Defence(model, purify)(point)
    (expected,) = torch.autograd.grad(loss(logits, y).sum(), point)
    seen, direction = logits_and_gradient(StraightThrough(model, purify), x, of(loss, y))
    assert torch.equal(seen, logits)
    torch.testing.assert_close(direction, expected)
    through = x.clone().requires_grad_()  # for attacks that use autograd
    torch.testing.assert_close(
        torch.autograd.grad(loss(StraightThrough(model, purify)(through), y).sum(), through)[0], expected
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("eps", ["min-aux", "min-aux-batch", 0.25])
def test_mean_over_iterates_equals_a_slow_loop(task, eps):
    """In float64, so that rounding does not flip the sign of a purifier's gradient near zero."""
    model, y = tiny_model(task, dtype=torch.float64), torch.tensor([0, 1, 2])
    x, purify = noise_images(3, dtype=torch.float64), soap.SOAP(model, eps)
    iterates = purify.trajectory(x, purify(x).eps)
    total = torch.zeros_like(x)
    for points in iterates:
        for row, image in enumerate(points):
            total[row] += gradient_at(model, image[None], of(cross_entropy, y[row : row + 1]))[0]
    logits, direction = logits_and_gradient(MeanOverIterates(model, purify), x, of(cross_entropy, y))
    torch.testing.assert_close(direction, total / len(iterates))
    assert torch.equal(logits, soap.Defence(model, purify)(x))


class Towards(nn.Module):
    """A purifier that moves to `target` in steps of `gamma`, at most by `radius`."""

    def __init__(self, target, gamma=1 / 16, radius=3 / 16, steps=5):
        super().__init__()
        self.target, self.gamma, self.radius, self.steps = target, gamma, radius, steps

    def path(self, x):
        reach = [min(self.radius, t * self.gamma) for t in range(self.steps + 1)]
        return torch.stack([x + (self.target - x).clamp(-r, r) for r in reach])

    def forward(self, x):
        return self.path(x)[-1]


def test_rules_have_closed_forms_for_a_known_purifier():
    """With the identity as classifier, |x|^2 at a point has the gradient 2x."""
    x = torch.full((1, 5), 0.5, dtype=torch.float64)
    delta = torch.tensor([[-8, -2, 0, 1, 8]], dtype=torch.float64) / 16
    purify = Towards(x + delta)
    steps = torch.tensor([0, 1, 2, 3, 3, 3], dtype=torch.float64) / 16
    ways = [delta.clamp(-reach, reach) for reach in steps]
    last = x + ways[-1]
    squares = lambda logits: logits.square().sum(1)  # noqa: E731
    rules = {StraightThrough: 2 * last, StartPoint: 2 * x, MeanOverIterates: 2 * x + 2 * sum(ways) / 6}
    for sight, expected in rules.items():
        logits, direction = logits_and_gradient(sight(nn.Identity(), purify), x, squares)
        torch.testing.assert_close(logits, last)
        torch.testing.assert_close(direction, expected)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_model_and_inputs_do_not_change_in_any_grad_mode(sight, context):
    model = tiny_model(dtype=torch.float64)
    expected = soap.Defence(model, soap.SOAP(model))(noise_images(3, dtype=torch.float64)).detach()
    model.train().requires_grad_(True)
    seen, y = sight(model, soap.SOAP(model)), torch.tensor([0, 1, 2])
    before = state_of(model)
    with context():
        x = noise_images(3, dtype=torch.float64)
        kept = x.clone()
        logits, direction = seen.logits_and_gradient(x, of(cross_entropy, y))
        assert torch.equal(x, kept)
        assert torch.equal(seen(x), logits)
    assert torch.equal(logits, expected)  # in evaluation mode, as the defence is deployed
    assert not direction.requires_grad
    assert direction.abs().sum() > 0
    assert state_of(model) == before
    assert isinstance(seen, OwnGradient)


@pytest.mark.parametrize("sight", SIGHTS)
def test_an_image_gives_the_same_gradient_alone_and_in_a_batch(sight):
    model, y = tiny_model("rotation", dtype=torch.float64), torch.tensor([0, 1, 2])
    x, seen = noise_images(3, dtype=torch.float64), sight(model, soap.SOAP(model))
    together = seen.logits_and_gradient(x, of(cross_entropy, y))
    for row in range(3):
        alone = seen.logits_and_gradient(x[row : row + 1], of(cross_entropy, y[row : row + 1]))
        torch.testing.assert_close((alone[0][0], alone[1][0]), (together[0][row], together[1][row]))


def descends_without_asking(x):
    """A user's purifier that needs gradients enabled and returns a tensor with a graph."""
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(point.square().sum(), point)
    return (point - 0.1 * gradient).clamp(0, 1)


@pytest.mark.parametrize("wrap", [lambda out: out, lambda out: SimpleNamespace(x=out)], ids=["tensor", "with-x"])
def test_a_users_purifier_may_return_a_tensor_or_x(wrap):
    model, x, y = tiny_model(), noise_images(3), torch.tensor([0, 1, 2])
    seen = StraightThrough(model, lambda x: wrap(descends_without_asking(x)))
    with torch.no_grad():  # as inside an attack
        logits, direction = seen.logits_and_gradient(x, of(cross_entropy, y))
    torch.testing.assert_close(logits, model(0.8 * x).detach())
    torch.testing.assert_close(direction, gradient_at(model, 0.8 * x, of(cross_entropy, y)))


class DescendsWithoutAsking:
    """A user's purifier with a method `path` that needs gradients enabled."""

    def __call__(self, x):
        return self.path(x)[-1]

    def path(self, x):
        return torch.stack([x, descends_without_asking(x)])


def test_a_users_purifier_may_give_its_path():
    model, x, y = tiny_model(), noise_images(3), torch.tensor([0, 1, 2])
    with torch.no_grad():
        logits, direction = MeanOverIterates(model, DescendsWithoutAsking()).logits_and_gradient(
            x, of(cross_entropy, y)
        )
    torch.testing.assert_close(logits, model(0.8 * x).detach())
    ends = [gradient_at(model, point, of(cross_entropy, y)) for point in (x, 0.8 * x)]
    torch.testing.assert_close(direction, (ends[0] + ends[1]) / 2)


def test_an_adaptive_attack_breaks_more_than_transfer(digits):
    model = digits[0]
    images = soap.data.load("mnist-mini").take(40)
    robust, attack = StraightThrough(model, soap.SOAP(model)), PGD(eps=0.3, step_size=0.03, steps=20, keep="best")
    adversarial = [attack(target, images.x, images.y) for target in (model, robust)]
    transfer, adaptive = ((robust(x).argmax(1) == images.y).float().mean() for x in adversarial)
    assert adaptive < transfer - 0.1


class Surer(nn.Module):
    """A purifier that keeps the label and moves to where the classifier `Flattens` is constant."""

    def forward(self, x):
        return x + torch.where(x > 0.5, 2.0, -2.0)


class Flattens(nn.Module):
    """Two classes, split at x = 1/2; constant at a distance above 1 from there."""

    def forward(self, x):
        s = (x - 0.5).clamp(-1, 1)
        return torch.cat([s, -s], 1)


def test_start_rule_works_where_the_purified_point_has_no_gradient():
    """Like the anti-adversary on an adversarially trained network, where the other rules are weaker than transfer."""
    x, y = torch.tensor([[0.75], [0.25]]), torch.tensor([0, 1])
    model, purify = Flattens(), Surer()
    end, start = StraightThrough(model, purify), StartPoint(model, purify)
    assert torch.equal(logits_and_gradient(end, x, of(margin, y))[1], torch.zeros_like(x))
    assert torch.equal(logits_and_gradient(start, x, of(margin, y))[1], torch.tensor([[-2.0], [2.0]]))
    attack = APGD(eps=0.3, steps=20, loss="margin", start="zero")
    assert torch.equal(end(attack(end, x, y)).argmax(1), y)
    assert torch.equal(start(attack(start, x, y)).argmax(1), 1 - y)


@pytest.mark.parametrize(
    ("sight", "passes"), [(StraightThrough, (1, 1)), (StartPoint, (2, 1)), (MeanOverIterates, (6, 6))]
)
def test_cost_is_one_purification_and_the_classifiers_passes(digits, sight, passes):
    """On the paper's grid of 11 radii: 11 gradients and 5 further losses, for every rule."""
    model, x, y = digits
    losses, logits = Meter(x.device), Meter(x.device)
    twin = counting_logits(counting_losses(model, losses), logits)
    sight(twin, soap.SOAP(twin)).logits_and_gradient(x, of(cross_entropy, y))
    purification, classifier = losses.passes(len(x)), logits.passes(len(x))
    assert (purification.forward, purification.backward) == (16, 11)
    assert (classifier.forward, classifier.backward) == passes


class Strays(Towards):
    """A path without the batch dimension."""

    def path(self, x):
        return super().path(x)[:, 0]


BAD = [
    (
        lambda m, x, c: StraightThrough(m, lambda x: None).logits_and_gradient(x, c),
        "the purifier returned NoneType None, expected purified images",
    ),
    (
        lambda m, x, c: StraightThrough(m, lambda x: x[:1])(x),
        r"float32 tensor of shape \[1, 1, 8, 8\].*of shape \[2, 1, 8, 8\]",
    ),
    (lambda m, x, c: StraightThrough(m, lambda x: SimpleNamespace(x=3))(x), "the purifier returned int 3"),
    (lambda m, x, c: StraightThrough(m, soap.SOAP(m, "oracle")).logits_and_gradient(x, c), "needs the labels"),
    (lambda m, x, c: MeanOverIterates(m, lambda x: x), r"expected one with a method path\(x\).*straight-through"),
    (
        lambda m, x, c: MeanOverIterates(m, soap.SOAP(m, "oracle")).logits_and_gradient(x, c),
        "no defence and has no path",
    ),
    (
        lambda m, x, c: MeanOverIterates(m, Strays(x)).logits_and_gradient(x, c),
        r"path is a float32.*expected \[T \+ 1, 2, 1, 8, 8\]",
    ),
    (lambda m, x, c: StraightThrough(m, soap.SOAP(m)).logits_and_gradient(x * 255, c), "divide by 255"),
    (
        lambda m, x, c: StraightThrough(m, lambda x: x).logits_and_gradient(x, lambda logits: logits.detach().sum(1)),
        "carries no gradient",
    ),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("call", "message"), BAD, ids=range(len(BAD)))
def test_bad_input_raises(call, message):
    model = tiny_model()
    before = state_of(model)
    with pytest.raises(soap.InputError, match=message):
        call(model, noise_images(2), of(cross_entropy, torch.tensor([0, 1])))
    assert state_of(model) == before


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("sight", SIGHTS)
def test_gpu_replay_gives_the_same_gradient(sight, task):
    model, x, y = tiny_model(task).cuda(), noise_images(8).cuda(), torch.arange(8, device="cuda") % 4
    seen = sight(model, soap.SOAP(model))
    model.recordable = True
    fast = seen.logits_and_gradient(x, of(cross_entropy, y))
    model.recordable = False
    plain = seen.logits_and_gradient(x, of(cross_entropy, y))
    assert torch.equal(fast[0], plain[0])
    torch.testing.assert_close(fast[1], plain[1])
