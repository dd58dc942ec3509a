"""Attack a model that purifies by rounding, on the line between the two values that each purified pixel can take.

    python examples/attack_through_rounding.py mnist-cnn-soap-at --images 1000
    python examples/attack_through_rounding.py runs/a/last.safetensors runs/b/last.safetensors   # their mean logits

Rounding has no gradient. But an attacker of radius eps chooses for each pixel between two purified values only, `low`
and `high`. So the attack moves t in [0, 1] by the gradient of the classifier at low + t (high - low), where the
classifier is smooth, and tries the image with t rounded every few steps. BitFlips then searches the single pixels of
what is left.
"""

import argparse

import torch
from torch import Tensor, nn

import soap
from soap.attacks import margin
from soap.auxiliary.binarity import rounded, rounded_box

STEPS, FIRST_STEP, MOMENTUM, CHECK_EVERY = 200, 0.4, 0.75, 5


class MeanLogits(nn.Module):
    """The mean logits of several classifiers."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([model(x) for model in self.models]).mean(0)


def attack(classifier: nn.Module, x: Tensor, y: Tensor, eps: float, seed: int, rival: int | None) -> Tensor:
    """Return which images are broken. rival: aim at the class with this rank of the clean logits; None: at any."""
    low, high = rounded_box(x, eps)
    generator = torch.Generator(x.device).manual_seed(seed)
    t = torch.rand(x.shape, generator=generator, device=x.device) if seed else torch.full_like(x, 0.5)
    velocity, broken = torch.zeros_like(t), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    target = None if rival is None else classifier(rounded(x)).argsort(1, descending=True)[:, rival, None]
    for step in range(STEPS):
        t.requires_grad_()
        logits = classifier(torch.lerp(low, high, t))
        own = logits.gather(1, y[:, None])[:, 0]
        loss = margin(logits, y) if target is None else logits.gather(1, target)[:, 0] - own
        (gradient,) = torch.autograd.grad(loss.sum(), t)
        with torch.no_grad():
            size = gradient.abs().flatten(1).mean(1).clamp_min(1e-20).reshape(-1, 1, 1, 1)
            velocity = MOMENTUM * velocity + gradient / size
            t = (t + FIRST_STEP * (1 - step / STEPS) * velocity.sign()).clamp(0, 1)
            if step % CHECK_EVERY == CHECK_EVERY - 1:
                broken |= classifier(torch.where(t > 0.5, high, low)).argmax(1) != y
    return broken


def main(models: list[str], data: str = "mnist-mini", images: int = 200, first: int = 0, eps: float = 0.3) -> float:
    """Print what is left after each attack; return the accuracy in the end."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = [soap.load(name).to(device).eval().requires_grad_(False) for name in models]
    classifier = loaded[0] if len(loaded) == 1 else MeanLogits(list(loaded))
    digits = soap.data.load(data)
    x, y = digits.x[first : first + images].to(device), digits.y[first : first + images].to(device)
    left = classifier(rounded(x)).argmax(1) == y
    print(f"clean: {100 * left.float().mean():.1f} %")
    for rival in (None, 1, 2, 3, 4):
        for seed in (0, 1):
            rows = left.nonzero()[:, 0]
            left[rows] = ~attack(classifier, x[rows], y[rows], eps, seed, rival)
        print(f"{'any class' if rival is None else f'class of rank {rival}'}: {100 * left.float().mean():.1f} % left")
    rows = left.nonzero()[:, 0]
    defence = soap.Defence(classifier, soap.SOAP(loaded[0]))
    x_adv = soap.attacks.BitFlips(eps=eps, flips=3)(defence, x[rows], y[rows])
    left[rows] = defence(x_adv).argmax(1) == y[rows]
    accuracy = left.float().mean().item()
    print(f"bit flips: {100 * accuracy:.1f} % left")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="a bundled model, or the path of a .safetensors file")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--eps", type=float, default=0.3)
    given = parser.parse_args()
    main(given.models, given.data, given.images, given.first, given.eps)
