"""What is shown: the first of each class, as the purifier leaves it, and losses that a plain loop finds too."""

import pytest
import torch
from tiny import noise_images, state_of, tiny_model

from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.showcase import STAGES, first_of_each_class, make_showcase
from soap.purifiers import SOAP

N = 11


@pytest.fixture(scope="module")
def sample():
    """A model, its data and 'attacked' images near them."""
    y = torch.tensor([2, 2, 0, 3, 0, 2, 3, 3, 0, 2, 1])
    data = Dataset(name="noise", split="test", x=noise_images(N), y=y, classes=("a", "b", "c", "d"), sha256="")
    nudge = 0.3 * (noise_images(N, seed=1) - 0.5).sign()
    return tiny_model(), data, (data.x + nudge).clamp(0, 1)


def test_the_first_of_each_class_and_nothing_else():
    assert first_of_each_class(torch.tensor([2, 2, 0, 3, 0, 1])) == (2, 5, 0, 3)
    assert first_of_each_class(torch.tensor([1, 1])) == (0,)


@pytest.mark.parametrize("batch_size", [1, 4, 500])
def test_against_a_plain_loop(sample, batch_size):
    model, data, x_adv = sample
    purifier = SOAP(model)
    seen: list[tuple[str, int, int]] = []
    show = make_showcase(model, data, x_adv, purifier, batch_size=batch_size, watch=lambda *call: seen.append(call))
    loss = lambda x: model.auxiliary.loss(model, x).detach()  # noqa: E731
    purified = [purifier(x[None]) for x in x_adv]

    assert show.places == (2, 10, 0, 3)
    assert show.y.tolist() == [0, 1, 2, 3]
    stages = (data.x, x_adv, torch.cat([one.x for one in purified]))
    for stage in range(len(STAGES)):
        for k, place in enumerate(show.places):
            x = stages[stage][place][None]
            assert torch.allclose(show.inputs[stage, k], x[0], atol=1e-6)
            assert torch.allclose(show.decoded[stage, k], model.auxiliary.reconstruct(model, x)[0], atol=1e-5)
            assert show.labels[stage, k] == model(x).argmax()
    assert show.n == N
    assert show.eps_adv == pytest.approx(0.3, abs=1e-6)
    assert show.loss_clean == pytest.approx(loss(data.x).mean().item(), rel=1e-5)
    assert len(show.loss_by_step) == purifier.steps + 1
    assert show.loss_by_step[0] == pytest.approx(loss(x_adv).mean().item(), rel=1e-5)
    assert show.loss_by_step[-1] == pytest.approx(sum(one.loss_after.item() for one in purified) / N, rel=1e-4)
    assert show.radii == purifier.grid
    for radius, mean in zip(show.radii, show.loss_by_radius, strict=True):
        plain = SOAP(model, eps=radius)(x_adv)
        assert mean == pytest.approx(plain.loss_after.mean().item(), rel=1e-4), radius
    assert seen[-1][1:] == (N, N)


def test_everything_is_left_as_it_was(sample):
    _, data, x_adv = sample
    model = tiny_model().train()
    before, inputs = state_of(model), (data.x.clone(), x_adv.clone())
    make_showcase(model, data, x_adv, SOAP(model), batch_size=4)
    assert state_of(model) == before
    assert torch.equal(data.x, inputs[0])
    assert torch.equal(x_adv, inputs[1])


def test_bad_input(sample, unchecked_shapes):
    model, data, x_adv = sample
    rotation = tiny_model("rotation")
    with pytest.raises(InputError, match="Rotation, expected Reconstruction"):
        make_showcase(rotation, data, x_adv, SOAP(rotation))
    with pytest.raises(InputError, match="expected equal shapes"):
        make_showcase(model, data, x_adv[:5], SOAP(model))
    with pytest.raises(InputError, match="batch_size is 0"):
        make_showcase(model, data, x_adv, SOAP(model), batch_size=0)
    with pytest.raises(InputError, match="NaN"):
        make_showcase(model, data, x_adv * torch.nan, SOAP(model))
