"""Small joint models with random weights, one per auxiliary task, and images for them."""

import torch
from torch import nn

import soap
from soap._runtime.isolation import preserved_random_state
from soap.auxiliary import AuxiliaryTask, Consistency, JointModel, Purification, Reconstruction, Rotation
from soap.models import Network

GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
TASKS = ("reconstruction", "rotation", "consistency")


def tiny_model(
    task: str = "reconstruction", *, side: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32
) -> JointModel:
    """Return a network with batch norm and dropout for [1, side, side] images of 4 classes, in eval mode."""
    with preserved_random_state():
        torch.manual_seed(seed)
        encoder = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(),
            nn.Linear(6 * side * side, 16), nn.Tanh(), nn.Dropout(0.2),
        )  # fmt: skip
        network = Network(
            encoder=encoder, classifier=nn.Linear(16, 4), inputs=(1, side, side), features=(16,), classes=4
        )
        decoder = nn.Sequential(nn.Linear(16, side * side), nn.Sigmoid(), nn.Unflatten(1, (1, side, side)))
        tasks: dict[str, AuxiliaryTask] = {
            "reconstruction": Reconstruction(decoder, alpha=10.0, noise=0.1),
            "rotation": Rotation(nn.Linear(16, 4)),
            "consistency": Consistency(),
        }
        settings = Purification(step_size=0.1, steps=5, grid=GRID)
        model = JointModel(network, tasks[task], purification=settings, name=f"tiny-{task}")
    return model.to(dtype).eval()


def noise_images(n: int, *, side: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return `n` uniformly random images."""
    return torch.rand(n, 1, side, side, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def state_of(model: nn.Module) -> dict[str, object]:
    """Return everything that a public call must not change: model and random state, comparable with ==."""
    return {
        "weights": {name: value.clone().numpy().tobytes() for name, value in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "learning": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.numpy().tobytes() for p in model.parameters()],
        "random": torch.get_rng_state().numpy().tobytes(),
    }


def attacked_digits(model: JointModel, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first `n` test digits of mnist-mini after a short PGD attack, and their labels."""
    data = soap.data.load("mnist-mini").take(n)
    attack = soap.attacks.PGD(eps=0.3, step_size=0.05, steps=10)
    return attack(model, data.x, data.y), data.y
