"""Attack a defended network with AutoAttack, by its package: `pip install "soap-defense[autoattack]"`.

    python examples/attack_with_autoattack.py

The network's gradient takes the purifier for the identity (BPDA). AutoAttack was not made for defences that optimise
at inference and gives an upper bound on robustness only; `soap evaluate --suite full` attacks the purifier, too.
"""

import pyautoattack

import soap


def main(n: int = 50, eps: float = 0.2, attacks: tuple[str, ...] = ("apgd-ce", "square")) -> dict[str, float]:
    """Accuracy of the network behind its purifier, clean and under AutoAttack."""
    model, digits = soap.load("mnist-fcn-dr"), soap.data.load("mnist-mini").take(n)
    robust = soap.Defence(model, soap.SOAP(model))
    attack = pyautoattack.AutoAttack(robust, eps=eps, version="custom", attacks=list(attacks), seed=0)
    x_adv, _ = attack.run_standard_evaluation(digits.x, digits.y, batch_size=n)
    right = {name: robust(x).argmax(1) == digits.y for name, x in (("clean", digits.x), ("attacked", x_adv))}
    return {name: hits.float().mean().item() for name, hits in right.items()}


if __name__ == "__main__":
    print(main())
