"""The attempts of a suite, and the results of a run against a plain loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import noise_images, tiny_model
from torch import nn

import soap
from soap.attacks import FGSM, PGD
from soap.data import Dataset
from soap.defence import Defence
from soap.evaluation.attempts import run_attempts
from soap.evaluation.paired import paired_difference
from soap.evaluation.plan import SUITES, Attempt, PlannedRun, Threat, left_out, plan_attempts
from soap.evaluation.protocols import DEFAULT_EFFORT
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.suite_rows import result_rows
from soap.evaluation.summary import Summary
from soap.evaluation.summary_builder import read_summary
from soap.specs import BARE, defence_spec

THREAT = Threat(eps=0.2)
PLANNED = [
    Attempt(protocol="transfer", name="fgsm", attack=FGSM(eps=0.2), rule="bare"),
    Attempt(protocol="transfer", name="pgd", attack=PGD(eps=0.2, step_size=0.05, steps=5), rule="bare"),
    Attempt(
        protocol="straight-through", name="pgd", attack=PGD(eps=0.2, step_size=0.05, steps=5), rule="straight-through"
    ),
]


def images(n: int = 17) -> Dataset:
    x = noise_images(n, seed=5)
    y = tiny_model()(x).argmax(1)
    y[::6] = (y[::6] + 1) % 4  # some are misclassified when clean
    return Dataset(name="noise", split="test", x=x, y=y, classes=tuple("abcd"), sha256="a" * 64)


def run(defence: Defence, data: Dataset, out: Path, *, threat: Threat = THREAT, **options: Any) -> Summary | None:
    planned = PlannedRun(defence=defence, data=data, threat=threat, suite="own", attempts=PLANNED, batch_size=5)
    return run_attempts(planned, RunFolder(out), **options)


def last_points(out: Path, protocol: str, data: Dataset) -> torch.Tensor:
    """The last attacked version of every image; the clean image where it was not attacked."""
    x, folder = data.x.clone(), RunFolder(out)
    for _, attempt, number in folder.batch_names():
        if attempt is not None and PLANNED[attempt].protocol == protocol:
            batch = folder.read_batch(attempt, number)
            x[torch.from_numpy(batch.rows)] = torch.from_numpy(batch.x)
    return x


@pytest.fixture
def defence():
    model = tiny_model()
    return Defence(model, soap.SOAP(model))


def test_every_protocol_is_tried_on_a_purifier(defence):
    planned = plan_attempts(defence, THREAT, "full", effort=DEFAULT_EFFORT.changed(steps=4, queries=10))
    without = {
        "relaxed": "no rounding or cut of the graph to pass",
        "ends": "the purifier does not change each value by itself",
        "exact": "no exact gradient",
        "extra": "no attack given",
    }
    assert tuple(dict.fromkeys(one.protocol for one in planned)) == tuple(
        name for name in SUITES["full"] if name not in without
    )
    assert left_out(defence, THREAT, planned) == without
    assert {one.scale for one in planned if one.protocol == "unrolled"} == {1.0, 3.0, 10.0}


def test_protocols_that_do_not_apply_are_left_out_with_a_reason():
    bare = Defence(tiny_model())
    planned = plan_attempts(bare, THREAT, "full")
    told = left_out(bare, THREAT, planned)
    assert {name for name, why in told.items() if why == "no purifier"} == {
        "straight-through", "start", "iterates", "unrolled", "ends", "surrogate", "classifier",
    }  # fmt: skip
    assert set(told) - {"exact", "extra", "relaxed"} == {name for name, why in told.items() if why == "no purifier"}
    module = Defence.of_module(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), name="own")
    assert "auxiliary-aware" in left_out(module, THREAT, plan_attempts(module, THREAT, "full"))
    parts = Defence(tiny_model(), lambda x: x, name="own")
    told = left_out(parts, THREAT, plan_attempts(parts, THREAT, "full"))
    assert told["unrolled"] == "purifier without iterates"


def test_protocols_without_an_l2_attack_are_left_out(defence):
    round_ball = Threat(eps=1.0, norm="l2")
    planned = plan_attempts(defence, round_ball, "full", effort=DEFAULT_EFFORT.changed(steps=4, queries=10))
    told = left_out(defence, round_ball, planned)
    assert {name for name, why in told.items() if why == "Linf only"} == {"auxiliary-aware", "ends"}


def test_a_suite_without_an_applicable_attack_is_an_error():
    bare = Defence(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), lambda x: x, name="own")
    with pytest.raises(soap.InputError, match=r"has no attack on own \(auxiliary-aware: no auxiliary task\)"):
        plan_attempts(bare, THREAT, "auxiliary-aware")


def test_inputs_that_are_not_images_get_no_square_attack(defence):
    planned = plan_attempts(defence, THREAT, "full", effort=DEFAULT_EFFORT.changed(steps=4, queries=10), images=False)
    told = left_out(defence, THREAT, planned, images=False)
    assert {name for name, why in told.items() if why == "images only"} == {"autoattack", "square"}
    assert "autoattack" not in [one.name for one in planned if one.protocol == "classifier"]


def test_an_unknown_suite_and_the_oracle_are_rejected(defence, tmp_path):
    with pytest.raises(soap.InputError, match="full"):
        plan_attempts(defence, THREAT, "fuller")
    with pytest.raises(soap.InputError, match="oracle"):
        soap.evaluate(Defence(defence.model, soap.SOAP(defence.model, eps="oracle")), images(), eps=0.1, out=tmp_path)


def test_a_run_equals_a_plain_loop(defence, tmp_path):
    data = images()
    summary = run(defence, data, tmp_path)
    start = defence.labels(data.x) == data.y
    for protocol in ("transfer", "straight-through"):
        alive = start.clone()
        for attempt in (one for one in PLANNED if one.protocol == protocol):
            index = alive.nonzero()[:, 0]
            x_adv = attempt.attack(defence.seen_by(attempt.rule), data.x[index], data.y[index])
            alive[index] = defence.labels(x_adv) == data.y[index]
        assert summary.protocol(protocol).defended.tolist() == alive.tolist()
    transfer, through = summary.protocols
    assert summary.worst.defended.tolist() == (transfer.defended & through.defended).tolist()
    assert summary.clean.correct == int(start.sum())


def test_the_bare_classifier_is_measured_on_the_same_points(defence, tmp_path):
    data = images()
    summary = run(defence, data, tmp_path)
    for line in summary.protocols:
        points = last_points(tmp_path, line.protocol, data)
        assert line.bare.tolist() == (defence.classifier(points).argmax(1) == data.y).tolist()
        broken = summary.clean.defended & ~line.defended
        assert (defence.labels(points) != data.y)[torch.from_numpy(broken)].all()


def test_rows_of_defence_and_classifier_have_different_keys(defence, tmp_path):
    data = images()
    made = result_rows(run(defence, data, tmp_path))
    assert len({row.key for row in made}) == len(made) == 9
    assert {row.defence for row in made} == {BARE, defence_spec(defence.purifier)}
    assert [row.protocol for row in made][::2] == ["transfer", "transfer", "straight-through", "worst", "worst"]
    assert [row.attack.against is None for row in made if row.protocol == "worst"] == [True, False, True]


def test_a_stopped_run_resumes_and_another_plan_is_rejected(defence, tmp_path):
    data = images()
    asked = iter([False] * 6 + [True] * 100)
    assert run(defence, data, tmp_path / "a", stop=lambda: next(asked)) is None
    one, two = (run(defence, data, tmp_path / name) for name in "ab")
    assert one.fingerprints == two.fingerprints == read_summary(RunFolder(tmp_path / "a"), data).fingerprints
    with pytest.raises(soap.InputError, match="another run: its threat"):
        run(defence, data, tmp_path / "a", threat=Threat(eps=0.1))
    with pytest.raises(soap.FileError, match="no such file"):
        RunFolder(tmp_path / "none").plan()


def test_the_interval_of_a_paired_difference():
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


def test_the_classifier_is_not_attacked_again_by_the_attack_that_it_withstood(defence, tmp_path):
    weak = PGD(eps=0.02, step_size=0.01, steps=3)
    other = Attempt(protocol="classifier", name="other", attack=PGD(eps=0.02, step_size=0.01, steps=4), rule="bare")
    planned = [
        Attempt(protocol="autoattack", name="on the classifier", attack=weak, rule="bare"),
        other,
        Attempt(protocol="classifier", name="same", attack=weak, rule="bare"),
    ]
    data, folder = images(), RunFolder(tmp_path)
    made = PlannedRun(defence=defence, data=data, threat=THREAT, suite="own", attempts=planned, batch_size=17)
    summary = run_attempts(made, folder)
    clean, first, different, again = (folder.read_batch(attempt, 0) for attempt in (None, 0, 1, 2))
    right = data.y.numpy()[clean.rows] == clean.bare
    assert summary.broken[0][0] == len(first.rows) > 0
    assert set(different.rows) & set(first.rows)  # another attack gets them
    assert not set(again.rows) & set(first.rows)
    assert set(again.rows) <= set(clean.rows[right])
