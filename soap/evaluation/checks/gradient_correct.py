"""The direction that attacks follow: whether there is one (check 5), and whether it is the gradient (check 6)."""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap.attacks.losses import cross_entropy, margin
from soap.balls import row_norms
from soap.errors import InputError
from soap.evaluation.adaptive.probes.outputs import Fixed
from soap.evaluation.adaptive.probes.subject import ImpossibleError, Subject
from soap.evaluation.adaptive.target import BPDA, START, TRAJECTORY, UNROLLED
from soap.gradient_rules import OwnGradient, logits_and_gradient
from soap.shapes import Float, Tensor

DIRECTIONS = 32
IMAGES = 8
STEP = {torch.float64: 1e-5, torch.float32: 1e-3}
SMOOTH = {torch.float64: 1e-4, torch.float32: 1e-2}
"""Slopes over a step and half of it, ahead and behind, that differ by less (relative) say that the loss is smooth."""

RULES = {
    BPDA: "BPDA: the purifier is taken for the identity on the way back",
    START: "BPDA before the purifier: the gradient at the attacker's own point",
    TRAJECTORY: "BPDA along the path: the mean gradient over the purifier's iterates",
    UNROLLED: "surrogate: through the purifier's steps with tanh for sign on the way back",
}


def presence(subject: Subject) -> dict[str, Any]:
    """On how many images cross-entropy and margin give a direction, of the attacked model and of the classifier."""
    views = {"attacked": subject.model, "bare": subject.target.bare}
    found: dict[str, Any] = {"images": len(subject.x)}
    for name, model in views.items():
        if model is not None:
            found[name] = _directions(subject, model)
    return found


def _directions(subject: Subject, model: nn.Module) -> dict[str, Any]:
    """Images without any direction, with one that is not finite, and where cross-entropy alone has none."""
    none, bad, flat = 0, 0, 0
    for x, y in zip(torch.split(subject.x, subject.batch), torch.split(subject.y, subject.batch), strict=True):
        try:
            with isolated(model):
                seen = [logits_and_gradient(model, x, partial(loss, y=y))[1] for loss in (cross_entropy, margin)]
        except InputError:
            return {"missing": len(subject.x), "not_finite": 0, "cross_entropy_zero": len(subject.x), "cut": True}
        finite = torch.stack([torch.isfinite(one).flatten(1).all(1) for one in seen]).all(0)
        zero = torch.stack([(one == 0).flatten(1).all(1) for one in seen])
        none, bad = none + int(zero.all(0).sum()), bad + int((~finite).sum())
        flat += int(zero[0].sum())
    return {"missing": none, "not_finite": bad, "cross_entropy_zero": flat, "cut": False}


def differences(subject: Subject) -> dict[str, Any]:
    """How far the gradient is from central differences along random directions, where the margin is smooth.

    In double precision, on a copy; in single where the model knows no other. Of a purifier's defence the classifier is
    differentiated, and the rule that stands for the purifier is named.
    """
    target, sight = subject.target, subject.strongest.sight
    part = target.bare if sight in RULES else None
    model = subject.model if part is None else part
    rule = RULES.get(sight, "surrogate: the model's own rule" if isinstance(model, OwnGradient) else "gradient")
    x, y = subject.few(IMAGES)
    x = x.clamp(0.01, 0.99)
    try:
        twin, points = copy.deepcopy(model).double(), x.double()
        with isolated(twin), torch.no_grad():
            twin(points)
    except Exception:  # whatever a foreign model raises when it is copied or converted
        twin, points = model, x
    with isolated(twin):
        compared = _compare(Fixed(twin, subject.seed), points, y, subject.seed)
    precision = str(points.dtype).removeprefix("torch.")
    return {"rule": rule, "whole": part is None, "precision": precision, "images": len(x), **compared}


def _compare(model: nn.Module, x: Float[Tensor, "n *shape"], y: Tensor, seed: int) -> dict[str, Any]:
    """Largest error relative to the image's largest slope, over the directions where the loss is smooth."""

    def loss(point: Tensor) -> Tensor:
        return margin(model(point), y)

    try:
        _, gradient = logits_and_gradient(model, x, lambda z: margin(z, y))
    except InputError:
        raise ImpossibleError("there is no gradient to compare; see check 5") from None
    moved = (gradient != 0).flatten(1).any(1) & torch.isfinite(gradient).flatten(1).all(1)
    generator = torch.Generator().manual_seed(seed)
    step = STEP[x.dtype]
    with torch.no_grad():
        here = loss(x)
    slopes, by_gradient, smooth = [], [], []
    for _ in range(DIRECTIONS):
        way = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
        way /= row_norms(way).reshape(-1, *[1] * (x.ndim - 1))
        with torch.no_grad():
            far_behind, behind, ahead, far_ahead = (loss(x + h * way) for h in (-step, -step / 2, step / 2, step))
        wide, narrow = (far_ahead - far_behind) / (2 * step), (ahead - behind) / step
        # A kink closer than the steps bends both alike; the slopes on its two sides tell it.
        bend = (ahead - 2 * here + behind) / (step / 2)
        slopes.append(narrow)
        by_gradient.append((gradient * way).flatten(1).sum(1))
        smooth.append(torch.maximum((wide - narrow).abs(), bend.abs()))
    true, said, change = torch.stack(slopes), torch.stack(by_gradient), torch.stack(smooth)
    size = torch.maximum(true.abs().amax(0), said.abs().amax(0)).clamp_min(1e-30)
    counts = (change <= SMOOTH[x.dtype] * size) & moved
    error = ((true - said).abs() / size)[counts]
    return {
        "images_with_gradient": int(moved.sum()),
        "directions": int(counts.any(1).sum()),
        "error": float(error.max()) if len(error) else None,
    }
