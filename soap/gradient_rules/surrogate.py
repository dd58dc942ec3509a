"""The gradient of a small network that imitates the purifier, for purifiers without a useful gradient of their own.

Quantisation, JPEG and foreign code have no gradient. The imitation is trained on images and points of the ball around
them. An attack takes its Jacobian in the backward pass; values are always those of the real purifier. This contains
BPDA with the identity (Athalye et al. 2018) as its first step: the network starts as the identity.
"""

import torch
from torch import nn
from torch.nn import functional as F

from soap import validate
from soap._runtime.isolation import frozen
from soap._runtime.seeding import seed_for
from soap.balls import BALLS, Ball
from soap.descent import UNIT, Bounds, projected_gradient
from soap.errors import InputError
from soap.gradient_rules.random_draws import own_generators, seeded_draws
from soap.gradient_rules.rule import GradientRule, Purify, purified_images
from soap.shapes import Float, Tensor
from soap.validate import describe

WIDTHS = (8, 32, 32)
"""Channels at full, half and quarter resolution."""

HIDDEN = 128
"""Width of dense layers."""

DENSE_SIDE = 7
"""Side of the coarsest level before its dense layer, which imitates purifiers that use the whole image at once."""

BATCH_SIZE = 16
PURIFIED_AT_ONCE = 64
PGD_STEPS = 10
LEARNING_RATE = 4e-3
BLOCK_SIDE = 4

MAX_STEPS, FIRST_STEPS, STEPS_PER_SAMPLE = 900, 100, 8
"""Default steps of training: a few samples are learned in fewer steps."""

ROUNDS = 3
"""Parts of the training that begin with new adversarial points."""


class Surrogate(GradientRule):
    """The gradient through `imitation` instead of the purifier; the logits are those of the defence.

    imitation: a differentiable module from images to purified images, e.g. of `fit_surrogate`. Ordinary autograd
    through this module gives the same gradient. Cost per call: one purification, one forward and one backward pass of
    the imitation and of the classifier.
    """

    def __init__(self, classifier: nn.Module, purifier: Purify, imitation: nn.Module | None) -> None:
        if not isinstance(imitation, nn.Module):
            raise InputError(
                f"got {describe(imitation)} as the imitation of the purifier, expected an nn.Module from images to "
                "images; train one with soap.gradient_rules.fit_surrogate(purifier, x, eps=eps)."
            )
        super().__init__(classifier, purifier)
        self.imitation = imitation

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Purify, then classify."""
        if not (torch.is_grad_enabled() and x.requires_grad):
            return super().forward(x)
        with frozen(self):
            imitated = self.imitation(x)
            logits: Tensor = self.classifier(self.purified(x) + (imitated - imitated.detach()))
            return logits


class ImageImitation(nn.Module):
    """x plus the output of a small U-Net with a dense layer at its coarsest level; the sum is x before training."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        fine, middle, coarse = WIDTHS
        self.to_fine = nn.Conv2d(channels, fine, 5, padding=2)
        self.to_middle = nn.Conv2d(fine, middle, 3, stride=2, padding=1)
        self.to_coarse = nn.Conv2d(middle, coarse, 3, stride=2, padding=1)
        cells = coarse * DENSE_SIDE**2
        self.dense = nn.Sequential(nn.Flatten(), nn.Linear(cells, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, cells))
        self.from_coarse = nn.Conv2d(middle + coarse, middle, 3, padding=1)
        self.from_middle = nn.Conv2d(fine + middle, fine, 3, padding=1)
        self.last = _zero(nn.Conv2d(fine, channels, 3, padding=1))

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """Return the imitated images."""
        fine = F.silu(self.to_fine(x))
        middle = F.silu(self.to_middle(fine))
        coarse = F.silu(self.to_coarse(middle))
        cells = F.adaptive_avg_pool2d(coarse, DENSE_SIDE)
        coarse = coarse + F.interpolate(self.dense(cells).reshape(cells.shape), coarse.shape[2:])
        middle = F.silu(self.from_coarse(torch.cat([middle, F.interpolate(coarse, middle.shape[2:])], 1)))
        fine = F.silu(self.from_middle(torch.cat([fine, F.interpolate(middle, fine.shape[2:])], 1)))
        change: Tensor = self.last(fine)
        return x + change


class VectorImitation(nn.Module):
    """x plus the output of two hidden layers, which is zero before training."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Flatten(),
            nn.Linear(size, HIDDEN),
            nn.SiLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.SiLU(),
            _zero(nn.Linear(HIDDEN, size)),
        )

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the imitated samples."""
        change: Tensor = self.change(x)
        return x + change.reshape(x.shape)


