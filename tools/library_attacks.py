"""Attacks of foolbox, ART and pyautoattack on any module from images to logits; used by tools/compare_libraries.py.

Each attack is called as `attack(module, x, y, budget)` and returns the attacked images. A random module is attacked by
expectation over transformation: by that of the library if it has one (foolbox's wrapper, `eot_iter` of pyautoattack),
otherwise as `MeanOverDraws`. A library that is not installed raises ImportError.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from soap.gradient_rules import MeanOverDraws

PACKAGES = {"foolbox": "foolbox", "art": "adversarial-robustness-toolbox", "pyautoattack": "pyautoattack"}
"""Libraries, by the names of their modules, and the packages that hold them."""

BLACK_BOX_DRAWS = 4
"""At most so many draws for each query of an attack without gradients, as in soap's own suite."""

HOP_STEPS = 4
"""Iterations of HopSkipJump; it needs about 25 queries an iteration in addition to those that estimate the gradient."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Effort of an attack in the Linf ball of radius `eps`. draws: 1 for a deterministic module."""

    eps: float
    steps: int
    queries: int
    draws: int
    seed: int = 0

    @property
    def black_box_draws(self) -> int:
        """Draws for each query of an attack without gradients."""
        return min(self.draws, BLACK_BOX_DRAWS)

    @property
    def step_size(self) -> float:
        """The step of PGD (Madry et al. 2018): all steps together are 2.5 times the radius."""
        return 2.5 * self.eps / self.steps


LibraryAttack = Callable[[nn.Module, Tensor, Tensor, Budget], Tensor]


class SameDraws(nn.Module):
    """The mean over draws that are the same in every call: decision-based attacks need labels that do not change."""

    def __init__(self, model: nn.Module, draws: int, seed: int) -> None:
        super().__init__()
        self.mean = MeanOverDraws(model, draws, seed)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithm of the mean softmax."""
        self.mean.restart()
        logits: Tensor = self.mean(x)
        return logits


def foolbox_pgd(model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    """PGD from a random point, by cross-entropy."""
    from foolbox.attacks import LinfPGD

    attack = LinfPGD(steps=budget.steps, abs_stepsize=budget.step_size, random_start=True)
    return _foolbox(attack, _foolbox_model(model, x, budget.draws), x, y, budget)


def foolbox_fmn(model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    """The fast minimum-norm attack (Pintor et al. 2021); its result is projected onto the ball."""
    from foolbox.attacks import LInfFMNAttack

    return _foolbox(LInfFMNAttack(steps=budget.steps), _foolbox_model(model, x, budget.draws), x, y, budget)


def foolbox_hop_skip_jump(model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    """HopSkipJump (Chen et al. 2020) by labels alone, from other images; its result is projected onto the ball."""
    from foolbox.attacks import HopSkipJumpAttack

    if budget.draws > 1:
        model = SameDraws(model, budget.black_box_draws, budget.seed).eval()
    weight = sum(math.sqrt(step + 1) for step in range(HOP_STEPS))
    first = max(1, int((budget.queries - 25 * (HOP_STEPS + 1)) / weight))
    attack = HopSkipJumpAttack(steps=HOP_STEPS, initial_gradient_eval_steps=first, constraint="linf")
    # The whole batch is attacked at once: the draws of an image depend on its place in the batch.
    starts = _misclassified_starts(model, x, y)
    return _foolbox(attack, _foolbox_model(model, x, 1), x, y, budget, starting_points=starts)


def _misclassified_starts(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """For each image one that the model does not assign to its class: itself, or another one of the batch."""
    starts, found = x.clone(), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for places in range(len(x)):
        candidates = x.roll(places, 0)
        with torch.no_grad():
            new = (model(candidates).argmax(1) != y) & ~found
        starts[new], found = candidates[new], found | new
        if found.all():
            return starts
    raise RuntimeError(f"{int((~found).sum())} images have no starting point of another class; use more images.")


def _foolbox_model(model: nn.Module, x: Tensor, draws: int) -> Any:
    from foolbox import PyTorchModel
    from foolbox.models import ExpectationOverTransformationWrapper

    plain = PyTorchModel(model, bounds=(0, 1), device=x.device)
    return plain if draws == 1 else ExpectationOverTransformationWrapper(plain, n_steps=draws)


def _foolbox(attack: Any, model: Any, x: Tensor, y: Tensor, budget: Budget, **more: Any) -> Tensor:
    _, clipped, _ = attack(model, x, y, epsilons=budget.eps, **more)
    images: Tensor = clipped
    return images


def art_pgd(model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    """PGD from a random point, by cross-entropy."""
    from art.attacks.evasion import ProjectedGradientDescent

    settings = {"eps_step": budget.step_size, "max_iter": budget.steps, "num_random_init": 1}
    return _art(ProjectedGradientDescent, model, x, y, budget, budget.draws, settings)


def art_auto_pgd(model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    """APGD by cross-entropy, one random start."""
    from art.attacks.evasion import AutoProjectedGradientDescent

    settings = {"eps_step": 2 * budget.eps, "max_iter": budget.steps, "nb_random_init": 1}
    return _art(
        AutoProjectedGradientDescent, model, x, y, budget, budget.draws, {**settings, "loss_type": "cross_entropy"}
    )


def art_square(model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    """Square, by logits."""
    from art.attacks.evasion import SquareAttack

    return _art(SquareAttack, model, x, y, budget, budget.black_box_draws, {"max_iter": budget.queries})


def _art(
    kind: Any, model: nn.Module, x: Tensor, y: Tensor, budget: Budget, draws: int, settings: dict[str, Any]
) -> Tensor:
    from art.estimators.classification import PyTorchClassifier

    module = model if draws == 1 else MeanOverDraws(model, draws, budget.seed)
    with torch.no_grad():
        classes = module(x[:1]).shape[1]
    estimator = PyTorchClassifier(
        model=module,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="gpu" if x.device.type == "cuda" else "cpu",
    )
    attack = kind(estimator, eps=budget.eps, batch_size=len(x), verbose=False, **settings)
    return torch.from_numpy(attack.generate(x.cpu().numpy(), y.cpu().numpy())).to(x)


def autoattack(model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    """AutoAttack: the standard version with its own effort; of a random module, `rand` with the budget's."""
    import pyautoattack

    random = budget.draws > 1
    attack = pyautoattack.AutoAttack(
        model, norm="Linf", eps=budget.eps, version="rand" if random else "standard", seed=budget.seed, device=x.device
    )
    if random:
        attack.apgd.eot_iter, attack.apgd.n_iter = budget.draws, budget.steps
    found, _ = attack.run_standard_evaluation(x, y, batch_size=len(x))
    images: Tensor = found
    return images


