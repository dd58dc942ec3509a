"""Sweeps against the same figures computed by hand, their store across a stop, and their rows found again."""

import dataclasses

import pytest
import torch
from tiny import GRID, noise_images, state_of, tiny_model
from torch.nn import functional as F

from soap import SOAP, InputError
from soap.attacks import FGSM, PGD, AuxiliaryAwarePGD
from soap.auxiliary import all_turns
from soap.data import Dataset
from soap.evaluation import Clean, evaluate_transfer
from soap.paper import row_queries
from soap.paper.sweeps import (
    BETAS,
    auxiliary_aware,
    fixed_radii,
    label_leaking,
    paper_pgd,
    rotation_losses,
    steps_heat_map,
)
from soap.report.row_text import eps_text
from soap.results import Store

ATTACK = PGD(eps=0.2, step_size=0.1, steps=3)


def images(n: int = 17, name: str = "noise") -> Dataset:
    x = noise_images(n, seed=2)
    y = tiny_model()(x).argmax(1)
    y[::5] = (y[::5] + 1) % 4
    return Dataset(name=name, split="test", x=x, y=y, classes=tuple("abcd"), sha256="e" * 64)


def right(model, x, y) -> int:
    with torch.no_grad():
        return int((model(x).argmax(1) == y).sum())


def test_auxiliary_aware_rows_are_those_computed_by_hand():
    model, data = tiny_model(), images()
    before = state_of(model)
    rows = auxiliary_aware(model, data, (-10.0, 0.0, 1.5), attack=ATTACK, batch=6)
    assert state_of(model) == before
    assert {row.protocol for row in rows} == {"auxiliary-aware"}
    assert [(row.attack.name, eps_text(row.defence)) for row in rows] == [
        (f"beta={beta}", choice) for beta in ("-10", "0", "1.5") for choice in ("none", "min-aux")
    ]
    found = row_queries.by_beta(rows, model.name)
    for beta in (-10.0, 0.0, 1.5):
        x_adv = AuxiliaryAwarePGD(eps=0.2, step_size=0.1, steps=3, beta=beta)(model, data.x, data.y)
        assert found[beta, False].correct == right(model, x_adv, data.y)
        assert found[beta, True].correct == right(model, SOAP(model)(x_adv).x, data.y)
    plain = evaluate_transfer(model, data, {"pgd": ATTACK}, [SOAP(model)])
    assert [found[0.0, False].correct, found[0.0, True].correct] == [row.correct for row in plain]


def test_the_papers_betas():
    assert tuple(sorted({sign * 10.0**k for sign in (-1, 1) for k in range(-2, 3)} | {0.0})) == BETAS


def test_rows_of_the_store_are_not_measured_again(tmp_path, monkeypatch):
    model, data, store = tiny_model(), images(), Store(tmp_path / "rows.jsonl")
    first = auxiliary_aware(model, data, (0.0, 1.0), attack=ATTACK, store=store)
    assert store.read() == first
    again = auxiliary_aware(model, data, (0.0, 1.0, 10.0), attack=ATTACK, store=store)
    assert again[:4] == first
    assert store.read() == again
    monkeypatch.setattr(AuxiliaryAwarePGD, "perturb", None)  # a call would fail
    assert auxiliary_aware(model, data, (10.0, 0.0), attack=ATTACK, store=store) == [*again[4:], *again[:2]]
    other = dataclasses.replace(data, sha256="f" * 64)
    with pytest.raises(TypeError):
        auxiliary_aware(model, other, (0.0,), attack=ATTACK, store=store)


@pytest.mark.parametrize("asked", [0, 1, 2, 3, 5, 7])
def test_a_stop_keeps_what_is_done_and_the_next_run_goes_on(tmp_path, asked):
    model, data, store = tiny_model(), images(), Store(tmp_path / "rows.jsonl")
    whole = auxiliary_aware(model, data, (0.0, 1.0), attack=ATTACK, batch=10)
    calls = iter(range(1000))
    part = auxiliary_aware(
        model, data, (0.0, 1.0), attack=ATTACK, batch=10, store=store, stop=lambda: next(calls) >= asked
    )
    assert part == store.read()
    assert len(part) < len(whole)
    done = auxiliary_aware(model, data, (0.0, 1.0), attack=ATTACK, batch=10, store=store)
    assert [(row.key, row.correct) for row in done] == [(row.key, row.correct) for row in whole]
    assert len(store.read()) == len(whole)


def test_the_gradient_that_the_attacker_uses_is_in_the_key():
    keys = set()
    for gradient in ("paper", "stop"):
        model = tiny_model("consistency")
        model.auxiliary.gradient = gradient
        keys |= {row.key for row in auxiliary_aware(model, images(5), (1.0,), attack=ATTACK)}
    assert len(keys) == 4