def fit_surrogate(
    purifier: Purify,
    x: Float[Tensor, "batch *shape"],
    *,
    eps: float,
    norm: str = "linf",
    seed: int = 0,
    steps: int | None = None,
    classifier: nn.Module | None = None,
    bounds: Bounds = UNIT,
) -> nn.Module:
    """Return a network trained to imitate `purifier` at `x` and at points of the ball of radius `eps` around it.

    The points: uniform noise, points on the surface in random directions, the same with directions that are equal in
    blocks of 4 x 4 pixels. With a `classifier`, adversarial points, too: of the classifier alone, and twice during the
    training of the classifier after the imitation. The purifier is called for 4 points of every sample (7 with a
    classifier). `steps` steps of Adam, each on 16 points, minimise the mean squared error: by default 900, or fewer for
    less than 100 samples. A random purifier is imitated in the mean. The result depends on the arguments only, and
    modes, weights and random states do not change.

    Cost beside the purifier's calls: 14 s of one CPU core (Xeon) for 200 images of 28 x 28 pixels with a classifier.
    """
    validate.inputs(x, bounds=bounds)
    validate.non_negative("eps", eps)
    validate.choice("norm", norm, tuple(BALLS))
    steps = min(MAX_STEPS, FIRST_STEPS + STEPS_PER_SAMPLE * len(x)) if steps is None else steps
    validate.at_least("steps", steps, 1)
    x = x.detach().clone()
    with torch.inference_mode(False), seeded_draws(seed_for(seed, 0), own_generators(purifier)):
        generator = torch.Generator(x.device).manual_seed(seed_for(seed, 1))
        ball: Ball = BALLS[norm](eps)
        imitation = (ImageImitation(x.shape[1]) if x.ndim == 4 else VectorImitation(x[0].numel())).to(x)
        adam = torch.optim.Adam(imitation.parameters(), LEARNING_RATE)
        inputs, targets = _purified_pairs(purifier, *_random_points(x, ball, bounds, generator))
        rounds = 1 if classifier is None else ROUNDS
        for number in range(rounds):
            if classifier is not None:
                before = nn.Identity() if number == 0 else imitation
                found = _adversarial_points(nn.Sequential(before, classifier), x, ball, bounds)
                more = _purified_pairs(purifier, found)
                inputs, targets = torch.cat([inputs, more[0]]), torch.cat([targets, more[1]])
            first, last = steps * number // rounds, steps * (number + 1) // rounds
            for step in range(first, last):
                adam.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
                _train_step(imitation, adam, inputs, targets, generator)
    return imitation.eval().requires_grad_(False)


def _random_points(x: Tensor, ball: Ball, bounds: Bounds, generator: torch.Generator) -> list[Tensor]:
    """Return `x`, and points of the ball around it of three kinds."""
    uniform = ball.random_start(x, generator)
    directions = [torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)]
    if x.ndim == 4:
        blocks = (*x.shape[:2], *(-(-side // BLOCK_SIDE) for side in x.shape[2:]))
        coarse = torch.randn(blocks, generator=generator, device=x.device, dtype=x.dtype)
        directions.append(F.interpolate(coarse, scale_factor=BLOCK_SIDE)[..., : x.shape[2], : x.shape[3]])
    moves = [uniform, *(ball.eps * ball.steepest(direction) for direction in directions)]
    return [x, *((x + move).clamp(*bounds) for move in moves)]


def _adversarial_points(model: nn.Module, x: Tensor, ball: Ball, bounds: Bounds) -> Tensor:
    """Return the points that PGD finds for the predicted classes of the model."""
    with frozen(model):
        with torch.no_grad():
            predicted = model(x).argmax(1)
        return projected_gradient(
            lambda point: F.cross_entropy(model(point), predicted, reduction="none"),
            x,
            ball=ball,
            step_size=float(ball.eps) / 4,
            steps=PGD_STEPS,
            bounds=bounds,
        )


def _purified_pairs(purifier: Purify, *points: Tensor) -> tuple[Tensor, Tensor]:
    """Return all points and the purified images of each."""
    inputs = torch.cat(points)
    return inputs, torch.cat([purified_images(purifier, part) for part in torch.split(inputs, PURIFIED_AT_ONCE)])


def _train_step(
    imitation: nn.Module, adam: torch.optim.Adam, inputs: Tensor, targets: Tensor, generator: torch.Generator
) -> None:
    rows = torch.randint(len(inputs), (BATCH_SIZE,), generator=generator, device=inputs.device)
    adam.zero_grad()
    with torch.enable_grad():
        torch.autograd.backward(F.mse_loss(imitation(inputs[rows]), targets[rows]))
    adam.step()


def _zero(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """Set all weights to zero."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer
