"""The user's own attacks, the classifier's own worst case, and runs with less effort than the defaults."""

from dataclasses import dataclass

import pytest
import torch
from further_flaws import Blur
from small_nets import digits, linear
from torch import Tensor, nn

import soap
from soap.attacks import Attack
from soap.defence import Defence
from soap.evaluation.verdict import WARNED

EFFORT = {"eps": 0.1, "steps": 3, "queries": 10, "batch_size": 20}


@dataclass(frozen=True, kw_only=True, repr=False)
class Shift(Attack):
    """Darken or brighten all pixels; whatever the model says."""

    by: float

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (x + self.by).clamp(0, 1)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    defence = Defence(linear(), Blur(), name="blurred")
    out = tmp_path_factory.mktemp("extra") / "run"
    return soap.evaluate(defence, digits(20), suite="quick", out=out, extra_attacks=[Shift(by=0.1)], **EFFORT)


def test_an_extra_attack_is_a_protocol_with_rows(report):
    line = report.summary.protocol("extra")
    defence, data = Defence(linear(), Blur(), name="blurred"), digits(20)
    clean = defence.labels(data.x) == data.y
    shifted = defence.labels((data.x + 0.1).clamp(0, 1)) == data.y
    assert line.defended.tolist() == (clean & shifted).tolist()
    row = next(row for row in report.rows if row.attack.name == "extra" and row.attack.against is None)
    assert row.attack.steps[0].name == "Shift"
    assert row.attack.steps[0].settings == {"by": 0.1}
    assert row.attack.steps[0].rule == "exact"  # the strongest rule of a differentiable purifier


def test_a_run_with_extra_attacks_resumes_and_refuses_others(report):
    defence, out = Defence(linear(), Blur(), name="blurred"), report.folder.path
    options = {"suite": "quick", "out": out, **EFFORT}
    again = soap.evaluate(defence, digits(20), extra_attacks=[Shift(by=0.1)], **options)
    assert again.summary.fingerprints == report.summary.fingerprints
    with pytest.raises(soap.InputError, match="another run: its attempts"):
        soap.evaluate(defence, digits(20), extra_attacks=[Shift(by=0.05)], **options)


def test_the_quick_suite_uses_the_strongest_rule_and_square(report):
    done = [line.protocol for line in report.summary.protocols]
    assert done == ["noise", "transfer", "exact", "square", "classifier", "extra"]
    plan = report.folder.plan()
    assert plan["exact"] is True
    assert "differences" in plan["gradient"]


def test_the_classifier_s_own_worst_case_is_no_better_than_its_own_evaluation(report, tmp_path):
    bare = soap.evaluate(Defence(linear(), name="bare"), digits(20), suite="quick", out=tmp_path / "bare", **EFFORT)
    assert int(report.summary.classifier_worst.sum()) <= bare.summary.worst.correct
    own = [row for row in report.rows if row.attack.name == "worst" and not row.defence.purifies]
    assert [row.correct for row in own if row.attack.against is None] == [int(report.summary.classifier_worst.sum())]
    assert len(own) == 2  # the other is that on the points made against the defence


def test_a_short_run_is_at_best_warned_and_says_why(tmp_path):
    report = soap.evaluate(
        Defence(linear(), name="linear"), digits(5), suite="noise", eps=0.1, out=tmp_path, steps=3, queries=5
    )
    assert report.verdict.name == WARNED
    assert "images 5 of 100" in str(report.verdict)


def test_the_verdict_contains_its_word_and_its_first_reason(report):
    assert str(report.verdict).startswith(report.verdict.name)
    assert report.verdict.reasons[0] in str(report.verdict)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_other_norms(norm, tmp_path):
    defence = Defence(linear(), Blur(), name="blurred")
    options = {**EFFORT, "eps": 2.0 if norm == "l2" else 10.0}
    report = soap.evaluate(defence, digits(10), suite="quick", norm=norm, out=tmp_path, **options)
    done = {line.protocol for line in report.summary.protocols}
    assert {"transfer", "exact", "classifier"} <= done
    assert ("square" in done) == (norm == "l2")
    assert report.findings[0].state == "PASS", report.findings[0]
    assert torch.is_grad_enabled()
