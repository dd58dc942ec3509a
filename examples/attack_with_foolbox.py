"""Attack a Defence with foolbox: for other libraries it is one module from images to logits.

    python examples/attack_with_foolbox.py

The gradient of a Defence passes straight through the purifier (BPDA), so gradient attacks work on it. One attack gives
only an upper bound on robustness; `soap evaluate --suite full` runs many attacks and checks them.
"""

import foolbox

import soap


def main(n: int = 50, eps: float = 0.2, steps: int = 20) -> dict[str, float]:
    """Return the accuracy of the defence, on clean images and under foolbox's PGD."""
    model, digits = soap.load("mnist-fcn-dr"), soap.data.load("mnist-mini").take(n)
    defence = soap.Defence(model, soap.SOAP(model))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=eps / 4, steps=steps)
    x_adv = attack.run(foolbox.PyTorchModel(defence, bounds=(0, 1)), digits.x, digits.y, epsilon=eps)
    correct = {name: defence(x).argmax(1) == digits.y for name, x in (("clean", digits.x), ("attacked", x_adv))}
    return {name: hits.float().mean().item() for name, hits in correct.items()}


if __name__ == "__main__":
    print(main())
