"""The curve of losses against a plain loop, its elbow, and the file that keeps such things."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import GRID, TASKS, noise_images, state_of, tiny_model

from soap import SOAP, FileError
from soap.attacks import PGD
from soap.data import Dataset
from soap.evaluation.provenance import fingerprint
from soap.paper import figure_records
from soap.paper.figure_records import RadiusCurve, measure_radius_curve

ATTACK = PGD(eps=0.25, step_size=0.1, steps=4)


def images(n: int = 11) -> Dataset:
    y = torch.arange(n) % 4
    return Dataset(name="noise", split="test", x=noise_images(n), y=y, classes=tuple("abcd"), sha256="e" * 64)


def curve(purified=(0.9, 0.5, 0.3), adversarial=0.9, **changes) -> RadiusCurve:
    content = {
        "model": "m", "data": "d", "attack": "PGD", "n": 5, "eps_adv": 0.3, "clean": 0.1, "adversarial": adversarial,
        "radii": tuple(k / 10 for k in range(len(purified))), "purified": purified, "provenance": {"seed": 0},
    }  # fmt: skip
    return RadiusCurve(**(content | changes))


@pytest.mark.parametrize("task", TASKS)
def test_against_a_plain_loop(task):
    model, data = tiny_model(task), images()
    before, pixels = state_of(model), data.x.clone()
    calls: list[tuple[str, int, int]] = []
    got = measure_radius_curve(model, data, ATTACK, batch_size=4, watch=lambda *call: calls.append(call))
    assert state_of(model) == before
    assert torch.equal(data.x, pixels)
    x_adv = ATTACK(model, data.x, data.y)
    loss = lambda x: model.auxiliary.loss(model, x).mean().item()  # noqa: E731
    assert got.clean == pytest.approx(loss(data.x), rel=1e-4)
    assert got.adversarial == pytest.approx(loss(x_adv), rel=1e-4)
    assert got.radii == GRID
    assert got.purified[0] == got.adversarial
    for radius, mean in zip(got.radii, got.purified, strict=True):
        assert mean == pytest.approx(SOAP(model, eps=radius)(x_adv).loss_after.mean().item(), rel=1e-3)
    assert got.eps_adv == pytest.approx(0.25, abs=1e-6)
    assert (got.n, got.model, got.attack) == (11, model.name, repr(ATTACK))
    assert got.provenance["weights_sha256"] == fingerprint(model)
    assert [call[1:] for call in calls] == [(4, 11), (8, 11), (11, 11)]


@pytest.mark.parametrize(
    ("purified", "elbow"),
    [
        ((1.0, 0.5, 0.0), 0.2),
        ((1.0, 0.04, 0.0), 0.1),  # 96 % of the fall is enough
        ((1.0, 0.06, 0.0), 0.2),  # 94 % is not
        ((1.0, 0.2, 0.2, 0.2), 0.1),
        ((1.0, 0.1, 0.9), 0.1),  # it may rise again
        ((1.0, 1.0), 0.0),  # it never fell
        ((1.3, 1.2), 0.1),  # it rose from the first radius on: the lowest there is
    ],
)
def test_the_elbow_is_where_the_loss_stops_falling(purified, elbow):
    assert curve(purified, adversarial=1.0).elbow == elbow


@settings(max_examples=30)
@given(st.lists(st.floats(0, 5), min_size=1, max_size=8))
def test_the_elbow_is_a_radius_that_has_fallen_enough(losses):
    one = curve((5.0, *losses), adversarial=5.0)
    fallen = dict(zip(one.radii, one.purified, strict=True))[one.elbow]
    assert 5 - fallen >= 0.949 * (5 - min(one.purified))


def test_it_comes_back_from_its_file_whole(tmp_path):
    path = figure_records.record_path(tmp_path / "new", "curve", "m")
    figure_records.save(path, curve())
    assert figure_records.read(path, RadiusCurve) == curve()
    first = path.read_bytes()
    figure_records.save(path, curve())
    assert path.read_bytes() == first  # the same content is the same file
    with np.load(path, allow_pickle=False) as archive:
        about = json.loads(archive["about"].tobytes())
    assert about["facts"]["provenance"] == {"seed": 0}


class Other(RadiusCurve):
    """The same fields under another name."""


def damaged(path, how):
    whole = path.read_bytes()
    match how:
        case "cut short":
            path.write_bytes(whole[: len(whole) // 2])
        case "empty":
            path.write_bytes(b"")
        case "no archive":
            path.write_bytes(b"hello")
        case "other arrays":
            np.savez(path, x=np.zeros(3))
        case "a pickle":
            np.savez(path, about=np.array([{}], dtype=object))
        case "no JSON":
            np.savez(path, about=np.frombuffer(b"{", np.uint8))
        case "other kind":
            figure_records.save(
                path, Other(**{field.name: getattr(curve(), field.name) for field in fields(RadiusCurve)})
            )
        case "a field too few":
            facts = {"model": "m"}
            about = {"schema": figure_records.SCHEMA, "kind": "RadiusCurve", "facts": facts}
            np.savez(path, about=np.frombuffer(json.dumps(about).encode(), np.uint8))


@pytest.mark.parametrize(
    "how",
    ["cut short", "empty", "no archive", "other arrays", "a pickle", "no JSON", "other kind", "a field too few"],
)
def test_a_damaged_file_is_named(tmp_path, how):
    path = tmp_path / "curve.npz"
    figure_records.save(path, curve())
    damaged(path, how)
    with pytest.raises(FileError, match=r"curve\.npz: cannot be read as RadiusCurve .* makes it again"):
        figure_records.read(path, RadiusCurve)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"none\.npz: no such file"):
        figure_records.read(tmp_path / "none.npz", RadiusCurve)
