"""The WGAN-GP objective: its penalty in closed form, its updates, and a toy problem."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import soap
from soap._runtime.isolation import preserved_random_state
from soap.models import Generator
from soap.training import GenerativeSchedule, WganGp
from soap.training.wgan import gradient_penalty

SCHEDULE = GenerativeSchedule(epochs=1, lr=2e-3, batch_size=40, betas=(0.5, 0.9), average=0.9)
SHAPE = (1, 8, 8)


def tiny_generator(seed: int = 0) -> Generator:
    with preserved_random_state():
        torch.manual_seed(seed)
        return Generator(latent=4, width=4, inputs=SHAPE)


def batch(step: int, count: int = 40) -> torch.Tensor:
    """Return images that are bright on the left and dark on the right, with a little noise."""
    draws = torch.Generator().manual_seed(1000 + step)
    pattern = torch.tensor([0.9, 0.1]).repeat_interleave(4).expand(*SHAPE)
    return (pattern + 0.05 * torch.randn(count, *SHAPE, generator=draws)).clamp(0, 1)


def take(objective: WganGp, steps: int) -> list[dict[str, float]]:
    rows = []
    for k in range(steps):
        metrics = objective.step(batch(k), torch.Generator().manual_seed(k), k / steps)
        rows.append({name: value.item() for name, value in metrics.items()})
    return rows


def flat(network: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_penalty_of_a_linear_critic_depends_on_its_weight_norm(scale):
    critic = nn.Sequential(nn.Flatten(), nn.Linear(6, 1), nn.Flatten(0)).double()
    with torch.no_grad():
        critic[1].weight.copy_(scale * torch.arange(1.0, 7.0))
    x = torch.rand(5, 1, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    length = scale * math.sqrt(sum(k * k for k in range(1, 7)))
    penalty = gradient_penalty(critic, x)
    assert penalty.item() == pytest.approx((length - 1) ** 2)
    (slope,) = torch.autograd.grad(penalty, critic[1].weight)
    assert torch.allclose(slope, 2 * (length - 1) * critic[1].weight / length)


def test_penalty_of_a_quadratic_critic_is_the_mean_over_samples():
    x = torch.tensor([[[[3.0, 4.0]]], [[[0.0, 0.0]]], [[[0.6, 0.8]]]])
    penalty = gradient_penalty(_HalfSquare(), x)  # |grad| = |x| = 5, 0, 1
    assert penalty.item() == pytest.approx((16 + 1 + 0) / 3)


class _HalfSquare(nn.Module):
    def forward(self, x):
        return x.square().flatten(1).sum(1) / 2


def test_toy_problem_is_learnt_and_the_distance_falls():
    objective = WganGp(tiny_generator(), replace(SCHEDULE, lr=0.02), critic_steps=2)
    rows = take(objective, 80)
    peak = max(row["distance"] for row in rows)
    assert rows[-1]["distance"] < 0.5 * peak
    z = torch.randn(200, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        before, after = (network.eval()(z) for network in (tiny_generator(), objective.product()))
    pattern = batch(0, 500).mean(0)
    assert (after.mean(0) - pattern).abs().mean() < 0.25 * (before.mean(0) - pattern).abs().mean()


def test_steps_depend_only_on_their_random_generator():
    one, two = (WganGp(tiny_generator(), SCHEDULE) for _ in range(2))
    before = torch.get_rng_state()
    assert take(one, 3) == take(two, 3)
    assert torch.equal(flat(one.product()), flat(two.product()))
    assert torch.equal(torch.get_rng_state(), before)


def test_step_updates_generator_and_critic_and_unfreezes_the_critic():
    objective = WganGp(tiny_generator(), SCHEDULE)
    networks = objective.networks
    old = {name: flat(getattr(networks, name)) for name in ("generator", "critic")}
    take(objective, 1)
    for name, weights in old.items():
        assert not torch.equal(flat(getattr(networks, name)), weights)
    assert all(parameter.requires_grad for parameter in networks.critic.parameters())
    assert not any(parameter.requires_grad for parameter in networks.average.parameters())
    assert {type(optimiser) for optimiser in objective.optimisers} == {torch.optim.Adam}


@pytest.mark.parametrize(("critic_steps", "updates"), [(1, 3), (5, 15)])
def test_critic_is_updated_critic_steps_times_per_step(critic_steps, updates):
    objective = WganGp(tiny_generator(), SCHEDULE, critic_steps=critic_steps)
    take(objective, 3)
    counts = [next(iter(optimiser.state.values()))["step"].item() for optimiser in objective.optimisers]
    assert counts == [updates, 3]


def test_average_includes_batch_norm_statistics():
    first = {name: value.clone() for name, value in tiny_generator().state_dict().items()}
    objective = WganGp(tiny_generator(), SCHEDULE)
    take(objective, 1)
    last, mean = (network.state_dict() for network in (objective.networks.generator, objective.product()))
    for name, value in mean.items():
        expected = 0.1 * first[name] + 0.9 * last[name] if value.is_floating_point() else last[name]
        assert torch.allclose(value, expected, atol=1e-6), name
    assert any("running_var" in name for name in mean)
    assert not objective.product().training


def test_learning_rate_rises_over_the_warm_up_and_falls_to_zero():
    schedule = GenerativeSchedule(epochs=1, lr=0.01, batch_size=40, warmup_steps=4)
    objective = WganGp(tiny_generator(), schedule)
    rates = []
    for progress in (0.0, 0.2, 0.4, 0.6, 0.8):
        objective.step(batch(0), torch.Generator().manual_seed(0), progress)
        rates.append([float(optimiser.param_groups[0]["lr"]) for optimiser in objective.optimisers])
    expected = [0.01 * warm * (1 - p) for warm, p in ((0.25, 0.0), (0.5, 0.2), (0.75, 0.4), (1.0, 0.6), (1.0, 0.8))]
    assert [row[0] for row in rates] == pytest.approx(expected)
    assert [row[1] for row in rates] == pytest.approx(expected)


BAD = [
    (lambda: WganGp(tiny_generator(), SCHEDULE, critic_steps=0), "critic_steps is 0"),
    (lambda: WganGp(tiny_generator(), SCHEDULE, penalty=0.0), "penalty is 0.0"),
    (
        lambda: WganGp(tiny_generator(), SCHEDULE, critic_steps=41),
        r"batch_size is 40; expected at least critic_steps \(41\)",
    ),
    (lambda: WganGp(tiny_generator(), SCHEDULE).step(batch(0, 4), torch.Generator(), 0.0), "got 4 images in a step"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_setting_raises_an_error_that_names_it(call, message):
    with pytest.raises(soap.InputError, match=message):
        call()
