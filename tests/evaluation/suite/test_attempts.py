"""What a suite tries, what it makes of a target, and what a run comes to, against figures counted by hand."""

import numpy as np
import pytest
import torch
from tiny import noise_images, tiny_model
from torch import nn

import soap
from soap.attacks import FGSM, PGD
from soap.data import Dataset
from soap.evaluation.adaptive import SUITES, Attempt, RunFolder, Target, Threat, attempts
from soap.evaluation.adaptive.attempts import left_out
from soap.evaluation.adaptive.suite import outcomes, run_attempts
from soap.evaluation.adaptive.summary import paired_difference, rows, summarise

THREAT = Threat(eps=0.2)
PLANNED = [
    Attempt(protocol="transfer", name="fgsm", attack=FGSM(eps=0.2), sight="bare"),
    Attempt(protocol="transfer", name="pgd", attack=PGD(eps=0.2, step_size=0.05, steps=5), sight="bare"),
    Attempt(protocol="bpda", name="pgd", attack=PGD(eps=0.2, step_size=0.05, steps=5), sight="bpda"),
]


def images(n: int = 17) -> Dataset:
    x = noise_images(n, seed=5)
    y = tiny_model()(x).argmax(1)
    y[::6] = (y[::6] + 1) % 4  # some are wrong from the start
    return Dataset(name="noise", split="test", x=x, y=y, classes=tuple("abcd"), sha256="a" * 64)


@pytest.fixture
def target():
    model = tiny_model()
    return Target.of_model(model, soap.SOAP(model))


def test_every_protocol_is_tried_on_a_purifier(target):
    planned = attempts(target, THREAT, "full", steps=4, queries=10)
    assert tuple(dict.fromkeys(one.protocol for one in planned)) == SUITES["full"]
    assert left_out(target, THREAT, planned) == {}
    assert {one.scale for one in planned if one.protocol == "unrolled"} == {1.0, 3.0, 10.0}


def test_what_a_target_does_not_have_is_left_out_and_told():
    bare = Target.of_model(tiny_model())
    planned = attempts(bare, THREAT, "full")
    told = left_out(bare, THREAT, planned)
    assert set(told) == {"bpda", "bpda-start", "bpda-trajectory", "unrolled"}
    assert set(told.values()) == {"there is no purifier"}
    module = Target.of_module(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), name="own")
    assert "auxiliary-aware" in left_out(module, THREAT, attempts(module, THREAT, "full"))
    parts = Target.of_parts(tiny_model(), lambda x: x, name="own")
    told = left_out(parts, THREAT, attempts(parts, THREAT, "full"))
    assert told["unrolled"] == "the purifier does not tell its steps"


def test_what_has_no_attack_in_another_ball_is_told(target):
    round_ball = Threat(eps=1.0, norm="l2")
    planned = attempts(target, round_ball, "full", steps=4, queries=10)
    assert left_out(target, round_ball, planned) == {"auxiliary-aware": "its attack is of the Linf ball"}


def test_a_suite_without_an_attack_is_an_error_and_no_figure():
    bare = Target.of_parts(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), lambda x: x, name="own")
    with pytest.raises(soap.InputError, match=r"has no attack on own \(auxiliary-aware: there is no auxiliary task\)"):
        attempts(bare, THREAT, "auxiliary-aware")


def test_rows_that_are_no_images_are_spared_what_paints_squares(target):
    planned = attempts(target, THREAT, "full", steps=4, queries=10, images=False)
    assert [one.name for one in planned if one.protocol == "black-box"] == ["substitute"]
    assert left_out(target, THREAT, planned, images=False) == {"autoattack": "it is for images alone"}


def test_a_suite_that_is_not_known_is_refused(target):
    with pytest.raises(soap.InputError, match="full"):
        attempts(target, THREAT, "fuller")
    with pytest.raises(soap.InputError, match="oracle"):
        Target.of_model(target.bare, soap.SOAP(target.bare, eps="oracle"))


def test_a_run_against_a_plain_loop(target, tmp_path):
    data = images()
    folder = run_attempts(target, data, THREAT, PLANNED, suite="own", out=tmp_path, batch=5)
    found = outcomes(folder, data)
    start = target.defended(data.x).argmax(1) == data.y
    for protocol in ("transfer", "bpda"):
        alive = start.clone()
        for attempt in (one for one in PLANNED if one.protocol == protocol):
            index = alive.nonzero()[:, 0]
            x_adv = attempt.attack(target.sight(attempt.sight), data.x[index], data.y[index])
            alive[index] = target.defended(x_adv).argmax(1) == data.y[index]
        assert found[protocol].standing.tolist() == alive.tolist()
    summary = summarise(folder, data)
    assert summary.worst.defended.tolist() == (found["transfer"].standing & found["bpda"].standing).tolist()
    assert summary.clean.correct == int(start.sum())


def test_the_bare_classifier_is_asked_about_the_same_points(target, tmp_path):
    data = images()
    summary = summarise(run_attempts(target, data, THREAT, PLANNED, suite="own", out=tmp_path, batch=5), data)
    for line in summary.protocols:
        points = torch.from_numpy(summary.outcomes[line.protocol].x)
        assert line.bare.tolist() == (target.bare(points).argmax(1) == data.y).tolist()
        broken = summary.clean.defended & ~line.defended
        assert (target.defended(points).argmax(1) != data.y)[torch.from_numpy(broken)].all()


def test_rows_hold_both_and_are_told_apart(target, tmp_path):
    data = images()
    made = rows(summarise(run_attempts(target, data, THREAT, PLANNED, suite="own", out=tmp_path, batch=5), data))
    assert len({row.key for row in made}) == len(made) == 8
    assert {row.defence for row in made} == {"none", target.label}
    assert [row.protocol for row in made][::2] == ["transfer", "transfer", "bpda", "worst"]


def test_a_stopped_run_goes_on_and_another_plan_is_refused(target, tmp_path):
    data = images()
    asked = iter([False] * 6 + [True] * 100)
    stopped = run_attempts(
        target, data, THREAT, PLANNED, suite="own", out=tmp_path / "a", batch=5, stop=lambda: next(asked)
    )
    assert stopped is None
    one = run_attempts(target, data, THREAT, PLANNED, suite="own", out=tmp_path / "a", batch=5)
    two = run_attempts(target, data, THREAT, PLANNED, suite="own", out=tmp_path / "b", batch=5)
    for left, right in ((outcomes(folder, data) for folder in (one, two)),):
        assert all(np.array_equal(left[name].x, right[name].x) for name in left)
    with pytest.raises(soap.InputError, match="another run: its threat"):
        run_attempts(target, data, Threat(eps=0.1), PLANNED, suite="own", out=tmp_path / "a", batch=5)
    with pytest.raises(soap.FileError, match="no such file"):
        RunFolder(tmp_path / "none").plan()


def test_the_interval_of_a_gain():
    """Bonett & Price: Wald's interval of (b + 1, c + 1) of n + 2."""
    one = np.array([True] * 30 + [False] * 20)
    other = np.array([True] * 10 + [False] * 20 + [True] * 5 + [False] * 15)
    difference, low, high = paired_difference(one, other)
    up, down = 21 / 52, 6 / 52
    half = 1.959964 * ((up + down - (up - down) ** 2) / 52) ** 0.5
    assert (difference, low, high) == pytest.approx((15 / 50, up - down - half, up - down + half))
    same = paired_difference(one, one)
    assert same[0] == 0
    assert same[1] < 0 < same[2]  # no evidence is not certainty
