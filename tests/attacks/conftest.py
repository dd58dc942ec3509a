"""A table of attacks for all tests, and the small joint model with batch norm and dropout that they attack."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import (
    APGD,
    FGSM,
    PGD,
    Attack,
    AuxiliaryAwarePGD,
    BitFlips,
    CarliniWagner,
    DecayingPGD,
    DeepFool,
    HopSkipJump,
    RayS,
    Square,
    Substitute,
)
from soap.auxiliary import JointModel, Reconstruction
from soap.balls import L1, L2, Ball, Linf
from soap.models import Network, dense_decoder

SHAPE, CLASSES = (1, 6, 6), 4


def small_network() -> Network:
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten())
    return Network(encoder=encoder, classifier=nn.Linear(144, CLASSES), inputs=SHAPE, features=(144,), classes=CLASSES)


def seeded_joint_model(seed: int = 0) -> JointModel:
    """Random weights and batch statistics; the global random state does not change."""
    network = small_network()
    model = JointModel(network, Reconstruction(dense_decoder(network.features, SHAPE)), name="small")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 100
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
        network.classifier.bias.copy_(-network.classifier.weight.sum(1) / 4)
        norm = network.encoder[1]
        norm.weight.fill_(1.0)
        norm.running_mean.normal_(0, 0.1, generator=generator)
        norm.running_var.uniform_(0.5, 1.5, generator=generator)
    return model


@dataclass(frozen=True)
class Case:
    """An attack and the ball of its results (None: any valid point)."""

    make: Callable[[JointModel], Attack]
    ball: Ball | None


def black_box(model: JointModel) -> Attack:
    x = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(3))
    settings = Substitute(network=small_network, attack=FGSM(eps=0.1), seeds=8, rounds=1, epochs=1, batch_size=4)
    return settings.fit(model, x)


CASES = {
    "fgsm": Case(lambda _: FGSM(eps=0.1), Linf(0.1)),
    "fgsm-nowhere": Case(lambda _: FGSM(eps=0.0), Linf(0.0)),
    "pgd-linf": Case(lambda _: PGD(eps=0.1, step_size=0.03, steps=4), Linf(0.1)),
    "pgd-linf-random": Case(
        lambda _: PGD(eps=0.1, step_size=0.03, steps=3, start="random", restarts=2, keep="best", loss="margin"),
        Linf(0.1),
    ),
    "pgd-l2": Case(lambda _: PGD(eps=0.5, step_size=0.2, steps=4, norm="l2"), L2(0.5)),
    "pgd-l2-random": Case(
        lambda _: PGD(eps=0.5, step_size=0.2, steps=3, norm="l2", start="random", restarts=2), L2(0.5)
    ),
    "apgd-linf": Case(lambda _: APGD(eps=0.1, steps=6), Linf(0.1)),
    "apgd-linf-leaving": Case(
        lambda _: APGD(eps=0.1, steps=12, loss="dlr", start="zero", restarts=2, leave_when_fooled=True), Linf(0.1)
    ),
    "decaying-pgd": Case(lambda _: DecayingPGD(eps=0.1, steps=6), Linf(0.1)),
    "decaying-pgd-l2": Case(lambda _: DecayingPGD(eps=0.5, steps=6, norm="l2"), L2(0.5)),
    "apgd-l2": Case(lambda _: APGD(eps=0.5, steps=6, norm="l2", loss="margin", restarts=2), L2(0.5)),
    "apgd-l2-targeted": Case(lambda _: APGD(eps=0.5, steps=4, norm="l2", loss="targeted-dlr"), L2(0.5)),
    "pgd-l1-random": Case(
        lambda _: PGD(eps=2.0, step_size=0.5, steps=4, norm="l1", start="random", restarts=2), L1(2.0)
    ),
    "apgd-l1": Case(lambda _: APGD(eps=2.0, steps=20, norm="l1", restarts=2), L1(2.0)),
    "square": Case(lambda _: Square(eps=0.1, queries=12, restarts=2), Linf(0.1)),
    "square-l2": Case(lambda _: Square(eps=0.5, norm="l2", queries=12, restarts=2), L2(0.5)),
    "hop-skip-jump": Case(lambda _: HopSkipJump(eps=0.1, queries=150), Linf(0.1)),
    "hop-skip-jump-l2": Case(lambda _: HopSkipJump(eps=0.4, norm="l2", queries=150), L2(0.4)),
    "hop-skip-jump-free": Case(lambda _: HopSkipJump(eps=None, norm="l2", queries=150), None),
    "rays": Case(lambda _: RayS(eps=0.1, queries=100), Linf(0.1)),
    "bit-flips": Case(lambda _: BitFlips(eps=0.1, flips=3), Linf(0.1)),
    "cw": Case(lambda _: CarliniWagner(steps=12, search_steps=2, lr=0.1, initial_c=1.0), None),
    "cw-bounded": Case(lambda _: CarliniWagner(radius=0.2, steps=12, search_steps=2, lr=0.1, initial_c=1.0), L2(0.2)),
    "deepfool": Case(lambda _: DeepFool(steps=8), None),
    "deepfool-bounded": Case(lambda _: DeepFool(radius=0.2, steps=8, candidates=2), L2(0.2)),
    "auxiliary-aware": Case(
        lambda _: AuxiliaryAwarePGD(eps=0.1, step_size=0.03, steps=3, beta=1.0, keep="best"), Linf(0.1)
    ),
    "black-box": Case(black_box, Linf(0.1)),
}


@pytest.fixture(scope="session")
def new_model() -> Callable[..., JointModel]:
    """Builds the small joint model, in training mode."""
    return seeded_joint_model


@pytest.fixture(scope="session", params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    case: Case = request.param
    return case


@pytest.fixture(scope="session")
def attack(case: Case) -> Attack:
    return case.make(seeded_joint_model())


class Recording(nn.Module):
    """Calls a model and records its inputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.asked: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(x.detach().clone())
        logits: Tensor = self.model(x)
        return logits

    @property
    def sizes(self) -> list[int]:
        return [len(x) for x in self.asked]


@pytest.fixture
def recording() -> type[Recording]:
    return Recording


def linear(classes: int, *, features: int = 24, seed: int = 0) -> nn.Linear:
    """Logits W (x - 1/2) in double precision: decision boundaries pass through the centre of the bounds."""
    model = nn.utils.skip_init(nn.Linear, features, classes, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.weight.normal_(generator=generator)
        model.bias.copy_(-model.weight.sum(1) / 2)
    return model


@pytest.fixture(params=[2, 10], ids=["2-classes", "10-classes"])
def linear_problem(request: pytest.FixtureRequest) -> tuple[nn.Linear, Tensor, Tensor]:
    """A linear model and samples near the centre of the bounds, with its predictions as labels."""
    model = linear(request.param)
    x = 0.5 + 0.1 * torch.randn(40, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return model, x, model(x).argmax(1)


@pytest.fixture(scope="module")
def problem(new_model: Callable[..., JointModel]) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in double precision and samples; the last two are misclassified from the start."""
    model = new_model().double().eval()
    x = torch.rand(16, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    return model, x, torch.cat([y[:14], (y[14:] + 1) % 4])
