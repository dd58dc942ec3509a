"""Networks without a flaw: no check fails."""

import numpy as np
import pytest
import torch
from small_nets import digits, judge, linear, mlp
from torch import Tensor, nn

import soap
from soap.defence import Defence
from soap.evaluation.checks import FAIL, MEASUREMENTS, NOT_RUN, PASS
from soap.evaluation.plan import plan_attempts
from soap.evaluation.protocols import DEFAULT_EFFORT, Effort, Threat
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.verdict import PASSED, WARNED, headline, missing_protocols
from soap.evaluation.verdict import judge as judge_verdict

SOUND = {
    "linear": lambda: Defence.of_module(linear(), name="linear"),
    "mlp": lambda: Defence.of_module(mlp(), name="mlp"),
    "plain": lambda: Defence(soap.load("mnist-fcn-no-def")),
    "adversarially trained": lambda: Defence(soap.load("mnist-fcn-pgd-at")),
    "randomised smoothing": lambda: Defence(linear(), GaussianNoise(), name="smoothing"),
    "view averaging": lambda: Defence.of_module(ViewAverage(), name="views"),
    "autoencoder": lambda: Defence(mlp(), linear_autoencoder(), name="autoencoder"),
}


PROTOCOLS_TRIED = ("noise", "transfer", "straight-through", "exact", "surrogate", "substitute", "square", "decision")
PROTOCOLS_TRIED += ("classifier",)


@pytest.mark.parametrize("name", SOUND)
def test_no_check_fails(name, tmp_path):
    defence, threat, data = SOUND[name](), Threat(eps=0.05), digits()
    probe = defence.probe(data.x)
    made = plan_attempts(
        defence, threat, "full", probe=probe, effort=Effort(steps=6, queries=50, restarts=2, draws=(2, 8))
    )
    planned = [one for one in made if one.protocol in PROTOCOLS_TRIED and one.name != "autoattack"]
    run = judge(defence, tmp_path, planned=planned, measurements=MEASUREMENTS, suite="full", threat=threat, probe=probe)
    states = {finding.number: finding.state for finding in run.findings()}
    assert list(states) == list(range(1, 23))
    assert FAIL not in states.values(), run.flagged()
    assert [number for number, state in states.items() if state == NOT_RUN] == ([16] if probe.random else [])
    assert missing_protocols(run.summary) == ["autoattack"]
    assert judge_verdict(run.findings(), run.summary).name == WARNED
    if defence.purifies:
        assert probe.exact
        assert run.summary.protocol("exact") is not None


class GaussianNoise(nn.Module):
    """The noise of randomised smoothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


class ViewAverage(nn.Module):
    """The mean of the logits over shifted images."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor) -> Tensor:
        shifted = [x.roll((down, right), (2, 3)) for down in (-1, 0, 1) for right in (-1, 0, 1)]
        return torch.stack([self.net(view) for view in shifted]).mean(0)


def linear_autoencoder(size: int = 60) -> nn.Module:
    """The best linear autoencoder of digits: the projection onto their principal components."""
    x = soap.data.load("mnist-mini", "train").take(1000).x.flatten(1)
    mean = x.mean(0)
    _, _, components = torch.linalg.svd(x - mean, full_matrices=False)
    encode, decode = nn.Linear(784, size), nn.Linear(size, 784)
    encode.weight.data, encode.bias.data = components[:size], -components[:size] @ mean
    decode.weight.data, decode.bias.data = components[:size].T.contiguous(), mean
    return nn.Sequential(nn.Flatten(), encode, decode, nn.Unflatten(1, (1, 28, 28))).requires_grad_(False)


def test_a_complete_suite_that_passes_every_check_passes(tmp_path, monkeypatch):
    """A radius at which APGD breaks every image, so that AutoAttack has nothing left to do."""
    pytest.importorskip("pyautoattack")
    monkeypatch.setenv("SOAP_COMMIT", "0" * 40)
    run = judge(
        Defence.of_module(linear(), name="linear"), tmp_path, suite="full", threat=Threat(eps=0.2), data=digits(20)
    )
    assert run.flagged() == {}
    found = judge_verdict(run.findings(), run.summary)
    assert found.name == WARNED  # because the run is small, and for no other reason
    assert [reason[:8] for reason in found.reasons] == ["check 17"]
    rest = [one for one in run.findings() if one.number != 17]
    assert judge_verdict(rest, run.summary).name == PASSED
    assert headline(run.summary, judge_verdict(rest, run.summary)) == (
        "worst 0.0 % [0.0, 16.1] of 20 images: CHECKS PASSED"
    )


