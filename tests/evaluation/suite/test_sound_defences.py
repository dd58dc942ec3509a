"""Networks without a flaw: no check fails."""

import numpy as np
import pytest
import torch
from small_nets import digits, judge, linear, mlp
from torch import Tensor, nn

import soap
from soap.defence import Defence
from soap.evaluation.checks import FAIL, MEASUREMENTS, NOT_RUN, PASS
from soap.evaluation.plan import Threat, plan_attempts
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.verdict import TRUSTED, UPPER, headline, missing_protocols
from soap.evaluation.verdict import judge as judge_verdict

SOUND = {
    "linear": lambda: Defence.of_module(linear(), name="linear"),
    "mlp": lambda: Defence.of_module(mlp(), name="mlp"),
    "mnist-fcn-no-def": lambda: Defence(soap.load("mnist-fcn-no-def")),
}


@pytest.mark.parametrize("name", SOUND)
def test_no_check_fails(name, tmp_path):
    defence, threat = SOUND[name](), Threat(eps=0.05)
    planned = [
        one for suite in ("noise", "transfer", "black-box")
        for one in plan_attempts(defence, threat, suite, steps=6, queries=50)
    ]  # fmt: skip
    run = judge(defence, tmp_path, planned=planned, measurements=MEASUREMENTS, suite="full", threat=threat)
    states = {finding.number: finding.state for finding in run.findings()}
    assert list(states) == list(range(1, 20))
    assert FAIL not in states.values(), run.flagged()
    assert NOT_RUN not in states.values()
    assert missing_protocols(run.summary) == ["autoattack"]
    assert judge_verdict(run.findings(), run.summary).name == UPPER


def test_a_complete_suite_that_passes_every_check_is_trusted(tmp_path, monkeypatch):
    """A radius at which APGD breaks every image, so that AutoAttack has nothing left to do."""
    pytest.importorskip("pyautoattack")
    monkeypatch.setenv("SOAP_COMMIT", "0" * 40)
    run = judge(
        Defence.of_module(linear(), name="linear"), tmp_path, suite="full", threat=Threat(eps=0.2), data=digits(20)
    )
    assert run.flagged() == {}
    found = judge_verdict(run.findings(), run.summary)
    assert (found.name, found.reasons) == (TRUSTED, ())
    assert headline(run.summary, found) == "worst 0.0 % [0.0, 16.1] of 20 images: TRUSTED BOUND"


class Smoother(nn.Module):
    """A user's purifier: a mean over neighbours, without iterates."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x, 3, stride=1, padding=1)


def test_a_purifier_without_iterates_is_attacked_by_bpda(tmp_path):
    defence = Defence(linear(), Smoother(), name="smoothed")
    threat = Threat(eps=0.05)
    planned = [one for suite in ("noise", "transfer", "bpda") for one in plan_attempts(defence, threat, suite, steps=5)]
    run = judge(defence, tmp_path, planned=planned, threat=threat)
    said = {finding.number: finding for finding in run.findings()}
    assert said[4].state == PASS
    assert said[4].meaning.endswith("bpda attacked through it.")
    assert "BPDA" in said[6].measured
    assert missing_protocols(run.summary) == ["autoattack", "black-box"]


def test_a_soap_model_under_the_quick_suite(tmp_path):
    model = soap.load("mnist-fcn-dr")
    defence, data = Defence(model, soap.SOAP(model)), digits(10)
    planned = plan_attempts(defence, Threat(eps=0.3), "quick", steps=3)
    run = judge(defence, tmp_path, planned=planned, threat=Threat(eps=0.3), data=data)
    said = {finding.number: finding for finding in run.findings()}
    assert all(said[number].state == PASS for number in (1, 2, 3, 4, 5, 6, 7, 12, 14, 15, 17)), run.flagged()
    assert [number for number in said if said[number].state == NOT_RUN] == [8, 9, 10, 11, 16, 18]
    assert "a purifier; 5 gradients" in said[4].measured
    assert "17.0 forward and 11.0 backward passes" in said[15].measured  # 11 gradients, 5 further losses, 1 answer
    found = judge_verdict(run.findings(), run.summary)
    assert found.name == UPPER
    assert {"bpda was not run", "unrolled was not run", "autoattack was not run"} <= set(found.reasons)


def test_transfer_alone_on_a_purifier_is_an_upper_bound_only(tmp_path):
    model = soap.load("mnist-fcn-dr")
    defence = Defence(model, soap.SOAP(model))
    threat = Threat(eps=0.3)
    planned = plan_attempts(defence, threat, "transfer", steps=2)[:1]
    run = judge(
        defence,
        tmp_path,
        planned=planned,
        measurements=MEASUREMENTS[2:3],
        suite="transfer",
        threat=threat,
        data=digits(10),
    )
    assert judge_verdict(run.findings(), run.summary).name == UPPER
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
    class Moody(nn.Module):
        """Accepts whole batches, and raises an error for the few images of a measurement."""

        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 16:
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
