import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import soap
from soap.auxiliary import Binarity, JointModel, Purification
from soap.auxiliary.binarity import rounded, rounded_box
from soap.models import cnn


@pytest.fixture(scope="module")
def model() -> JointModel:
    torch.manual_seed(0)
    steps = Purification(step_size=0.125, steps=5, grid=(0.5,))
    return JointModel(cnn(inputs=(1, 8, 8)), Binarity(), purification=steps, name="binary").eval()


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(0, 1, width=32), min_size=64, max_size=64))
def test_purification_ends_at_the_rounded_image(model, values):
    x = torch.tensor(values).reshape(1, 1, 8, 8)
    out = soap.SOAP(model)(x)
    assert torch.equal(out.x, rounded(x))
    assert (out.loss_after <= out.loss_before).all()


def test_values_next_to_one_half_reach_black_and_white(model):
    half = torch.tensor(0.5)
    below, above = torch.nextafter(half, torch.tensor(0.0)), torch.nextafter(half, torch.tensor(1.0))
    x = torch.stack([below, half, above, torch.tensor(0.0), torch.tensor(1.0)]).repeat(13)[:64].reshape(1, 1, 8, 8)
    assert soap.SOAP(model)(x).x.flatten()[:5].tolist() == [0.0, 0.5, 1.0, 0.0, 1.0]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), eps=st.floats(0, 0.6))
def test_every_purified_image_of_the_ball_is_in_the_box_and_both_ends_are_reached(seed, eps):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(4, 1, 5, 5, generator=generator)
    low, high = rounded_box(x, eps)
    for _ in range(20):
        moved = x + eps * (2 * torch.rand(x.shape, generator=generator) - 1)
        point = rounded(moved.clamp(0, 1))
        assert ((low <= point) & (point <= high)).all()
    assert torch.equal(rounded((x - eps).clamp(0, 1)), low)
    assert torch.equal(rounded((x + eps).clamp(0, 1)), high)


def test_loss_is_the_sum_of_the_squared_products(model):
    x = torch.tensor([[0.0, 1.0, 0.5, 0.25]])
    assert Binarity().loss(model, x).item() == pytest.approx(0.0625 + 0.1875**2)
