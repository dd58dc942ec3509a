"""What the unrolled gradient rests on: steps whose Jacobian is known, and second derivatives of tasks and layers."""

import copy

import pytest
import torch
from tiny import noise_images
from torch import nn

import soap
from soap.auxiliary import Consistency, JointModel, Purification, Rotation
from soap.auxiliary.consistency import second_view
from soap.gradient_rules import Unrolled, logits_and_gradient
from soap.models import Network
from soap.models.norm import Norm, RectifiedNorm

SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)


def squares(logits):
    return logits.square().sum(1)


class Bowl:
    """A purifier that descends |x - target|^2 / 2: its gradient is x - target, whose derivative is the identity."""

    bounds = (0.0, 1.0)

    def __init__(self, target, *, eps=1.0, step_size=0.0625, steps=1):
        self.target, self.eps, self.step_size, self.steps = target, eps, step_size, steps

    def loss(self, x):
        return (x - self.target).square().sum(1) / 2

    def route(self, x):
        points = [x]
        for _ in range(self.steps):
            delta = points[-1] - self.step_size * (points[-1] - self.target).sign() - x
            points.append((x + delta.clamp(-self.eps, self.eps)).clamp(*self.bounds))
        return torch.stack(points), torch.full((len(x),), self.eps, dtype=x.dtype)

    def __call__(self, x):
        return self.route(x)[0][-1]


def narrowing(g, gamma, scale):
    """1 - gamma * s'(g): how a step of the bowl narrows a small change of its start."""
    width = scale * g.square().mean(1, keepdim=True).sqrt()
    return 1 - gamma * (1 - (g / width).tanh().square()) / width


@pytest.mark.parametrize("scale", SCALES)
def test_a_bowl_has_a_jacobian_in_closed_form(scale):
    gamma = 0.0625
    x, target = torch.tensor([[0.5, 0.4, 0.6, 0.5]]).double(), torch.tensor([[0.1, 0.3, 0.65, 0.9]]).double()
    bowl = Bowl(target, step_size=gamma, steps=3)
    path = bowl.route(x)[0]
    jacobian = torch.ones_like(x)
    for point in path[:-1]:
        jacobian = jacobian * narrowing(point - target, gamma, scale)
    logits, direction = logits_and_gradient(Unrolled(nn.Identity(), bowl, scale=scale), x, squares)
    assert torch.equal(logits, path[-1])
    torch.testing.assert_close(direction, 2 * path[-1] * jacobian)


def test_a_step_that_binds_follows_the_start_and_one_that_leaves_the_range_follows_nothing():
    x, target = torch.tensor([[0.5, 0.02, 0.98, 0.5]]).double(), torch.tensor([[0.0, -1.0, 2.0, 0.51]]).double()
    path = torch.tensor([[0.45, 0.0, 1.0, 0.55]]).double()  # clipped by eps; by the range, twice; by eps
    seen = Unrolled(nn.Identity(), Bowl(target, eps=0.05))
    torch.testing.assert_close(seen(x), path)
    expected = 2 * path * torch.tensor([1.0, 0.0, 0.0, 1.0])
    torch.testing.assert_close(seen.logits_and_gradient(x, squares)[1], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [k / 97 for k in range(3, 24, 2)])
def test_a_clip_a_whole_number_of_steps_away_does_not_bind_by_rounding(gamma, dtype):
    """Three steps from any start reach but do not leave a radius of three, nor from there the range."""
    x = torch.cat([torch.full((1,), 3 * gamma), torch.linspace(3.1 * gamma, 1, 70)]).to(dtype)[None]
    far, near = (Bowl(x - 1, eps=eps, step_size=gamma, steps=3) for eps in (0.9, 3 * gamma))
    far.bounds = (-1.0, 1.0)
    expected, direction = (
        Unrolled(nn.Identity(), bowl).logits_and_gradient(x, lambda z: z.sum(1))[1] for bowl in (far, near)
    )
    torch.testing.assert_close(direction, expected, atol=1e-6, rtol=1e-5)


class Flat(Bowl):
    """A loss without slope, or with one so faint that its square underflows."""

    tilt = 0.0

    def loss(self, x):
        return self.tilt * (x - self.target).square().sum(1)

    def route(self, x):
        return torch.stack([x, x]), torch.full((len(x),), self.eps)


