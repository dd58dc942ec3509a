"""Attack a model that purifies by rounding, by the two attacks that know how it purifies.

    python examples/attack_through_rounding.py mnist-cnn-soap-at --images 1000
    python examples/attack_through_rounding.py runs/a/last.safetensors runs/b/last.safetensors   # their mean logits

PurifiedEnds follows the classifier's gradient between the two values that each purified pixel can take. BitFlips then
searches the single pixels of what is left.
"""

import argparse

import torch
from torch import Tensor, nn

import soap
from soap.attacks import BitFlips, PurifiedEnds

STEPS = 200


class MeanLogits(nn.Module):
    """The mean logits of several classifiers."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([model(x) for model in self.models]).mean(0)


def main(models: list[str], data: str = "mnist-mini", images: int = 200, first: int = 0, eps: float = 0.3) -> float:
    """Print what is left after each attack; return the accuracy in the end."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = [soap.load(name).to(device).eval().requires_grad_(False) for name in models]
    classifier = loaded[0] if len(loaded) == 1 else MeanLogits(list(loaded))
    defence = soap.Defence(classifier, soap.SOAP(loaded[0]))
    digits = soap.data.load(data)
    x, y = digits.x[first : first + images].to(device), digits.y[first : first + images].to(device)
    left = defence.labels(x) == y
    print(f"clean: {100 * left.float().mean():.1f} %")
    for attack in (PurifiedEnds(eps=eps, steps=STEPS, targets=4, restarts=2), BitFlips(eps=eps, flips=3)):
        rows = left.nonzero()[:, 0]
        left[rows] = defence.labels(attack(defence, x[rows], y[rows])) == y[rows]
        print(f"{type(attack).__name__}: {100 * left.float().mean():.1f} % left")
    return left.float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="a bundled model, or the path of a .safetensors file")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--eps", type=float, default=0.3)
    given = parser.parse_args()
    main(given.models, given.data, given.images, given.first, given.eps)
