"""The black-box attack: what it asks the target, how its set grows, and that its answer is reproducible."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import FGSM, Substitute, Transfer, fooled
from soap.attacks.substitute import augment
from soap.auxiliary import JointModel
from soap.defence import Defence
from soap.errors import InputError
from soap.models import Network
from soap.purifiers import SOAP


def linear_network(classes: int = 2, features: int = 12) -> Network:
    return Network(
        encoder=nn.Flatten(),
        classifier=nn.Linear(features, classes),
        inputs=(features,),
        features=(features,),
        classes=classes,
    )


class Target(nn.Module):
    """A linear decision that can be learned from few answers; records what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[Tensor] = []
        direction = torch.randn(12, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(torch.stack([direction, -direction]))

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise AssertionError("a black box was asked for a gradient")
        self.queries.append(x.clone())
        return (x - 0.5) @ self.weight.T


SEEDS = torch.rand(20, 12, generator=torch.Generator().manual_seed(1))
SETTINGS = Substitute(
    network=linear_network, attack=FGSM(eps=0.2), seeds=20, rounds=3, epochs=30, lr=0.05, batch_size=16
)


def test_number_of_queries_is_seeds_times_two_to_the_rounds() -> None:
    target = Target()
    asked: list[Tensor] = []

    def labels(x: Tensor) -> Tensor:
        asked.append(x)
        return target(x).argmax(1)

    SETTINGS.train(labels, SEEDS)
    queries = torch.cat(asked)
    assert len(queries) == 20 * 2**3
    assert torch.equal(queries[:20], SEEDS)
    # Every round asks about the set as it stood, moved by one step at most.
    for n in (20, 40, 80):
        moved = queries[n : 2 * n] - queries[:n]
        assert (moved.abs() <= SETTINGS.augment_step + 1e-6).all()
        assert (moved.abs() > 0).any()
    assert ((queries >= 0) & (queries <= 1)).all()


def test_augmentation_sign_alternates_between_rounds() -> None:
    asked: list[Tensor] = []

    def always_one(x: Tensor) -> Tensor:
        asked.append(x)
        return torch.ones(len(x), dtype=torch.long)

    def fixed() -> Network:  # lr is too small to change it, so F_1 grows with every coordinate in all rounds
        network = linear_network()
        with torch.no_grad():
            network.classifier.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 12))
        return network

    middle = torch.full((16, 12), 0.5)
    Substitute(network=fixed, seeds=16, rounds=3, epochs=1, lr=1e-9, batch_size=64).train(always_one, middle)
    expected = [0.5]
    for step in (0.1, -0.1, 0.1):
        expected += [value + step for value in expected]
    wanted = torch.tensor(expected).repeat_interleave(16)[:, None].expand(128, 12)
    assert torch.allclose(torch.cat(asked), wanted)


def test_augmentation_steps_along_the_gradient_of_the_label() -> None:
    model = nn.Linear(3, 2)
    x, y = torch.rand(5, 3), torch.tensor([0, 1, 0, 1, 1])
    towards = (model.weight[y] - model.weight[1 - y]).sign()  # F_y of two classes grows with f_y - f_other
    assert torch.allclose(augment(model, x, y, 0.1), (x + 0.1 * towards).clamp(0, 1))
    assert torch.allclose(augment(model, x, y, -0.1), (x - 0.1 * towards).clamp(0, 1))


def test_augmentation_works_where_the_substitute_is_confident() -> None:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]]) * 1e-2)
        model.bias.copy_(torch.tensor([40.0, -40.0]))
    x = torch.full((2, 3), 0.5)
    moved = augment(model, x, torch.tensor([1, 1]), 0.1) - x
    assert torch.allclose(moved, torch.tensor([-0.1, 0.1, -0.1]).expand(2, 3))


def test_substitute_agrees_with_the_target_and_attacks_transfer() -> None:
    target = Target()
    x = torch.rand(200, 12, generator=torch.Generator().manual_seed(2))
    y = target(x).argmax(1)
    transfer = SETTINGS.fit(target, torch.cat([SEEDS, x]))
    assert isinstance(transfer, Transfer)
    agreement = (transfer.substitute(x).argmax(1) == y).float().mean()
    assert agreement > 0.75
    # No gradient of the target was asked for (it raises), and most of what a white-box FGSM would flip is flipped.
    x_adv = transfer(target, x, y)
    white_box = x - 0.2 * (target.weight[y] - target.weight[1 - y]).sign().detach()
    ideal = fooled(target, white_box.clamp(0, 1), y).float().mean()
    assert fooled(target, x_adv, y).float().mean() > 0.6 * ideal
    assert torch.equal(x_adv, FGSM(eps=0.2)(transfer.substitute, x, y))