def test_the_heat_map_varies_gamma_and_steps_alone():
    model, data = tiny_model(), images()
    rows = steps_heat_map(model, data, (0.5, 2.0), (1, 4), attack=ATTACK)
    found = row_queries.by_steps(rows, model.name)
    assert set(found) == {(0.05, 1), (0.05, 4), (0.2, 1), (0.2, 4)}
    x_adv = ATTACK(model, data.x, data.y)
    for (gamma, steps), row in found.items():
        assert row.correct == right(model, SOAP(model, step_size=gamma, steps=steps)(x_adv).x, data.y)
        assert tuple(row.defence.settings["grid"]) == GRID


def test_fixed_radii_are_halves_of_gamma_up_to_the_farthest_reach():
    model, data = tiny_model(), images()
    found = row_queries.by_radius(fixed_radii(model, data, attack=ATTACK), model.name)
    assert [key for key in found if key is not None] == pytest.approx([0.05 * k for k in range(11)])
    x_adv = ATTACK(model, data.x, data.y)
    assert found[0.0].correct == right(model, x_adv, data.y)
    assert found[None].correct == right(model, SOAP(model)(x_adv).x, data.y)
    for radius in (0.1, 0.25):
        assert found[radius].correct == right(model, SOAP(model, eps=radius)(x_adv).x, data.y)


def test_rotation_is_purified_by_either_loss():
    model, data = tiny_model("rotation"), images()
    before = state_of(model)
    rows = rotation_losses(model, data, attack=ATTACK)
    assert state_of(model) == before
    found = row_queries.by_rotation_loss(rows, model.name)
    assert set(found) == {(attack, loss) for attack in ("none", "pgd") for loss in ("squared error", "cross entropy")}
    x_adv = ATTACK(model, data.x, data.y)
    turns = torch.arange(4).repeat_interleave(len(data))
    logits = model.auxiliary.head(model.encoder(all_turns(x_adv))).detach()
    plain = F.cross_entropy(logits, turns, reduction="sum") / len(data)
    assert found["pgd", "cross entropy"].measures["mean_loss_before"] == pytest.approx(plain.item(), rel=1e-5)
    own = model.auxiliary.loss(model, x_adv).mean().item()
    assert found["pgd", "squared error"].measures["mean_loss_before"] == pytest.approx(own, rel=1e-5)
    for row in found.values():
        assert row.measures["mean_loss_after"] < row.measures["mean_loss_before"]


def test_label_leaking_has_the_tables_own_rows():
    model, data = tiny_model(), images(name="mnist")
    rows = label_leaking(model, data)
    assert [row.key for row in rows] == [
        row.key for row in evaluate_transfer(model, data, {"none": Clean(), "fgsm": FGSM(eps=0.3)}, [])
    ]
    found = row_queries.by_attack(rows, model.name)
    assert found["fgsm"].correct == right(model, FGSM(eps=0.3)(model, data.x, data.y), data.y)


def test_the_paper_s_attack_is_the_default():
    assert paper_pgd(images(name="cifar10")) == PGD(eps=8 / 255, step_size=2 / 255, steps=20)
    with pytest.raises(InputError, match="data set of the paper 'noise'"):
        steps_heat_map(tiny_model(), images())


def test_bad_input():
    with pytest.raises(InputError, match="batch is 0"):
        auxiliary_aware(tiny_model(), images(), attack=ATTACK, batch=0)
    with pytest.raises(InputError, match="beta is nan"):
        auxiliary_aware(tiny_model(), images(), (float("nan"),), attack=ATTACK)


def test_other_tasks_have_no_choice_of_rotation_loss():
    with pytest.raises(InputError, match="Reconstruction, expected Rotation"):
        rotation_losses(tiny_model(), images(), attack=ATTACK)


def test_of_several_runs_the_fullest_then_largest_then_latest_is_found():
    model, data = tiny_model(), images()
    full = steps_heat_map(model, data, (0.5, 1.0), (1, 2), attack=ATTACK)
    (own,) = [row for row in steps_heat_map(model, data, (1.0,), (5,), attack=ATTACK) if row.defence.purifies]
    larger = dataclasses.replace(own, n=10_000, correct=9_999)
    assert len(row_queries.by_steps([*full, larger], model.name)) == 4
    changed = [dataclasses.replace(row, n=100, correct=100) for row in full]
    assert {row.n for row in row_queries.by_steps([*changed, *full], model.name).values()} == {100}
    later = dataclasses.replace(full[0].provenance, weights_sha256="0" * 64, date="2999-01-01T00:00:00+00:00")
    newest = [dataclasses.replace(row, provenance=later) for row in full]
    assert {row.provenance for row in row_queries.by_steps([*newest, *full], model.name).values()} == {later}
    assert row_queries.by_steps(full, "other") == {}
    for find in (row_queries.by_beta, row_queries.by_rotation_loss, row_queries.by_attack):
        assert find(full, model.name).keys() <= {("pgd", "squared error")}
