"""The headline mode: the worst case of the full suite from a cascade in which every image is broken once."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from flaws import Rounding
from run_content import content
from small_nets import digits, judge, linear, mlp
from test_sound_defences import linear_autoencoder

import soap
from soap.data import Dataset
from soap.data.dataset import make_dataset
from soap.defence import Defence
from soap.errors import FileError, InputError
from soap.evaluation import merge_runs, verify_run
from soap.evaluation.attempts import run_attempts
from soap.evaluation.cascade import HEADLINE_NOTE, ORDER_FACT, first_order, learned_order
from soap.evaluation.checks import FAIL, PASS, WARN
from soap.evaluation.plan import PlannedRun, plan_attempts
from soap.evaluation.protocols import CLASSIFIER, Effort, Threat
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.verdict import WARNED
from soap.report.run_text import run_notes

ON_THE_WHOLE_BATCH = ("autoattack", "substitute")
"""Attacks whose result for an image depends on the others: the two modes need not agree on them."""


def soap_fcn() -> Defence:
    model = soap.load("mnist-fcn-dr")
    return Defence(model, soap.SOAP(model, 0.1, steps=2))


DEFENCES = {
    "without a purifier": (lambda: Defence(mlp()), 0.04),
    "SOAP": (soap_fcn, 0.2),
    "a differentiable purifier": (lambda: Defence(mlp(), linear_autoencoder(), name="autoencoder"), 0.12),
}


@pytest.fixture(scope="module", autouse=True)
def no_git():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOAP_COMMIT", "test")
        yield


def planned(name: str, *, batch_size: int, n: int = 12) -> PlannedRun:
    defence, eps = DEFENCES[name][0](), DEFENCES[name][1]
    data, threat = soap.data.load("mnist-mini").take(n), Threat(eps=eps)
    probe = defence.probe(data.x)
    effort = Effort(steps=2, queries=20, restarts=1, draws=(2,))
    made = plan_attempts(defence, threat, "full", probe=probe, effort=effort)
    left_out = (*ON_THE_WHOLE_BATCH, "surrogate")  # the imitation takes seconds to train
    attempts = [one for one in made if one.protocol not in left_out and one.name != "autoattack"]
    return PlannedRun(
        defence=defence, data=data, threat=threat, suite="full", attempts=attempts, probe=probe, batch_size=batch_size
    )


@pytest.mark.parametrize("name", DEFENCES)
def test_both_modes_have_the_same_worst_case(name, tmp_path):
    run = planned(name, batch_size=6)
    full = run_attempts(run, RunFolder(tmp_path / "full"))
    headline = run_attempts(replace(run, headline=True), folder := RunFolder(tmp_path / "headline"))
    assert headline.worst.defended.tolist() == full.worst.defended.tolist()
    assert 0 < headline.worst.correct < headline.clean.correct
    assert headline.classifier_worst.tolist() == full.classifier_worst.tolist()
    assert headline.protocols == ()
    assert set(headline.done) == set(full.done)
    attacked, broken = 0, set()
    for _, attempt, number in folder.batch_names():
        if attempt is None or run.attempts[attempt].protocol == CLASSIFIER:
            continue
        batch = folder.read_batch(attempt, number)
        assert not broken & set(batch.rows.tolist())
        assert headline.clean.defended[batch.rows].all()
        attacked += len(batch.rows)
        broken |= set(batch.rows[batch.defended != run.data.y.numpy()[batch.rows]].tolist())
    assert broken == set(np.flatnonzero(headline.clean.defended & ~headline.worst.defended))
    met = [full.broken[each][0] for each, one in enumerate(run.attempts) if one.protocol != CLASSIFIER]
    assert attacked < sum(met)


def test_the_order_follows_what_broke_most_for_each_pass(tmp_path):
    run = replace(planned("SOAP", batch_size=6), headline=True)
    folder = RunFolder(tmp_path)
    assert run_attempts(run, folder) is not None
    first, learned = first_order(run.attempts), folder.read_fact(ORDER_FACT)["attempts"]
    assert folder.plan()["cascade"] == first
    assert run.attempts[first[0]].protocol == "transfer"
    assert run.attempts[first[-1]].protocol == CLASSIFIER
    names = [one for _, one, number in folder.batch_names() if one is not None and number == 0]
    assert names == first
    assert [one for _, one, number in folder.batch_names() if one is not None and number == 1] == learned
    passes = {each: run.attempts[each].passes for each in first}
    aware = [each for each in first if run.attempts[each].protocol == "auxiliary-aware"]
    broken = {aware[0]: (6, 0), aware[1]: (6, 1), aware[2]: (2, 1)}
    assert len({passes[each] for each in aware}) == 1
    found = learned_order(run.attempts, broken)
    places = [found.index(each) for each in (aware[2], aware[1], aware[0])]
    assert places == sorted(places)
    assert learned_order(run.attempts, {}) == first


@cache
def vectors() -> Dataset:
    """Digits as vectors, which AutoAttack does not attack."""
    data = digits(11)
    return make_dataset("digits", "test", data.x.flatten(1).numpy(), data.y.numpy(), data.classes)


def rounding() -> Defence:
    return Defence(mlp(), lambda x: (8 * x).round() / 8, name="rounding")


def small(out, **changes):
    """A run in the headline mode by the public call."""
    given = {"eps": 0.04, "steps": 2, "queries": 5, "batch_size": 6, "suite": "full", "headline": True, **changes}
    return soap.evaluate(rounding(), vectors(), out=out, **given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    return small(out)


def test_a_stopped_run_and_shards_end_with_the_same_bits(whole, tmp_path):
    wanted = content(whole.folder.path)
    questions = iter(range(10**6))
    assert small(tmp_path / "stopped", stop=lambda: next(questions) >= 20) is None
    small(tmp_path / "stopped")
    assert content(tmp_path / "stopped") == wanted
    for index in (1, 0):
        small(tmp_path / str(index), shard=(index, 2))
    merge_runs([tmp_path / "0", tmp_path / "1"], tmp_path / "merged")
    small(tmp_path / "merged")
    assert content(tmp_path / "merged") == wanted


def test_reports_say_that_it_is_the_headline_mode(whole):
    assert whole.verdict.name == WARNED
    assert HEADLINE_NOTE in whole.verdict.reasons
    assert HEADLINE_NOTE[1:] in run_notes(whole)[0]
    assert {row.attack.name for row in whole.rows} == {"clean", "worst"}
    assert HEADLINE_NOTE in whole.to_latex()
    assert verify_run(rounding(), vectors(), whole.folder.path).holds


def test_another_mode_in_the_folder_and_a_wrong_order_are_refused(whole, tmp_path):
    with pytest.raises(InputError, match="another run: its cascade"):
        small(whole.folder.path, headline=False)
    out = tmp_path / "run"
    small(out, stop=iter([False] * 100 + [True] * 10**4).__next__)
    (out / "facts" / f"{ORDER_FACT}.json").write_text(json.dumps({"attempts": [0, 0]}))
    with pytest.raises(FileError, match="does not name every attempt once"):
        small(out)


def test_it_needs_the_full_suite_and_a_deterministic_defence(tmp_path):
    with pytest.raises(InputError, match="'full', got suite='quick'"):
        small(tmp_path, suite="quick")
    noisy = Defence(linear(), lambda x: x + 0.1 * torch.randn_like(x), name="noisy")
    with pytest.raises(InputError, match=r"noisy is random.*without headline"):
        soap.evaluate(noisy, soap.data.load("mnist-mini").take(4), eps=0.1, out=tmp_path, headline=True)


@pytest.mark.parametrize(
    ("net", "transfer", "wanted"),
    [
        (Rounding, ("pgd",), (FAIL, WARN)),
        (Rounding, ("pgd", "apgd ce"), (WARN, WARN)),
        (linear, ("pgd",), (PASS, PASS)),
    ],
)
def test_attacks_without_gradients_show_masked_gradients(net, transfer, wanted, tmp_path):
    """They attack last. Random starts of APGD break some images of a net with zero gradients, PGD breaks none."""
    defence, threat = Defence.of_module(net(), name="net"), Threat(eps=0.15)
    made = plan_attempts(defence, threat, "full", effort=Effort(steps=4, queries=60, restarts=1, draws=(2,)))
    attempts = [one for one in made if one.protocol in ("noise", "square", "decision") or one.name in transfer]
    run = judge(defence, tmp_path, planned=attempts, data=digits(16), threat=threat, measurements=(), headline=True)
    states = {finding.number: finding.state for finding in run.findings()}
    assert (states[13], states[22]) == wanted
