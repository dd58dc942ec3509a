"""Passes of the reference and of ours are counted exactly, and ours needs the fewest possible."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import noise_images, state_of, tiny_model

import soap
from soap.bench import reference
from soap.bench.batches import needed_points
from soap.bench.measures import Meter, counting_features, counting_logits, counting_losses

CPU = torch.device("cpu")
GAMMA, T = 0.1, 5
GRID = tuple(k * GAMMA for k in range(11))


def passes(meter, images):
    got = meter.passes(images)
    return got.forward, got.backward


@pytest.mark.parametrize("task", ["reconstruction", "rotation", "consistency"])
def test_passes_of_the_papers_grid(task):
    x = noise_images(3)
    model, before = tiny_model(task), state_of(tiny_model(task))
    plain, ours = Meter(CPU), Meter(CPU)
    reference.purify_min_aux(counting_losses(model, plain), x, GRID, gamma=GAMMA, T=T)
    soap.SOAP(counting_losses(model, ours), step_size=GAMMA, steps=T, grid=GRID)(x)
    assert passes(plain, len(x)) == (55 + 11, 55)
    assert passes(ours, len(x)) == (11 + 5, 11)
    assert state_of(model)["weights"] == before["weights"]  # the copy was counted, not the model


@settings(max_examples=25)
@given(
    grid=st.lists(st.integers(0, 12), min_size=1, max_size=8, unique=True),
    fine=st.sampled_from([1, 2, 3]),
    steps=st.integers(1, 6),
)
def test_ours_needs_exactly_the_needed_passes(grid, fine, steps):
    radii = tuple(k * GAMMA / fine for k in sorted(grid))
    gradients, losses = needed_points(radii, gamma=GAMMA, T=steps)
    meter = Meter(CPU)
    x = noise_images(2)
    soap.SOAP(counting_losses(tiny_model(), meter), step_size=GAMMA, steps=steps, grid=radii)(x)
    assert passes(meter, len(x)) == (sum(gradients) + losses, sum(gradients))


@pytest.mark.parametrize(
    ("grid", "steps", "wanted"),
    [
        (GRID, 5, ([1, 1, 2, 3, 4], 5)),
        ((0.0,), 5, ([], 1)),
        ((0.0, 1.0), 5, ([1] * 5, 1)),
        ((1.0,), 3, ([1] * 3, 1)),
        ((0.05, 0.1), 3, ([1, 2, 2], 2)),
    ],
)
def test_needed_passes_by_hand(grid, steps, wanted):
    assert needed_points(grid, gamma=GAMMA, T=steps) == wanted


def test_pgd_needs_one_pass_per_step():
    x, y = noise_images(3), torch.tensor([0, 1, 2])
    plain, ours = Meter(CPU), Meter(CPU)
    reference.pgd(counting_logits(tiny_model(), plain), x, y, eps=0.1, gamma=0.02, T=7)
    soap.attacks.PGD(eps=0.1, step_size=0.02, steps=7)(counting_logits(tiny_model(), ours), x, y)
    assert passes(plain, 3) == (7, 7)
    assert passes(ours, 3)[1] == 7
    assert passes(ours, 3)[0] <= 8  # one more for the model's predictions


def test_views_are_counted_at_the_encoder_and_copies_share_the_meter():
    import copy

    meter = Meter(CPU)
    model = copy.deepcopy(counting_features(tiny_model("rotation"), meter))
    model.auxiliary.loss(model, noise_images(5)).sum().backward()
    assert passes(meter, 5) == (4, 4)
    with torch.no_grad():
        model(noise_images(5))
    assert passes(meter, 5) == (5, 4)


@pytest.mark.gpu
def test_a_replayed_graph_is_counted_like_its_calls():
    device = torch.device("cuda")
    meter = Meter(device)
    model = counting_losses(tiny_model().to(device), meter)
    purifier = soap.SOAP(model, step_size=GAMMA, steps=T, grid=GRID)
    x = noise_images(8).to(device)
    for _ in range(3):
        meter.reset()
        purifier(x)
    assert passes(meter, 8) == (16, 11)
