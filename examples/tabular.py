"""Purify tabular data: scikit-learn's breast-cancer data set, two classes.

    pip install scikit-learn
    python examples/tabular.py

The auxiliary task is to rebuild the sample from the network's features, as the paper's conclusion suggests. Features
are scaled to [0, 1], the range of attacks and purifiers. The gain is small: a sample moved towards the other class soon
resembles that class, and little information is left to rebuild it.

Not every change of a row gives a row that can exist. Here the mean texture is stored as one of three grades, the mean
number of concave points in 16 levels, and the mean radius is taken as known. An attack that ignores this leaves the
valid rows; `Constraints` keeps the results of attack and purifier valid.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler
from torch import nn

import soap
from soap.constraints import ConstrainedAttack, ConstrainedPurifier, Constraints
from soap.training import as_dataset

RADIUS, TEXTURE, CONCAVE_POINTS, LEVELS = 0, 1, 7, 16
GRADES = (29, 30, 31)
CONSTRAINTS = Constraints(
    immutable=(RADIUS,),
    one_hot=(GRADES,),
    integer={CONCAVE_POINTS - 1: 1 / (LEVELS - 1)},  # one column less: the texture is in the grades
)


def with_grades_and_levels(x: np.ndarray) -> np.ndarray:
    """Return rows in [0, 1] with the texture as three grades in the last columns and the concave points in levels."""
    grades = np.eye(3)[np.digitize(x[:, TEXTURE], (0.25, 0.5))]
    x[:, CONCAVE_POINTS] = np.round(x[:, CONCAVE_POINTS] * (LEVELS - 1)) / (LEVELS - 1)
    return np.concatenate([np.delete(x, TEXTURE, axis=1), grades], axis=1)


def main(eps: float = 0.1, epochs: int = 60) -> dict[str, float]:
    """Return test accuracy, clean and attacked, without and with purification, and the shares of valid rows."""
    table = load_breast_cancer()
    x, x_test, y, y_test = train_test_split(table.data, table.target, test_size=0.3, random_state=0)
    scale = MinMaxScaler(clip=True).fit(x)  # test values outside the training range are clipped
    rows, test_rows = (with_grades_and_levels(scale.transform(part)) for part in (x, x_test))
    train = as_dataset(rows, y, classes=2)
    test = as_dataset(test_rows, y_test, classes=2, split="test")
    features = rows.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    model = soap.wrap(network, "reconstruction", shape=(features,), noise=0.1, name="breast-cancer")
    with tempfile.TemporaryDirectory() as folder:
        soap.fit(model, train, out=Path(folder), epochs=epochs, lr=0.05, batch_size=32, warmup_epochs=3)
    model.purification = soap.tune(model, train, eps, limit=200).purification
    attack = soap.attacks.PGD(eps=eps, step_size=eps / 4, steps=20)
    attacks = {
        "clean": soap.evaluation.Clean(),
        "attacked": attack,
        "attacked validly": ConstrainedAttack(attack=attack, constraints=CONSTRAINTS),
    }
    purifier = ConstrainedPurifier(soap.SOAP(model), CONSTRAINTS)
    measured = {}
    for name, one in attacks.items():
        valid = name != "attacked"  # the constrained purifier takes valid rows only
        found = soap.evaluation.evaluate_transfer(model, test, {name: one}, [purifier if valid else soap.SOAP(model)])
        measured |= {f"{name}, {'purified' if row.defence.purifies else 'bare'}": row.accuracy for row in found}
    for name, one in attacks.items():
        x_adv = one(model, test.x, test.y) if name != "clean" else test.x
        measured[f"{name}, valid rows"] = float(CONSTRAINTS.feasible(x_adv, test.x).float().mean())
    purified = purifier(attacks["attacked validly"](model, test.x, test.y)).x
    measured["purified, valid rows"] = float(CONSTRAINTS.feasible(purified, test.x).float().mean())
    return measured


def words(accuracy: dict[str, float]) -> str:
    """Return the accuracies and whether purification helps."""
    lines = [f"{name:28}{share:7.1%}" for name, share in accuracy.items()]
    won, lost = (100 * (accuracy[f"{kind}, purified"] - accuracy[f"{kind}, bare"]) for kind in ("attacked", "clean"))
    verdict = "helps" if won > 0 and won + lost > 0 else "does not help"
    lines.append(f"Purification {verdict} here: {won:+.1f} points under attack, {lost:+.1f} on clean samples.")
    lines.append("The attack did not target the purifier; an adaptive attack is stronger.")
    return "\n".join(lines)


if __name__ == "__main__":
    print(words(main()))
