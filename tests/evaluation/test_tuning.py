"""Elbows of curves whose bend is known, and the choice of gamma, T and radii against plain loops."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TASKS, noise_images, state_of, tiny_model

import soap
from soap import SOAP, InputError
from soap.attacks import PGD
from soap.data import Dataset
from soap.evaluation.provenance import fingerprint
from soap.evaluation.tuning import RADII, Candidate, Tuning, elbow, tune
from soap.report.tuning_curve import save

FINE = [k / 1000 for k in range(3001)]


@pytest.mark.parametrize(
    ("curve", "bend"),
    [
        (lambda x: max(0.0, 1 - x / 0.7), 0.7),  # straight down, then flat
        (lambda x: max(1 - 2 * x, 0.4 - 0.1 * x), 0.6 / 1.9),  # two slopes
        (lambda x: 1 / (1 + x), math.sqrt(1 + 3) - 1),  # where the slope is that of the chord
        (lambda x: math.exp(-x), -math.log((1 - math.exp(-3)) / 3)),
        (lambda x: 5 + 40 * math.exp(-x), -math.log((1 - math.exp(-3)) / 3)),  # neither unit nor level matters
        (lambda x: abs(x - 0.5), 0.5),  # what rises again counts as flat
        (lambda x: 1.0, 0.0),  # never falls
        (lambda x: x, 0.0),
        (lambda x: 3 - x, 3.0),  # falls to the end
        (lambda x: 9 - x * x, 3.0),
    ],
)
def test_the_elbow_of_curves_whose_bend_is_known(curve, bend):
    assert elbow(FINE, [curve(x) for x in FINE]) == pytest.approx(bend, abs=1.1e-3)


@settings(max_examples=60)
@given(st.lists(st.floats(0, 5), min_size=2, max_size=9), st.floats(0.1, 9), st.floats(0.1, 9), st.floats(-3, 3))
def test_units_do_not_matter_and_nothing_lies_further_below_the_chord(losses, wide, high, level):
    x = [float(k) for k in range(len(losses))]
    bend = elbow(x, losses)
    lowest = np.minimum.accumulate(losses)
    depth = lowest[0] + (lowest[-1] - lowest[0]) * np.array(x) / x[-1] - lowest
    if lowest[-1] < lowest[0] and depth.max() > 1e-6 * (lowest[0] - lowest[-1]):
        assert depth[x.index(bend)] == pytest.approx(depth.max(), rel=1e-6)
    elif lowest[-1] == lowest[0]:
        assert bend == 0
    assert bend in x
    whole = [round(loss) for loss in losses]  # plain numbers, for scaling to keep the order of depths
    scaled = elbow([wide * at for at in x], [level + high * loss for loss in whole])
    assert scaled == pytest.approx(wide * elbow(x, whole)) or depth_ties(x, whole)


def depth_ties(x, losses):
    """Whether two places are as deep as each other but for rounding."""
    lowest = np.minimum.accumulate(losses)
    depth = np.sort(lowest[0] + (lowest[-1] - lowest[0]) * np.array(x) / x[-1] - lowest)
    return depth[-1] - depth[-2] < 1e-6


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [([0.0], [1.0], "at least two"), ([0, 1], [1.0], "equal numbers"), ([0.0, 0.0], [1.0, 0.0], "ascending order")],
)
def test_bad_curves(x, y, words):
    with pytest.raises(InputError, match=words):
        elbow(x, y)


def images(n: int = 11) -> Dataset:
    y = torch.arange(n) % 4
    return Dataset(name="noise", split="test", x=noise_images(n), y=y, classes=tuple("abcd"), sha256="e" * 64)


@pytest.mark.parametrize("task", TASKS)
def test_every_candidate_against_the_purifier_itself(task):
    model, data = tiny_model(task), images()
    before = state_of(model)
    calls: list[tuple[str, int, int]] = []
    found = tune(
        model, data, 0.2, gammas=(0.5, 1.0), steps=(1, 3), batch_size=4, watch=lambda *call: calls.append(call)
    )
    assert state_of(model) == before
    attacked = PGD(eps=0.2, step_size=0.05, steps=20)(model, data.x, data.y)
    right = lambda x: float((model(x).argmax(1) == data.y).double().mean())  # noqa: E731
    assert found.bare_clean == pytest.approx(right(data.x))
    assert found.bare_attacked == pytest.approx(right(attacked))
    assert found.radii == pytest.approx([0.2 * share for share in RADII], abs=1e-6)
    assert [(one.step_size, one.steps) for one in found.candidates] == [(0.1, 1), (0.1, 3), (0.2, 1), (0.2, 3)]
    for one in found.candidates:
        settings = {"step_size": one.step_size, "steps": one.steps}
        for k in (0, 2, 5, 12):
            fixed = SOAP(model, eps=found.radii[k], **settings)
            for x, losses in ((data.x, one.clean), (attacked, one.attacked)):
                assert losses[k] == pytest.approx(fixed(x).loss_after.mean().item(), rel=1e-3)
        assert one.elbow == elbow(found.radii, one.attacked)
        assert one.grid == tuple(radius for radius in found.radii if radius <= 2 * one.elbow + 1e-9)
        chosen = SOAP(model, grid=one.grid, **settings)
        assert one.clean_accuracy == pytest.approx(right(chosen(data.x).x))
        assert one.attacked_accuracy == pytest.approx(right(chosen(attacked).x))
    assert found.best.score == max(one.score for one in found.candidates)
    assert found.provenance["weights_sha256"] == fingerprint(model)
    assert found.provenance["images"] == "all of test"
    assert calls[-1][1:] == (44, 44)


def candidate(score: float, steps: int, gamma: float) -> Candidate:
    return Candidate(
        step_size=gamma, steps=steps, clean=(1.0, 1.0), attacked=(2.0, 1.0), elbow=0.1, grid=(0.0, 0.1),
        clean_accuracy=score, attacked_accuracy=score,
    )  # fmt: skip


def tuning(*candidates: Candidate, bare: float = 0.5) -> Tuning:
    return Tuning(
        model="m$x_y", data="d", n=3, attack="PGD", eps_adv=0.1, radii=(0.0, 0.1), bare_clean=bare,
        bare_attacked=bare, candidates=candidates, provenance={"seed": 0},
    )  # fmt: skip


def test_the_best_scores_highest_and_of_equal_ones_is_the_cheapest():
    found = tuning(candidate(0.7, 10, 0.1), candidate(0.7, 5, 0.2), candidate(0.7, 5, 0.1), candidate(0.6, 1, 0.1))
    assert (found.best.steps, found.best.step_size) == (5, 0.1)
    assert found.purification == soap.auxiliary.Purification(step_size=0.1, steps=5, grid=(0.0, 0.1))
    assert found.helps
    assert not tuning(candidate(0.5, 1, 0.1)).helps


@pytest.mark.parametrize("name", ["mnist-fcn-dr", "mnist-cnn-dr"])
def test_on_the_bundled_models_it_finds_the_attacks_radius_and_the_papers_settings(name):
    digits = soap.data.load("mnist-mini", "train")
    found = tune(soap.load(name), digits, 0.3, gammas=(1 / 3,), steps=(5,), limit=30)
    assert 0.2 < found.best.elbow < 0.4
    assert found.helps
    assert found.best.attacked_accuracy > found.bare_attacked + 0.3
    assert found.provenance["images"] == "30 of train, drawn by seed 0"


def test_images_are_drawn_by_the_seed():
    model, data = tiny_model(), images(40)
    hashes = [tune(model, data, 0.1, gammas=(1.0,), steps=(1,), limit=10, seed=seed).provenance["data_sha256"]
              for seed in (0, 0, 1)]  # fmt: skip
    assert hashes[0] == hashes[1] != hashes[2]
    assert tune(model, data, 0.1, gammas=(1.0,), steps=(1,), limit=400).n == 40


def test_files(tmp_path):
    found = tune(tiny_model(), images(), 0.05, gammas=(0.5,), steps=(2,))
    paths = save(found, tmp_path / "new")
    assert [path.name for path in paths] == ["tune.json", "tune.png", "tune.svg"]
    content = json.loads(paths[0].read_text())
    assert content["schema"] == "soap-tune/1"
    assert content["chosen"]["grid"] == list(found.purification.grid)
    assert content["candidates"][0]["attacked"] == list(found.best.attacked)
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in paths[2].read_bytes()
    first = [path.read_bytes() for path in paths]
    save(found, tmp_path / "new")
    assert [path.read_bytes() for path in paths] == first
    save(tuning(candidate(0.7, 5, 0.1)), tmp_path / "odd name")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eps": 0.0}, "eps is 0.0"),
        ({"gammas": (0.0,)}, "gamma is 0.0"),
        ({"steps": (0,)}, "steps .T. is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"gammas": ()}, "expected at least one"),
        ({"steps": ()}, "expected at least one"),
    ],
)
def test_bad_input(changes, words):
    given = {"eps": 0.1, **changes}
    with pytest.raises(InputError, match=words):
        tune(tiny_model(), images(), given.pop("eps"), **given)


def test_a_model_without_a_task_is_refused():
    with pytest.raises(InputError, match="without an auxiliary task"):
        tune(soap.load("mnist-fcn-no-def"), soap.data.load("mnist-mini").take(3), 0.3)