@pytest.mark.parametrize("tilt", [0.0, 1e-36, 1e-25])
def test_where_the_loss_is_flat_or_faint_the_gradient_stays_finite(tilt):
    purify, x = Flat(torch.tensor([[0.2, 0.6]])), torch.tensor([[0.5, 0.5]])
    purify.tilt = tilt
    direction = Unrolled(nn.Identity(), purify).logits_and_gradient(x, squares)[1]
    jacobian = narrowing((x - purify.target).double(), 0.0625, 1.0).float() if tilt else 1.0  # whatever the tilt
    torch.testing.assert_close(direction, 2 * x * jacobian)


@pytest.mark.parametrize("gradient", ["paper", "stop", "exact"])
def test_what_label_consistency_keeps_of_its_second_derivative(gradient):
    """Linear logits A x and view V x. The gradient is 2/C (1 - W)A'(A x - A V x): W = V' if exact, 0 if stopped, else
    the floor-indexed adjoint; what autograd keeps of its derivative is 2/C (1 - W) A'A (1 - W')."""
    side, classes = 16, 3
    flat = side * side
    network = Network(
        encoder=nn.Flatten(), classifier=nn.Linear(flat, classes), inputs=(1, side, side), features=(flat,), classes=3
    )
    model = JointModel(network, Consistency(gradient=gradient)).double()
    with torch.no_grad():
        model.classifier.weight.normal_(generator=torch.Generator().manual_seed(0))
    a = model.classifier.weight.detach()
    eye = torch.eye(flat, dtype=torch.float64)

    def back(floor_indexed):  # of each unit vector: the rows of W'
        point = torch.zeros(1, 1, side, side, dtype=torch.float64, requires_grad=True)
        out = second_view(point, floor_indexed=floor_indexed).flatten()
        rows = [torch.autograd.grad(out, point, unit, retain_graph=True)[0].flatten() for unit in eye]
        return torch.stack(rows, 1)

    w = {"stop": torch.zeros_like(eye), "exact": back(False), "paper": back(True)}[gradient]
    x = noise_images(1, side=side, dtype=torch.float64).requires_grad_()
    (g,) = torch.autograd.grad(model.auxiliary.loss(model, x).sum(), x, create_graph=True)
    difference = (a @ x.flatten() - a @ second_view(x).flatten()).detach()
    torch.testing.assert_close(g.flatten(), 2 / classes * (eye - w) @ a.T @ difference)
    way = torch.randn(flat, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (kept,) = torch.autograd.grad(g, x, way.reshape(x.shape))
    torch.testing.assert_close(kept.flatten(), 2 / classes * (eye - w) @ a.T @ a @ (eye - w).T @ way)


class Residual(nn.Module):
    """Convolution, norm, summand and ReLU, in our fused layers or in torch's own."""

    def __init__(self, fused):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        kinds = (RectifiedNorm, Norm, RectifiedNorm) if fused else (nn.BatchNorm2d,) * 3
        self.norms = nn.ModuleList(kind(6) for kind in kinds)
        self.fused = fused

    def forward(self, x):
        one, two, three = self.norms
        if self.fused:
            z = one(self.first(x))
            return three(two(self.second(z)), z)
        z = one(self.first(x)).relu()
        return (three(two(self.second(z))) + z).relu()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_fused_norms_are_differentiated_twice_as_separate_ones_are(device):
    def rotation(fused):
        torch.manual_seed(0)
        encoder = nn.Sequential(Residual(fused), nn.Flatten())
        network = Network(encoder=encoder, classifier=nn.Linear(384, 4), inputs=(1, 8, 8), features=(384,), classes=4)
        settings = Purification(step_size=0.05, steps=3, grid=(0.0, 0.05, 0.1))
        model = JointModel(network, Rotation(nn.Linear(384, 4)), purification=settings)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 1.5)
        return model.to(device, dtype).eval()

    dtype = torch.float64 if device == "cpu" else torch.float32  # the kernel for CUDA is for single precision
    with torch.random.fork_rng():
        ours, theirs = rotation(True), rotation(False)
    x = noise_images(3, dtype=dtype).to(device)
    purify = soap.SOAP(theirs)
    again = copy.copy(purify)  # the same walk, differentiated through the fused layers
    again.loss = soap.SOAP(ours).loss
    again.route = purify.route
    logits, direction = Unrolled(ours, again).logits_and_gradient(x, squares)
    expected = Unrolled(theirs, purify).logits_and_gradient(x, squares)
    torch.testing.assert_close(logits, expected[0])
    torch.testing.assert_close(direction, expected[1], **({} if device == "cpu" else {"atol": 1e-4, "rtol": 1e-2}))
    assert direction.abs().sum() > 0
