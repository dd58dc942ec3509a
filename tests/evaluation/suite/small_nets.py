"""Networks on small digits, trained in closed form, and a call that judges them by a suite."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import soap
from soap.attacks import APGD, Attack
from soap.data import Dataset
from soap.defence import Defence
from soap.evaluation.attempts import run_attempts
from soap.evaluation.checks import (
    CHECKS,
    FAIL,
    MEASUREMENTS,
    WARN,
    Finding,
    Measurement,
    judge_checks,
    measurements_of,
    run_measurements,
)
from soap.evaluation.plan import NOT_PROBED, Attempt, PlannedRun, Threat, plan_attempts
from soap.evaluation.protocols import DEFAULT_EFFORT
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.summary import Summary
from soap.gradient_rules import GradientProbe

THREAT = Threat(eps=0.02)
BY_NAME = {one.fact: one for one in MEASUREMENTS}


@cache
def digits(n: int = 40) -> Dataset:
    return soap.data.load("mnist-mini").take(n)


def ridge(features: Tensor, y: Tensor, strength: float = 10.0) -> nn.Linear:
    """The linear layer of least squared error on one-hot labels, scaled up to logits."""
    wanted = 20 * nn.functional.one_hot(y, 10).double() - 2
    with_one = torch.cat([features, torch.ones(len(features), 1)], 1).double()
    weights = torch.linalg.solve(with_one.T @ with_one + strength * torch.eye(with_one.shape[1]), with_one.T @ wanted)
    layer = nn.Linear(features.shape[1], 10)
    layer.weight.data, layer.bias.data = weights[:-1].T.float().contiguous(), weights[-1].float()
    return layer


@cache
def hidden(scale: float = 1.0) -> nn.Linear:
    """A random first layer."""
    layer = nn.Linear(784, 200)
    generator = torch.Generator().manual_seed(0)
    layer.weight.data = scale * torch.randn(200, 784, generator=generator) / 28
    layer.bias.data = scale * 0.3 * torch.randn(200, generator=generator)
    return layer


def trained(*before: nn.Module) -> nn.Sequential:
    """Fixed layers and a last one that is fitted to 3,000 training digits."""
    train = soap.data.load("mnist-mini", "train").take(3000)
    body = nn.Sequential(nn.Flatten(), *before)
    with torch.no_grad():
        features = body(train.x)
    return nn.Sequential(*body, ridge(features, train.y)).eval()


@cache
def linear() -> nn.Sequential:
    return trained()


@cache
def mlp() -> nn.Sequential:
    return trained(hidden(), nn.ReLU())


@cache
def wavy() -> nn.Sequential:
    """A network with so much curvature that an attack needs more than one step."""
    return trained(hidden(3.0), nn.Tanh())


@dataclass(frozen=True)
class Judged:
    folder: RunFolder
    data: Dataset
    summary: Summary

    def findings(self, without: frozenset[int] = frozenset()) -> list[Finding]:
        found = judge_checks(self.folder, self.summary)
        return [finding for finding in found if finding.number not in without]

    def flagged(self, without: frozenset[int] = frozenset()) -> dict[int, str]:
        """State and measurement of the checks that warn or fail; check 17 warns of every run as small as these."""
        found = self.findings(without | {17})
        return {f.number: f"{f.state}: {f.measured}" for f in found if f.state in (WARN, FAIL)}


def judge(
    defence: Defence,
    out: Path,
    *,
    planned: Sequence[Attempt] | None = None,
    measurements: Sequence[Measurement] | None = None,
    suite: str = "quick",
    data: Dataset | None = None,
    threat: Threat = THREAT,
    probe: GradientProbe = NOT_PROBED,
    batch_size: int = 25,
    headline: bool = False,
) -> Judged:
    """Attempts, then measurements (the suite's by default). probe: of `Defence.probe`."""
    data = data or digits()
    if planned is None:
        planned = plan_attempts(defence, threat, suite, probe=probe, effort=DEFAULT_EFFORT.changed(steps=5, queries=40))
    run = PlannedRun(
        defence=defence,
        data=data,
        threat=threat,
        suite=suite,
        attempts=list(planned),
        probe=probe,
        batch_size=batch_size,
        draws=8,
        headline=headline,
    )
    folder = RunFolder(out)
    summary = run_attempts(run, folder)
    assert summary is not None
    assert run_measurements(run, folder, summary, measurements=measurements, max_images=30)
    return Judged(folder, data, summary)


def quick_and(*checks: int) -> tuple[Measurement, ...]:
    """The measurements of the quick suite, and those of further checks."""
    return (*measurements_of("quick"), *(one for number in checks for one in CHECKS[number].measurements))


def judged(net: nn.Module, out: Path, *names: str, attack: Attack | None = None, threat: Threat = THREAT) -> Judged:
    """One attack on the net, and the named measurements."""
    attack = attack or APGD(eps=threat.eps, norm=threat.norm, steps=4)
    return judge(
        Defence.of_module(net, name="net"), out,
        planned=[Attempt(protocol="transfer", name="the attack", attack=attack, rule="bare")],
        measurements=[BY_NAME[name] for name in names], threat=threat,
    )  # fmt: skip


class Changed(nn.Module):
    """The linear net after `before`."""

    def __init__(self, before: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.before = linear(), before

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.before(x))
