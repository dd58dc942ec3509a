"""Honest networks on small digits, trained in closed form, and the call that has a suite judge them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import soap
from soap.attacks import APGD, Attack
from soap.data import Dataset
from soap.evaluation.adaptive.attempts import Attempt, Threat, attempts
from soap.evaluation.adaptive.checks import FAIL, WARN, Finding, findings
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.probes import PROBES, Probe, of_suite, run_probes
from soap.evaluation.adaptive.suite import run_attempts
from soap.evaluation.adaptive.summary import Summary, summarise
from soap.evaluation.adaptive.target import Target

THREAT = Threat(eps=0.02)
BY_NAME = {probe.name: probe for probe in PROBES}


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
    """Curved enough that the first step of an attack is not its last word."""
    return trained(hidden(3.0), nn.Tanh())


@dataclass(frozen=True)
class Judged:
    folder: RunFolder
    data: Dataset
    summary: Summary

    def findings(self, without: frozenset[int] = frozenset()) -> list[Finding]:
        return findings(self.folder, self.data, without=without)

    def flagged(self, without: frozenset[int] = frozenset()) -> dict[int, str]:
        """State and figure of the checks that object."""
        return {f.number: f"{f.state}: {f.figure}" for f in self.findings(without) if f.state in (WARN, FAIL)}


def judge(
    target: Target,
    out: Path,
    *,
    planned: Sequence[Attempt] | None = None,
    probes: Sequence[Probe] | None = None,
    suite: str = "quick",
    data: Dataset | None = None,
    threat: Threat = THREAT,
) -> Judged:
    """Attempts, then probes; `probes` defaults to the suite's."""
    data = data or digits()
    planned = attempts(target, threat, suite, steps=5, queries=40) if planned is None else list(planned)
    folder = run_attempts(target, data, threat, planned, suite=suite, out=out, batch=25)
    assert folder is not None
    assert run_probes(target, data, threat, planned, folder, suite=suite, probes=probes, probe_n=30)
    return Judged(folder, data, summarise(folder, data))


def quick_and(*checks: int) -> tuple[Probe, ...]:
    """The probes of the quick suite, and those of further checks."""
    return (*of_suite("quick"), *(probe for probe in PROBES if probe.check in checks))


def judged(net: nn.Module, out: Path, *names: str, attack: Attack | None = None, threat: Threat = THREAT) -> Judged:
    """One attack on the net, and the named probes."""
    attack = attack or APGD(eps=threat.eps, norm=threat.norm, steps=4)
    return judge(
        Target.of_module(net, name="net"), out,
        planned=[Attempt(protocol="transfer", name="the attack", attack=attack, sight="bare")],
        probes=[BY_NAME[name] for name in names], threat=threat,
    )  # fmt: skip


class Changed(nn.Module):
    """The linear net after `before`."""

    def __init__(self, before: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.before = linear(), before

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.before(x))