class Smoother(nn.Module):
    """A user's purifier: a mean over neighbours, without iterates."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x, 3, stride=1, padding=1)


def test_a_purifier_without_iterates_is_attacked_straight_through(tmp_path):
    defence = Defence(linear(), Smoother(), name="smoothed")
    threat = Threat(eps=0.05)
    planned = [
        one
        for suite in ("noise", "transfer", "straight-through")
        for one in plan_attempts(defence, threat, suite, effort=DEFAULT_EFFORT.changed(steps=5))
    ]
    run = judge(defence, tmp_path, planned=planned, threat=threat)
    said = {finding.number: finding for finding in run.findings()}
    assert said[4].state == PASS
    assert said[4].meaning.endswith("straight-through attacked through it.")
    assert "BPDA" in said[6].measured
    assert missing_protocols(run.summary) == ["surrogate", "autoattack", "substitute", "square", "decision"]
    assert said[20].state == FAIL  # the purifier is differentiable


def test_a_soap_model_under_the_quick_suite(tmp_path):
    model = soap.load("mnist-fcn-dr")
    defence, data = Defence(model, soap.SOAP(model)), digits(10)
    planned = plan_attempts(defence, Threat(eps=0.3), "quick", effort=DEFAULT_EFFORT.changed(steps=3, queries=40))
    run = judge(defence, tmp_path, planned=planned, threat=Threat(eps=0.3), data=data)
    said = {finding.number: finding for finding in run.findings()}
    assert all(said[number].state == PASS for number in (1, 2, 3, 4, 5, 6, 7, 12, 14, 15, 20)), run.flagged()
    assert [number for number in said if said[number].state == NOT_RUN] == [8, 9, 10, 11, 16, 18, 21, 22]
    assert "a purifier; 5 gradients" in said[4].measured
    assert "17.0 forward and 11.0 backward passes" in said[15].measured  # 11 gradients, 5 further losses, 1 answer
    found = judge_verdict(run.findings(), run.summary)
    assert found.name == WARNED
    assert {"straight-through was not run", "unrolled was not run", "autoattack was not run"} <= set(found.reasons)


def test_transfer_alone_on_a_purifier_is_an_upper_bound_only(tmp_path):
    model = soap.load("mnist-fcn-dr")
    defence = Defence(model, soap.SOAP(model))
    threat = Threat(eps=0.3)
    planned = plan_attempts(defence, threat, "transfer", effort=DEFAULT_EFFORT.changed(steps=2))[:1]
    run = judge(
        defence,
        tmp_path,
        planned=planned,
        measurements=MEASUREMENTS[2:3],
        suite="transfer",
        threat=threat,
        data=digits(10),
    )
    assert judge_verdict(run.findings(), run.summary).name == WARNED
    assert 4 in run.flagged()


def test_a_run_resumes_its_measurements(tmp_path):
    defence = Defence.of_module(linear(), name="linear")
    first = judge(defence, tmp_path / "a", measurements=MEASUREMENTS[:3])
    once = judge(defence, tmp_path / "b")
    kept = (first.folder.path / "facts" / "outputs.json").stat().st_mtime_ns
    again = judge(defence, tmp_path / "a")
    assert (first.folder.path / "facts" / "outputs.json").stat().st_mtime_ns == kept
    for one in MEASUREMENTS:
        if one.fact != "cost":  # it holds seconds
            assert again.folder.read_fact(one.fact) == once.folder.read_fact(one.fact)


def test_an_error_of_the_model_becomes_a_finding(tmp_path):
    clean = digits().x

    class Moody(nn.Module):
        """Accepts attacked images, and raises an error for the few clean images of a measurement."""

        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 16 and any(torch.equal(x[0], one) for one in clean):
                raise RuntimeError("sixteen is too few")
            return self.net(x)

    run = judge(Defence.of_module(Moody(), name="moody"), tmp_path)
    flagged = run.flagged()
    assert flagged[4] == "WARN: could not be measured"
    said = next(finding.meaning for finding in run.findings() if finding.number == 4)
    assert said == "The measurement raised an error: RuntimeError: sixteen is too few"


def test_nothing_is_measured_where_no_image_is_classified_correctly(tmp_path):
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def forward(self, x: Tensor) -> Tensor:
            return -self.net(x)

    run = judge(Defence.of_module(Wrong(), name="wrong"), tmp_path)
    assert run.summary.clean.accuracy == 0
    assert isinstance(run.folder, RunFolder)
    states = {finding.number: finding.state for finding in run.findings()}
    assert states[5] == NOT_RUN
    assert not np.any(run.summary.worst.defended)


def test_a_run_restores_the_global_random_state_and_weights(tmp_path):
    net = linear()
    before = torch.get_rng_state(), [weight.clone() for weight in net.parameters()]
    judge(Defence.of_module(net, name="linear"), tmp_path, measurements=MEASUREMENTS, data=digits(10))
    assert torch.equal(before[0], torch.get_rng_state())
    assert all(torch.equal(old, new) for old, new in zip(before[1], net.parameters(), strict=True))