def apgd_ce(model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    """The APGD of pyautoattack by cross-entropy; it returns the points of the largest loss.

    `rand` leaves an image as it is unless one single evaluation of its last point is wrong. That is weak against a
    random module with a high accuracy for each draw.
    """
    return _apgd("ce", model, x, y, budget)


def apgd_dlr(model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    """The APGD of pyautoattack by the difference-of-logits ratio; see `apgd_ce`."""
    return _apgd("dlr", model, x, y, budget)


def _apgd(loss: str, model: nn.Module, x: Tensor, y: Tensor, budget: Budget) -> Tensor:
    from pyautoattack.autopgd_base import APGDAttack

    attack = APGDAttack(
        model, n_iter=budget.steps, eps=budget.eps, norm="Linf", n_restarts=1, eot_iter=budget.draws, rho=0.75,
        loss=loss, seed=budget.seed, device=x.device, verbose=False,
    )  # fmt: skip
    images: Tensor = attack.perturb(x, y, best_loss=True)
    return images


ATTACKS: dict[str, dict[str, LibraryAttack]] = {
    "foolbox": {"LinfPGD": foolbox_pgd, "LInfFMN": foolbox_fmn, "HopSkipJump": foolbox_hop_skip_jump},
    "art": {"PGD": art_pgd, "AutoPGD": art_auto_pgd, "Square": art_square},
    "pyautoattack": {"AutoAttack": autoattack, "APGD-CE": apgd_ce, "APGD-DLR": apgd_dlr},
}
"""Attacks by library and name."""

RANDOM_ONLY = ("APGD-CE", "APGD-DLR")
"""Attacks that AutoAttack's standard version already contains."""


def settings(attack: str, budget: Budget) -> dict[str, Any]:
    """The part of the budget that an attack uses, as result rows store it."""
    if attack == "AutoAttack" and budget.draws == 1:
        return {"version": "standard"}
    if attack in ("HopSkipJump", "Square"):
        return {"queries": budget.queries, "draws": budget.black_box_draws}
    return {**({"version": "rand"} if attack == "AutoAttack" else {}), "steps": budget.steps, "draws": budget.draws}


def installed_version(library: str) -> str:
    """The installed version; "unknown" for a library that was copied without its package data."""
    try:
        return version(PACKAGES[library])
    except PackageNotFoundError:
        module = __import__(library)
        return str(getattr(module, "__version__", "unknown"))
