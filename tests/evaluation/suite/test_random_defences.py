"""Random defences: found by trying, attacked over draws, and reported by fresh draws that no choice depends on."""

import numpy as np
import pytest
import torch
from further_flaws import AddsNoise
from small_nets import digits, linear
from torch import Tensor, nn

import soap
from soap.defence import Defence
from soap.evaluation import verify_run
from soap.evaluation.checks import judge_checks
from soap.evaluation.checks.effort import last_doubling
from soap.evaluation.labels import drawn_labels, predicted_labels
from soap.evaluation.paired import paired_gain
from soap.evaluation.plan import EVALUATION_DRAWS, PlannedRun, plan_attempts, plan_run
from soap.evaluation.protocols import DEFAULT_EFFORT, Threat
from soap.evaluation.summary import ProtocolResult
from soap.evaluation.summary_builder import SummaryBuilder

SHARE = 0.75
THREAT = Threat(eps=0.05)


class Coin(nn.Module):
    """Correct with probability 0.75 on every call, whatever the image; a tiny slope for attacks to follow."""

    def forward(self, x: Tensor) -> Tensor:
        wrong = torch.rand(len(x), device=x.device) > SHARE
        right = 1.0 - 2.0 * wrong + 1e-3 * x.flatten(1).mean(1)
        return torch.stack([right, -right, -3 + 0 * right, -3 + 0 * right], 1)


@pytest.fixture(scope="module")
def coin(tmp_path_factory):
    data = digits(40)
    data = soap.data.Dataset(
        name="coins", split="test", x=data.x, y=torch.zeros_like(data.y), classes=tuple("abcd"), sha256="c" * 64
    )
    defence = Defence.of_module(Coin(), name="coin")
    out = tmp_path_factory.mktemp("coin") / "run"
    report = soap.evaluate(defence, data, suite="quick", eps=0.05, out=out, steps=3, queries=10, draws=2, batch_size=20)
    return defence, data, report


def test_the_headline_is_the_mean_over_fresh_draws_without_the_bias_of_a_minimum(coin):
    """Of many attempts the luckiest is chosen for each image; draws that chose nothing still say 75 %."""
    _, _, report = coin
    worst = report.summary.worst
    n, k = worst.drawn.shape
    error = (SHARE * (1 - SHARE) / (n * k)) ** 0.5
    assert (n, k) == (40, EVALUATION_DRAWS)
    assert report.worst == worst.accuracy == pytest.approx(SHARE, abs=4 * error)
    assert worst.selected.mean() < SHARE - 4 * error  # the draws that chose, beside
    assert worst.worst_of_draws == pytest.approx(SHARE**EVALUATION_DRAWS, abs=0.1)
    assert worst.majority > 0.9


def test_rows_and_report_hold_the_three_accuracies(coin):
    _, _, report = coin
    worst, row = report.summary.worst, report.worst_row
    assert row.measures["mean over draws"] == worst.accuracy
    assert row.measures[f"worst of {EVALUATION_DRAWS} draws"] == worst.worst_of_draws
    assert row.measures[f"majority of {EVALUATION_DRAWS} draws"] == worst.majority
    assert abs(row.accuracy - report.worst) <= 0.5 / row.n
    low, high = report.interval
    assert low < report.worst < high


def test_the_plan_says_that_the_defence_is_random(coin):
    _, _, report = coin
    plan = report.folder.plan()
    assert plan["random"] is True
    assert plan["draws"] == EVALUATION_DRAWS
    assert {one["attack"]["settings"].get("eot") for one in plan["attempts"] if one["protocol"] == "exact"} == {2, 4, 8}
    found = {one.number: one for one in judge_checks(report.folder, report.summary)}
    assert found[3].state == "PASS"
    assert "draws 2 of 8" in found[17].meaning


def test_more_draws_follow_only_where_accuracy_still_falls(coin):
    """The coin does not depend on the image, so four draws find nothing that two did not, and eight are not tried."""
    _, data, report = coin
    attempts = report.folder.plan()["attempts"]
    more = [number for number, one in enumerate(attempts) if one.get("unless_converged")]
    assert [attempts[number]["attack"]["settings"]["eot"] for number in more] == [8]
    for batch in (0, 1):
        assert len(report.folder.read_batch(more[-1], batch).rows) == 0
    builder = SummaryBuilder(report.folder.plan(), data)
    assert not builder.wanted(more[0], 1).any()
    builder.falls[more[0] - 1] = np.full(40, 0.0)
    builder.falls[more[0] - 1][20:] = 0.01  # the attempt before lowered the accuracy of the second batch by a point
    builder.clean.survived[:] = True
    assert np.flatnonzero(builder.wanted(more[0], 1)).tolist() == list(range(20, 40))
    assert not builder.wanted(more[0], 0).any()


