"""Attack a defended network with foolbox: to other libraries it is one module from images to logits.

    python examples/attack_with_foolbox.py

Its gradient takes the purifier for the identity (BPDA), so gradient attacks work on it. One attack gives an upper
bound on robustness only; `soap evaluate --suite full` makes many and checks them.
"""

import foolbox

import soap


def main(n: int = 50, eps: float = 0.2, steps: int = 20) -> dict[str, float]:
    """Accuracy of the network behind its purifier, clean and under foolbox's PGD."""
    model, digits = soap.load("mnist-fcn-dr"), soap.data.load("mnist-mini").take(n)
    robust = soap.Defence(model, soap.SOAP(model))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=eps / 4, steps=steps)
    x_adv = attack.run(foolbox.PyTorchModel(robust, bounds=(0, 1)), digits.x, digits.y, epsilon=eps)
    right = {name: robust(x).argmax(1) == digits.y for name, x in (("clean", digits.x), ("attacked", x_adv))}
    return {name: hits.float().mean().item() for name, hits in right.items()}


if __name__ == "__main__":
    print(main())
