"""Evaluate your own defence: a classifier, and a function from images to images before it.

    python examples/own_purifier.py

The suite attacks through the function, and 19 checks judge the result. A purifier with a method `path(x)`, its
iterates [T + 1, batch, ...], is also attacked along its path.
"""

from pathlib import Path

from torch import Tensor
from torch.nn.functional import avg_pool2d

import soap
from soap.evaluation import headline


def smooth(x: Tensor) -> Tensor:
    return (x + avg_pool2d(x, 3, stride=1, padding=1)) / 2  # half way to the mean of each pixel's neighbours


def main(n: int = 100, suite: str = "full", out: Path = Path("runs/own-purifier"), **effort: int) -> str:
    """The worst case with its interval, and the verdict, in one line."""
    network = soap.load("mnist-fcn-no-def")  # any nn.Module from images to logits
    digits = soap.data.load("mnist-mini").take(n)
    defence = soap.Defence(network, smooth, name="smoothing")
    report = soap.evaluate(defence, digits, suite=suite, eps=0.1, out=out, **effort)
    return headline(report.summary, report.verdict)


if __name__ == "__main__":
    print(main())
