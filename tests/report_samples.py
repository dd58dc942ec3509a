"""Rows and a showcase with figures of our own choosing."""

import torch

from soap.evaluation.showcase import Showcase
from soap.results import Provenance, Row
from soap.specs import BARE, AttackSpec, AttackStep, DefenceSpec

PROVENANCE = Provenance(
    weights_sha256="a1" * 32, data_sha256="b2" * 32, images="0..999 of test", seed=0, batch_size=500, version="9.8.7",
    commit="c0ffee", torch="2", python="3", device="cpu (2 threads)", date="2026-01-02T03:04:05+00:00",
)  # fmt: skip
CORRECT = {"none": (988, 971), "fgsm": (492, 849), "pgd": (45, 807)}


def sample_row(attack: str, *, purified: bool, correct: int, model: str = "some-model") -> Row:
    return Row(
        protocol="transfer", model=model, data="mnist-mini", n=1000,
        attack=AttackSpec(name=attack, steps=(AttackStep(name=attack.upper(), settings={"eps": 0.3}),)),
        defence=DefenceSpec(name="SOAP", settings={"eps": "min-aux"}, eps="min-aux") if purified else BARE,
        correct=correct, seconds=4.25 if purified else 2.5, provenance=PROVENANCE,
    )  # fmt: skip


def sample_rows(correct: dict[str, tuple[int, int]] = CORRECT, model: str = "some-model") -> list[Row]:
    return [
        sample_row(attack, purified=bool(k), correct=counts[k], model=model)
        for attack, counts in correct.items()
        for k in (0, 1)
    ]


def sample_showcase(classes: int = 4, *, channels: int = 1) -> Showcase:
    """Random pictures; clean ones are classified correctly, adversarial ones not, purified ones except the last."""
    shape = (3, classes, channels, 6, 6)
    y = torch.arange(classes)
    wrong = (y + 1) % classes
    return Showcase(
        places=tuple(range(classes)),
        y=y,
        inputs=torch.rand(shape, generator=torch.Generator().manual_seed(0)),
        decoded=torch.rand(shape, generator=torch.Generator().manual_seed(1)),
        labels=torch.stack([y, wrong, torch.where(y == classes - 1, wrong, y)]),
        n=1000,
        eps_adv=0.25,
        loss_clean=0.0123,
        loss_by_step=(0.0876, 0.0543, 0.0234),
        radii=(0.0, 0.1, 0.2, 0.4),
        loss_by_radius=(0.0876, 0.0432, 0.0321, 0.0222),
    )