def test_only_the_first_seed_images_are_used() -> None:
    target = Target()
    SETTINGS.fit(target, torch.cat([SEEDS, torch.full((5, 12), 0.123)]))
    queries = torch.cat(target.queries)
    assert not (queries == 0.123).all(1).any()


@pytest.mark.parametrize("name", ["fcn", "cnn"])
def test_named_networks_train_reproducibly_and_keep_the_random_state(name: str) -> None:
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def labels(images: Tensor) -> Tensor:
        return (images.flatten(1).mean(1) > 0.5).long()

    def train(seed: int) -> list[Tensor]:
        settings = Substitute(network=name, seeds=6, rounds=1, epochs=2, batch_size=4, seed=seed)
        return list(settings.train(labels, x).state_dict().values())

    before = torch.get_rng_state()
    one = train(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)  # what was drawn elsewhere does not matter
    assert all(torch.equal(a, b) for a, b in zip(one, train(0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, train(1), strict=True))


def test_substitute_is_in_evaluation_mode_without_gradients() -> None:
    with torch.inference_mode():
        substitute = SETTINGS.fit(Target(), SEEDS.clone()).substitute
    assert not any(module.training for module in substitute.modules())
    assert not any(parameter.requires_grad for parameter in substitute.parameters())


def test_a_defence_may_be_the_target(new_model: Callable[..., JointModel], recording: Any) -> None:
    joint = new_model().eval()
    robust = Defence(joint, SOAP(joint, eps=0.1, step_size=0.05, steps=2))
    x = torch.rand(6, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    settings = Substitute(network="cnn", seeds=4, rounds=1, epochs=1, batch_size=4)
    recorded = recording(robust)
    transfer = settings.fit(recorded, x)
    assert sum(recorded.sizes) == 6 + 4 * 2  # the look at its logits, then the queries
    assert transfer(robust, x, robust(x).argmax(1)).shape == x.shape


def test_fit_does_not_change_the_target(new_model: Callable[..., JointModel]) -> None:
    target = new_model().train()
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    Substitute(network="cnn", seeds=4, rounds=1, epochs=1, batch_size=4).fit(target, torch.rand(4, 1, 6, 6))
    assert all(torch.equal(before[name], tensor) for name, tensor in target.state_dict().items())
    assert all(module.training for module in target.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in target.parameters())


@pytest.mark.parametrize(
    ("seeds", "batch_size"), [(3, 2), (17, 16), (2, 128)], ids=["one-over", "one-over-a-batch", "less-than-a-batch"]
)
def test_training_batches_have_at_least_two_samples(seeds: int, batch_size: int) -> None:
    x = torch.rand(seeds, 1, 8, 8)
    settings = Substitute(network="cnn", seeds=seeds, rounds=0, epochs=1, batch_size=batch_size)
    settings.train(lambda images: torch.zeros(len(images), dtype=torch.long), x)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_seeds_and_labels_raise() -> None:
    with pytest.raises(InputError, match="got 19 images to start from, expected at least seeds=20"):
        SETTINGS.fit(Target(), SEEDS[:19])
    with pytest.raises(InputError, match="divide by 255"):
        SETTINGS.fit(Target(), SEEDS * 255)
    with pytest.raises(InputError, match="expected float logits"):
        SETTINGS.fit(lambda x: Target()(x).argmax(1), SEEDS)
    with pytest.raises(InputError, match="predicts class 7 but the substitute has 2 classes"):
        SETTINGS.train(lambda x: torch.full((len(x),), 7), SEEDS)
    with pytest.raises(InputError, match="one class per sample"):
        SETTINGS.train(lambda x: torch.zeros(len(x)), SEEDS)
    with pytest.raises(InputError, match="got 1 image to start from, expected at least 2"):
        SETTINGS.train(lambda x: torch.zeros(len(x), dtype=torch.long), SEEDS[:1])
    with pytest.raises(InputError, match="NaN"):
        SETTINGS.train(lambda x: torch.zeros(len(x)), SEEDS * torch.nan)


def test_repr_shows_the_settings_of_the_substitute() -> None:
    transfer = SETTINGS.fit(Target(), SEEDS)
    assert "seeds=20, rounds=3" in repr(transfer)
    assert "FGSM(eps=0.2)" in repr(transfer)
    assert "Linear" not in repr(transfer)
