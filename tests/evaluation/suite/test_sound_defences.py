"""Honest networks, judged by every check: none fails."""

import numpy as np
import pytest
import torch
from small_nets import digits, judge, linear, mlp
from torch import Tensor, nn

import soap
from soap.evaluation.adaptive.attempts import Threat, attempts
from soap.evaluation.adaptive.checks import FAIL, NOT_RUN, PASS
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.probes import PROBES
from soap.evaluation.adaptive.target import Target
from soap.evaluation.adaptive.verdict import TRUSTED, UPPER, headline, missing_protocols, verdict

HONEST = {
    "linear": lambda: Target.of_module(linear(), name="linear"),
    "mlp": lambda: Target.of_module(mlp(), name="mlp"),
    "mnist-fcn-no-def": lambda: Target.of_model(soap.load("mnist-fcn-no-def")),
}


@pytest.mark.parametrize("name", HONEST)
def test_no_check_fails(name, tmp_path):
    target, threat = HONEST[name](), Threat(eps=0.05)
    planned = [
        one for suite in ("noise", "transfer", "black-box")
        for one in attempts(target, threat, suite, steps=6, queries=50)
    ]  # fmt: skip
    run = judge(target, tmp_path, planned=planned, probes=PROBES, suite="full", threat=threat)
    states = {finding.number: finding.state for finding in run.findings()}
    assert list(states) == list(range(1, 20))
    assert FAIL not in states.values(), run.flagged()
    assert NOT_RUN not in states.values()
    assert missing_protocols(run.summary) == ["autoattack"]
    assert verdict(run.findings(), run.summary).name == UPPER


def test_a_complete_suite_without_objection_is_trusted(tmp_path, monkeypatch):
    """A radius at which APGD breaks every image, so that AutoAttack has nothing left to do."""
    pytest.importorskip("pyautoattack")
    monkeypatch.setenv("SOAP_COMMIT", "0" * 40)
    run = judge(
        Target.of_module(linear(), name="linear"), tmp_path, suite="full", threat=Threat(eps=0.2), data=digits(20)
    )
    assert run.flagged() == {}
    spoken = verdict(run.findings(), run.summary)
    assert (spoken.name, spoken.reasons) == (TRUSTED, ())
    assert headline(run.summary, spoken) == "worst 0.0 % [0.0, 16.1] of 20 images: TRUSTED BOUND"


class Smoother(nn.Module):
    """Somebody's purifier: a mean over neighbours, which tells nothing of its steps."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x, 3, stride=1, padding=1)


def test_somebodys_purifier_is_judged_by_what_it_allows(tmp_path):
    target = Target.of_parts(linear(), Smoother(), name="smoothed")
    threat = Threat(eps=0.05)
    planned = [one for suite in ("noise", "transfer", "bpda") for one in attempts(target, threat, suite, steps=5)]
    run = judge(target, tmp_path, planned=planned, threat=threat)
    said = {finding.number: finding for finding in run.findings()}
    assert said[4].state == PASS
    assert said[4].said.endswith("bpda attacked it knowing that.")
    assert "BPDA" in said[6].figure
    assert missing_protocols(run.summary) == ["autoattack", "black-box"]


def test_a_soap_model_under_the_quick_suite(tmp_path):
    model = soap.load("mnist-fcn-dr")
    target, data = Target.of_model(model, soap.SOAP(model)), digits(10)
    planned = attempts(target, Threat(eps=0.3), "quick", steps=3)
    run = judge(target, tmp_path, planned=planned, threat=Threat(eps=0.3), data=data)
    said = {finding.number: finding for finding in run.findings()}
    assert all(said[number].state == PASS for number in (1, 2, 3, 4, 5, 6, 7, 12, 14, 15, 17)), run.flagged()
    assert [number for number in said if said[number].state == NOT_RUN] == [8, 9, 10, 11, 16, 18]
    assert "a purifier; 5 gradients" in said[4].figure
    assert "17.0 forward and 11.0 backward passes" in said[15].figure  # 11 gradients, 5 further losses, 1 answer
    spoken = verdict(run.findings(), run.summary)
    assert spoken.name == UPPER
    assert {"bpda was not run", "unrolled was not run", "autoattack was not run"} <= set(spoken.reasons)


def test_transfer_alone_on_a_purifier_is_an_upper_bound_only(tmp_path):
    model = soap.load("mnist-fcn-dr")
    target = Target.of_model(model, soap.SOAP(model))
    threat = Threat(eps=0.3)
    planned = attempts(target, threat, "transfer", steps=2)[:1]
    run = judge(target, tmp_path, planned=planned, probes=PROBES[2:3], suite="transfer", threat=threat, data=digits(10))
    assert verdict(run.findings(), run.summary).name == UPPER
    assert 4 in run.flagged()


def test_a_run_goes_on_where_it_stood(tmp_path):
    target = Target.of_module(linear(), name="linear")
    first = judge(target, tmp_path / "a", probes=PROBES[:3])
    once = judge(target, tmp_path / "b")
    kept = (first.folder.path / "facts" / "outputs.json").stat().st_mtime_ns
    again = judge(target, tmp_path / "a")
    assert (first.folder.path / "facts" / "outputs.json").stat().st_mtime_ns == kept
    for probe in PROBES:
        if probe.name != "cost":  # it holds seconds
            assert again.folder.fact(probe.name) == once.folder.fact(probe.name)


def test_a_model_that_raises_is_a_finding_not_a_crash(tmp_path):
    class Moody(nn.Module):
        """Answers whole batches, and refuses the few images of a probe."""

        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 16:
                raise RuntimeError("sixteen is too few")
            return self.net(x)

    run = judge(Target.of_module(Moody(), name="moody"), tmp_path)
    flagged = run.flagged()
    assert flagged[4] == "WARN: could not be measured"
    said = next(finding.said for finding in run.findings() if finding.number == 4)
    assert said == "The probe met an error: RuntimeError: sixteen is too few"


def test_a_network_that_is_never_right_has_nothing_to_probe(tmp_path):
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def forward(self, x: Tensor) -> Tensor:
            return -self.net(x)

    run = judge(Target.of_module(Wrong(), name="wrong"), tmp_path)
    assert run.summary.clean.accuracy == 0
    assert isinstance(run.folder, RunFolder)
    states = {finding.number: finding.state for finding in run.findings()}
    assert states[5] == NOT_RUN
    assert not np.any(run.summary.worst.defended)


def test_global_random_state_and_weights_stay_as_they_were(tmp_path):
    net = linear()
    before = torch.get_rng_state(), [weight.clone() for weight in net.parameters()]
    judge(Target.of_module(net, name="linear"), tmp_path, probes=PROBES, data=digits(10))
    assert torch.equal(before[0], torch.get_rng_state())
    assert all(torch.equal(old, new) for old, new in zip(before[1], net.parameters(), strict=True))