def test_the_last_doubling_of_the_draws_is_measured_once():
    defence, data = Defence(linear(), AddsNoise(), name="noisy"), digits(8)
    run = plan_run(defence, data, THREAT, "full", DEFAULT_EFFORT, (), batch_size=4)
    numbers = {one.draws: number for number, one in enumerate(run.attempts) if "probability" in one.name}
    falls = {number: np.full(8, np.nan) for number in numbers.values()}
    falls[numbers[16]][:] = 0.3
    falls[numbers[32]][:] = [0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2]
    falls[numbers[64]][4:] = [0.04, 0.0, 0.0, 0.0]  # the second batch alone
    found = last_doubling(run, falls)
    assert (found.draws, found.images, found.broken) == (32, 8, 3)
    assert found.moved == pytest.approx(0.24 / 8)
    assert found.error == pytest.approx(np.std([0, 0, 0.1, 0.1, 0.04, 0, 0, 0], ddof=1) / np.sqrt(8))
    del falls[numbers[64]]
    assert last_doubling(run, falls).draws == 16
    del falls[numbers[32]]
    assert last_doubling(run, falls) is None  # 1, 4 and 16 draws are no doubling


def test_every_step_of_an_attack_by_one_draw_sees_another_draw():
    """Attacks restore the random state after each gradient, so seeds of the module itself must vary the draws."""
    defence = Defence(linear(), AddsNoise(), name="noisy")
    x = digits(10).x
    planned = plan_attempts(defence, THREAT, "full", probe=defence.probe(x))
    single = next(one for one in planned if one.protocol == "exact" and one.draws == 1)
    model = single.seen(defence, random=True)
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))


def test_a_run_on_a_random_defence_is_repeated_to_the_bit(coin, tmp_path):
    defence, data, report = coin
    options = {"suite": "quick", "eps": 0.05, "steps": 3, "queries": 10, "draws": 2, "batch_size": 20}
    torch.manual_seed(123)  # the global state has no influence
    again = soap.evaluate(defence, data, out=tmp_path / "again", **options)
    assert again.summary.fingerprints == report.summary.fingerprints
    found = verify_run(defence, data, report.folder.path)
    assert found.holds
    assert found.changed == 0


def test_evaluation_draws_are_seeded_and_differ():
    defence, x = Defence(linear(), AddsNoise(), name="noisy"), digits(30).x
    before = torch.get_rng_state()
    one, two = (drawn_labels(defence, x, draws=6, seed=(0, 1)) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, drawn_labels(defence, x, draws=6, seed=(0, 2)))
    assert len({tuple(column.tolist()) for column in one.T}) > 1
    assert torch.equal(before, torch.get_rng_state())


def test_the_label_of_a_random_defence_is_the_vote_of_the_reporting_draws():
    defence, x = Defence(linear(), AddsNoise(), name="noisy"), digits(30).x
    found = predicted_labels(defence, x, draws=5, seed=(3,))
    assert found.drawn.shape == (30, 10)
    for label, drawn in zip(found.defended.tolist(), found.drawn[:, 5:].tolist(), strict=True):
        assert drawn.count(label) == max(drawn.count(each) for each in drawn)


def test_a_deterministic_defence_is_classified_once():
    found = predicted_labels(Defence(linear()), digits(10).x)
    assert found.drawn.shape == (10, 0)


def test_a_random_purifier_is_attacked_over_several_draws():
    defence = Defence(linear(), AddsNoise(), name="noisy")
    probe = defence.probe(digits(10).x)
    assert probe.random
    assert probe.exact
    planned = plan_attempts(defence, THREAT, "full", probe=probe)
    assert {one.draws for one in planned if one.protocol == "exact"} == {*DEFAULT_EFFORT.draws, 32, 64}
    assert {one.draws for one in planned if one.unless_converged} == {64}
    last = [one for one in planned if one.protocol == "exact" and one.attack.loss == "probability"]
    assert [one.draws for one in last] == [16] * DEFAULT_EFFORT.restarts + [32, 64]
    assert not any(getattr(one.attack, "leave_when_fooled", False) for one in planned if one.protocol == "exact")
    assert [one.attack.version for one in planned if one.protocol == "autoattack"] == ["standard", "rand"]
    with pytest.raises(soap.InputError, match="draws"):
        PlannedRun(defence=defence, data=digits(), threat=THREAT, suite="full", attempts=planned, probe=probe, draws=1)


def test_the_gain_of_values_between_zero_and_one_has_a_normal_interval():
    values, other = np.array([0.5, 1.0, 0.0, 0.25] * 10), np.array([True, False] * 20)
    difference, low, high = paired_gain(values, other)
    spread = (values - other).std(ddof=1) / np.sqrt(40)
    assert difference == pytest.approx(values.mean() - 0.5)
    assert (high - low) / 2 == pytest.approx(1.959964 * spread)


def test_the_interval_of_means_is_wilson_s_for_the_number_of_images():
    drawn = np.array([[True, False]] * 50 + [[True, True]] * 50)
    line = ProtocolResult(protocol="worst", defended=drawn.all(1), bare=None, seconds=0.0, drawn=drawn)
    plain = ProtocolResult(protocol="worst", defended=np.arange(100) < 75, bare=None, seconds=0.0)
    assert line.accuracy == plain.accuracy == 0.75
    assert line.interval == plain.interval
    assert (line.worst_of_draws, plain.worst_of_draws) == (0.5, None)
