"""tools/compare_libraries.py: its attacks reach the optimum of a linear model, rows are kept once, and the table."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from soap.bench import results
from soap.evaluation.verdict import INVALID

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import compare_libraries as compare
import libraries_table
import library_attacks

pytestmark = pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning")  # foolbox: old names of scipy

EPS = 0.02
FIXED_RADIUS = [library_attacks.foolbox_pgd, library_attacks.apgd_ce, library_attacks.apgd_dlr]
SMALLEST_RADIUS = [library_attacks.foolbox_fmn, library_attacks.foolbox_hop_skip_jump]


class NoisyLinear(nn.Module):
    """Linear logits of four classes; `noise` is added to the input in every call."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise
        self.linear = nn.Linear(16, 4)
        weight = torch.zeros(4, 16)
        weight[1] = torch.linspace(-1, 1, 16)
        self.linear.weight.data, self.linear.bias.data = weight, torch.tensor([0.0, 0.0, -9.0, -9.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear((x + self.noise * torch.randn_like(x)).flatten(1))
        return logits


def margins(model, x, y):
    """The margin of the true class; classes 0 and 1 alone matter."""
    return torch.where(y == 1, 1, -1) * model(x)[:, :2].diff(dim=1)[:, 0]


def broken_by_an_optimal_attack(model, x, y):
    """The margin falls by at most eps times the L1 norm of the weights."""
    return margins(model, x, y) < EPS * (model.linear.weight[1] - model.linear.weight[0]).abs().sum()


@pytest.fixture
def linear_problem():
    generator = torch.Generator().manual_seed(0)
    x = 0.3 + 0.4 * torch.rand(40, 1, 4, 4, generator=generator)  # far enough from 0 and 1 that the box does not bind
    model = NoisyLinear().eval().requires_grad_(False)
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("attack", FIXED_RADIUS)
@pytest.mark.parametrize("draws", [1, 4])
def test_gradient_attacks_break_what_can_be_broken(linear_problem, attack, draws):
    model, x, y = linear_problem
    model.noise = 0.001 if draws > 1 else 0.0
    made = attack(model, x, y, library_attacks.Budget(eps=EPS, steps=20, queries=0, draws=draws))
    assert (made - x).abs().max() <= EPS + 1e-6
    model.noise = 0.0
    broken, optimal = model(made).argmax(1) != y, broken_by_an_optimal_attack(model, x, y)
    assert 10 < optimal.sum() < 40
    # With noise, an image at the edge of what can be broken is one or the other.
    assert (broken != optimal).sum() <= (0 if draws == 1 else 2)


@pytest.mark.parametrize("attack", SMALLEST_RADIUS)
@pytest.mark.parametrize("draws", [1, 4])
def test_minimum_norm_attacks_break_most_of_what_can_be_broken(linear_problem, attack, draws):
    model, x, y = linear_problem
    model.noise = 0.001 if draws > 1 else 0.0
    made = attack(model, x, y, library_attacks.Budget(eps=EPS, steps=100, queries=1000, draws=draws))
    model.noise = 0.0
    # Such an attack ends at the decision boundary, which the noise moves by up to 0.01.
    broken = margins(model, made, y) < (0.01 if draws > 1 else 0.0)
    optimal = broken_by_an_optimal_attack(model, x, y)
    assert (made - x).abs().max() <= EPS + 1e-6
    assert (broken & ~optimal).sum() <= (0 if draws == 1 else 2)
    assert broken.sum() >= optimal.sum() / 2


def run(tmp_path, *arguments):
    return compare.main(
        [*arguments, "--data", "mnist-mini", "--device", "cpu", "--images", "6", "--steps", "3", "--queries", "20",
         "--draws", "2", "--results", str(tmp_path / "rows.jsonl"), "--runs", str(tmp_path / "runs")]
    )  # fmt: skip


def test_rows_of_a_deterministic_and_a_random_defence_are_made_once(tmp_path, capsys):
    only = [f"--only={name}" for name in ("views/none/*", "views/foolbox/LinfPGD", "smoothing/pyautoattack/APGD-CE")]
    assert run(tmp_path, *only, "--only=smoothing/none/*", "--only=smoothing/soap/noise") == 0
    rows = libraries_table.read(tmp_path / "rows.jsonl")
    assert [(row["defence"], row["library"], row["draws"]) for row in rows] == [
        ("views", "none", 1), ("views", "foolbox", 1), ("smoothing", "none", 20), ("smoothing", "pyautoattack", 20),
        ("smoothing", "soap", 20),
    ]  # fmt: skip
    assert all(0 <= count <= row["draws"] for row in rows for count in (*row["selecting"], *row["reporting"]))
    assert libraries_table.accuracy(rows[1]) < libraries_table.accuracy(rows[0])
    capsys.readouterr()
    assert run(tmp_path, *only) == 0
    assert capsys.readouterr().out.count("skipped, its row is in") == 3
    assert len(libraries_table.read(tmp_path / "rows.jsonl")) == 5


def test_a_missing_library_is_skipped(tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "art"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "art", None)
    assert run(tmp_path, "--only=views/art/PGD") == 0
    assert "install adversarial-robustness-toolbox" in capsys.readouterr().out
    assert libraries_table.read(tmp_path / "rows.jsonl") == []


def test_a_failed_attack_is_reported_and_the_others_run(tmp_path, capsys, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of patience")

    monkeypatch.setitem(library_attacks.ATTACKS["foolbox"], "LinfPGD", broken)
    assert run(tmp_path, "--only=views/foolbox/LinfPGD", "--only=views/foolbox/LInfFMN") == 1
    assert "out of patience" in capsys.readouterr().err
    assert [row["attack"] for row in libraries_table.read(tmp_path / "rows.jsonl")] == ["LInfFMN"]


def row(maker, attack, selecting, reporting, n=3):
    facts = {"eps": 0.2, "data_sha256": "d", "weights_sha256": "w", "library_version": "1", "seconds": 1.0}
    made = {"defence": "views", "library": maker, "attack": attack, "n": n, "draws": 10, "settings": {"steps": 5}}
    found = {"selecting": selecting, "reporting": reporting, "provenance": {"commit": "abc", "device": "cpu"}}
    return {"schema": libraries_table.SCHEMA, **facts, **made, **found}


def test_a_library_counts_by_the_worst_of_its_attacks_per_image(tmp_path):
    rows = [
        row("none", "clean", [10, 10, 5], [10, 10, 6]),
        row("foolbox", "a", [0, 10, 10], [1, 9, 9]),
        row("foolbox", "b", [5, 2, 10], [5, 3, 9]),
        row("soap", "full", [0, 0, 0], [0, 1, 0]),
    ]
    # Selected by image: a, b, and the clean image.
    assert libraries_table.accuracy(*rows[:3]) == pytest.approx((1 + 3 + 6) / 30)
    for one in rows:
        results.append(tmp_path / "rows.jsonl", one)
    table = libraries_table.table(libraries_table.read(tmp_path / "rows.jsonl"))
    line = next(line for line in table.splitlines() if line.startswith("| view average |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1].startswith("86.7 ")
    assert cells[2].startswith("33.3 ")
    assert cells[3:6] == ["not run", "not run", "33.3"]
    assert cells[6].startswith("**3.3 [")
    assert cells[6].endswith("], n = 3**")


def test_a_suite_run_of_which_a_check_failed_shows_no_accuracy():
    table = libraries_table.table(
        [row("none", "clean", [9], [9], n=1), row("soap", "full", [1], [1], n=1) | {"verdict": INVALID}]
    )
    assert "10.0" not in table
    assert f"| {libraries_table.ABSENT} | INVALID | 1 |" in table


def test_only_rows_of_the_same_images_are_compared():
    few, many = row("foolbox", "a", [0, 0], [0, 0], n=2), row("soap", "full", [10, 10, 10], [9, 9, 9])
    assert libraries_table.comparable([few, many]) == {"views": [many]}
