"""Evaluate your own defence: a classifier, and a function from images to images before it.

    python examples/own_purifier.py

The suite attacks the function with gradient rules, and 22 checks test whether the result can be believed. A purifier
with a method `path(x)`, its iterates [T + 1, batch, ...], is also attacked along its iterates.
"""

from pathlib import Path

from torch import Tensor
from torch.nn.functional import avg_pool2d

import soap
from soap.evaluation import headline


def smooth(x: Tensor) -> Tensor:
    return (x + avg_pool2d(x, 3, stride=1, padding=1)) / 2  # half way to the mean of the 3 x 3 neighbourhood


def main(n: int = 100, suite: str = "full", out: Path = Path("runs/own-purifier"), **effort: int) -> str:
    """Return one line: the worst-case accuracy with its interval, and the verdict of the checks."""
    network = soap.load("mnist-fcn-no-def")  # any nn.Module from images to logits
    digits = soap.data.load("mnist-mini").take(n)
    defence = soap.Defence(network, smooth, name="smoothing")
    report = soap.evaluate(defence, digits, suite=suite, eps=0.1, out=out, **effort)
    return headline(report.summary, report.verdict)


if __name__ == "__main__":
    print(main())
