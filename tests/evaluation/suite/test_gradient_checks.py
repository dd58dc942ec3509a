"""The gradient checks on models with correct, wrong and missing gradients."""

import torch
from small_nets import Changed, judged, linear
from torch import Tensor, nn

from soap.evaluation.checks.gradients import compare_slopes


def test_a_straight_through_gradient_is_distinguished_from_the_exact_one(tmp_path):
    def squashed(x: Tensor) -> Tensor:
        return x + ((3 * x).tanh() - x).detach()

    true = judged(Changed(torch.tanh), tmp_path / "true", "optimisation", "differences")
    false = judged(Changed(squashed), tmp_path / "false", "optimisation", "differences")
    assert true.folder.read_fact("differences")["error"] < 1e-6
    assert true.folder.read_fact("differences")["directions"] == 32
    assert false.folder.read_fact("differences")["error"] > 0.1
    assert 6 in false.flagged()
    assert 6 not in true.flagged()


def test_a_model_without_double_precision_is_compared_in_single(tmp_path):
    fixed = linear()[-1].weight.detach().clone()  # not a parameter: `double()` does not reach it
    net = Changed(lambda x: x.tanh())
    net.net = nn.Sequential(nn.Flatten(), nn.Module())
    net.net[1].forward = lambda x: x @ fixed.T
    net.scale = nn.Parameter(torch.ones(()))
    found = judged(net, tmp_path, "optimisation", "differences").folder.read_fact("differences")
    assert found["precision"] == "float32"
    assert found["error"] < 0.05


def test_gradients_that_are_not_finite_are_counted(tmp_path):
    run = judged(Changed(lambda x: (x - x.detach()).abs().sqrt() + x), tmp_path, "gradient")
    assert run.folder.read_fact("gradient")["attacked"]["not_finite"] == 30
    assert 5 in run.flagged()


def test_a_kink_near_the_point_does_not_count_as_a_wrong_gradient():
    """Regression: both central differences contain the kink, so it passed as smooth (seen on a ResNet)."""

    class Kinked(nn.Module):
        def forward(self, x):
            u = (x - 0.5).flatten(1).sum(1, keepdim=True)
            return torch.cat([torch.relu(u + 1e-9), -u], 1)

    x = torch.full((3, 1, 2, 2), 0.5, dtype=torch.float64)
    with_gradient, _, error = compare_slopes(Kinked(), x, torch.zeros(3, dtype=torch.int64), 0)
    assert (with_gradient, error) == (3, None)
    assert compare_slopes(Kinked(), x + 0.1, torch.zeros(3, dtype=torch.int64), 0)[2] < 1e-6
