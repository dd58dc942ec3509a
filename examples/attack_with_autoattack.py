"""Attack a Defence with the package of AutoAttack: `pip install pyautoattack==0.2.0`.

    python examples/attack_with_autoattack.py

The gradient of a Defence passes straight through the purifier (BPDA). AutoAttack was not designed for defences that
optimise at inference, so its result is an upper bound on robustness; `soap evaluate --suite full` attacks the purifier.
"""

import pyautoattack

import soap


def main(n: int = 50, eps: float = 0.2, attacks: tuple[str, ...] = ("apgd-ce", "square")) -> dict[str, float]:
    """Return the accuracy of the defence, on clean images and under AutoAttack."""
    model, digits = soap.load("mnist-fcn-dr"), soap.data.load("mnist-mini").take(n)
    defence = soap.Defence(model, soap.SOAP(model))
    attack = pyautoattack.AutoAttack(defence, eps=eps, version="custom", attacks=list(attacks), seed=0)
    x_adv, _ = attack.run_standard_evaluation(digits.x, digits.y, batch_size=n)
    correct = {name: defence(x).argmax(1) == digits.y for name, x in (("clean", digits.x), ("attacked", x_adv))}
    return {name: hits.float().mean().item() for name, hits in correct.items()}


if __name__ == "__main__":
    print(main())
