"""Sweeps against the same numbers computed by hand, their store across a stop, and their rows found again."""

import dataclasses

import pytest
import torch
from tiny import GRID, noise_images, state_of, tiny_model
from torch.nn import functional as F

from soap import SOAP, InputError
from soap.attacks import FGSM, PGD, AuxiliaryAwarePGD
from soap.auxiliary import all_turns
from soap.auxiliary.consistency import GRADIENTS
from soap.data import Dataset
from soap.evaluation import PAPER, Clean, evaluate_transfer
from soap.paper import sweeps
from soap.paper.sweeps import BETAS, SWEEPS
from soap.report.row_text import eps_text
from soap.results import Store

ATTACK = PGD(eps=0.2, step_size=0.1, steps=3)
ATTACKS = {"none": Clean(), "fgsm": FGSM(eps=0.3), "pgd": ATTACK}


@pytest.fixture
def few_betas(monkeypatch):
    monkeypatch.setattr(sweeps, "BETAS", (-10.0, 0.0, 1.5))


def images(n: int = 17, name: str = "noise") -> Dataset:
    x = noise_images(n, seed=2)
    y = tiny_model()(x).argmax(1)
    y[::5] = (y[::5] + 1) % 4
    return Dataset(name=name, split="test", x=x, y=y, classes=tuple("abcd"), sha256="e" * 64)


def correct(model, x, y) -> int:
    with torch.no_grad():
        return int((model(x).argmax(1) == y).sum())


def measured(name, model, data, **options):
    return SWEEPS[name].measure(model, data, ATTACKS, **options)


@pytest.mark.usefixtures("few_betas")
def test_auxiliary_aware_rows_are_those_computed_by_hand():
    model, data = tiny_model(), images()
    before = state_of(model)
    rows = measured("betas", model, data, batch_size=6)
    assert state_of(model) == before
    assert {row.protocol for row in rows} == {"auxiliary-aware"}
    assert [(row.attack.name, eps_text(row.defence)) for row in rows] == [
        (f"beta={beta}", choice) for beta in ("-10", "0", "1.5") for choice in ("none", "min-aux")
    ]
    found = SWEEPS["betas"].find(rows, model.name)
    for beta in (-10.0, 0.0, 1.5):
        x_adv = AuxiliaryAwarePGD(eps=0.2, step_size=0.1, steps=3, beta=beta)(model, data.x, data.y)
        assert found[beta, False].correct == correct(model, x_adv, data.y)
        assert found[beta, True].correct == correct(model, SOAP(model)(x_adv).x, data.y)
    plain = evaluate_transfer(model, data, {"pgd": ATTACK}, [SOAP(model)])
    assert [found[0.0, False].correct, found[0.0, True].correct] == [row.correct for row in plain]


def test_the_papers_betas():
    assert tuple(sorted({sign * 10.0**k for sign in (-1, 1) for k in range(-2, 3)} | {0.0})) == BETAS


@pytest.mark.usefixtures("few_betas")
@pytest.mark.parametrize("asked", [0, 1, 2, 3, 5, 7])
def test_a_stop_keeps_what_is_done_and_the_next_run_resumes(tmp_path, monkeypatch, asked):
    model, data, store = tiny_model(), images(), Store(tmp_path / "rows.jsonl")
    whole = measured("betas", model, data, batch_size=10)
    calls = iter(range(1000))
    part = measured("betas", model, data, batch_size=10, store=store, stop=lambda: next(calls) >= asked)
    assert part == store.read()
    assert len(part) < len(whole)
    done = measured("betas", model, data, batch_size=10, store=store)
    assert [(row.key, row.correct) for row in done] == [(row.key, row.correct) for row in whole]
    assert len(store.read()) == len(whole)
    monkeypatch.setattr(AuxiliaryAwarePGD, "perturb", None)  # a call would fail
    assert measured("betas", model, data, batch_size=10, store=store) == done
    with pytest.raises(TypeError):
        measured("betas", model, dataclasses.replace(data, sha256="f" * 64), batch_size=10, store=store)


@pytest.mark.usefixtures("few_betas")
def test_the_gradient_that_the_attacker_uses_is_in_the_key():
    keys = set()
    for gradient in ("paper", "stop"):
        model = tiny_model("consistency")
        model.auxiliary.gradient = gradient
        keys |= {row.key for row in measured("betas", model, images(5))}
    assert len(keys) == 12


def test_the_heat_map_varies_gamma_and_steps_alone(monkeypatch):
    monkeypatch.setattr(sweeps, "GAMMAS", (0.5, 2.0))
    monkeypatch.setattr(sweeps, "STEPS", (1, 4))
    model, data = tiny_model(), images()
    found = SWEEPS["steps"].find(measured("steps", model, data), model.name)
    assert set(found) == {(0.05, 1), (0.05, 4), (0.2, 1), (0.2, 4)}
    x_adv = ATTACK(model, data.x, data.y)
    for (gamma, steps), row in found.items():
        assert row.correct == correct(model, SOAP(model, step_size=gamma, steps=steps)(x_adv).x, data.y)
        assert tuple(row.defence.settings["grid"]) == GRID


def test_fixed_radii_are_halves_of_gamma_up_to_the_farthest_reach():
    model, data = tiny_model(), images()
    found = SWEEPS["radii"].find(measured("radii", model, data), model.name)
    assert len(found) == SWEEPS["radii"].size
    assert [key for key in found if key != "min-aux"] == pytest.approx([0.05 * k for k in range(11)])
    x_adv = ATTACK(model, data.x, data.y)
    assert found[0.0].correct == correct(model, x_adv, data.y)
    assert found["min-aux"].correct == correct(model, SOAP(model)(x_adv).x, data.y)
    for radius in (0.1, 0.25):
        assert found[radius].correct == correct(model, SOAP(model, eps=radius)(x_adv).x, data.y)


def test_rotation_is_purified_by_either_loss():
    model, data = tiny_model("rotation"), images()
    before = state_of(model)
    rows = measured("rotation", model, data)
    assert state_of(model) == before
    found = SWEEPS["rotation"].find(rows, model.name)
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


def test_gradients_have_the_rows_of_soap_with_that_gradient():
    model, data = tiny_model("consistency"), images()
    before = state_of(model)
    rows = measured("gradients", model, data)
    assert state_of(model) == before
    assert model.auxiliary.gradient == "paper"
    found = SWEEPS["gradients"].find(rows, model.name)
    assert len(found) == SWEEPS["gradients"].size == 9
    for name in GRADIENTS:
        usual = tiny_model("consistency")
        usual.auxiliary.gradient = name
        for row in evaluate_transfer(usual, data, ATTACKS, [SOAP(usual)])[1::2]:
            ours = found[row.attack.name, name]
            assert (ours.key, ours.correct) == (row.key, row.correct)


def test_other_purifiers_are_not_taken_for_gradients():
    model, data = tiny_model("consistency"), images(3)
    rows = measured("gradients", model, data)
    others = evaluate_transfer(model, data, ATTACKS, [SOAP(model, eps="oracle"), SOAP(model, eps=0.1)])
    defence = rows[1].defence
    changes = (
        {"protocol": "auxiliary-aware"},
        {"attack": dataclasses.replace(rows[1].attack, name="df")},
        {"model": "other"},
        {"defence": dataclasses.replace(defence, settings={**defence.settings, "precision": "bf16"})},
        {"defence": dataclasses.replace(defence, settings={**defence.settings, "task": {"gradient": "other"}})},
    )
    others += [dataclasses.replace(rows[1], **change) for change in changes]
    assert SWEEPS["gradients"].find(others, model.name) == {}
    assert SWEEPS["gradients"].find([*others, *rows], model.name) == SWEEPS["gradients"].find(rows, model.name)


def test_label_leaking_has_the_tables_own_rows():
    model, data = tiny_model(), images(name="mnist")
    rows = SWEEPS["leaking"].measure(model, data, PAPER["mnist"])  # by the paper's attacks on MNIST
    assert [row.key for row in rows] == [
        row.key for row in evaluate_transfer(model, data, {"none": Clean(), "fgsm": FGSM(eps=0.3)}, [])
    ]
    found = SWEEPS["leaking"].find(rows, model.name)
    assert found["fgsm"].correct == correct(model, FGSM(eps=0.3)(model, data.x, data.y), data.y)


@pytest.mark.parametrize(
    ("name", "task", "options", "message"),
    [
        ("betas", "reconstruction", {"batch_size": 0}, "batch_size is 0"),
        ("rotation", "reconstruction", {}, "Reconstruction, expected Rotation"),
        ("gradients", "rotation", {}, "Rotation, expected Consistency.*-lc"),
    ],
)
def test_bad_input(name, task, options, message):
    with pytest.raises(InputError, match=message):
        SWEEPS[name].measure(tiny_model(task), images(), ATTACKS, **options)


def test_of_several_runs_the_fullest_then_largest_then_latest_is_found(monkeypatch):
    model, data, find = tiny_model(), images(), SWEEPS["steps"].find
    monkeypatch.setattr(sweeps, "GAMMAS", (0.5, 1.0))
    monkeypatch.setattr(sweeps, "STEPS", (1, 2))
    full = measured("steps", model, data)
    larger = dataclasses.replace(full[1], n=10_000, correct=9_999)
    assert len(find([*full, larger], model.name)) == 4
    changed = [dataclasses.replace(row, n=100, correct=100) for row in full]
    assert {row.n for row in find([*changed, *full], model.name).values()} == {100}
    later = dataclasses.replace(full[0].provenance, weights_sha256="0" * 64, date="2999-01-01T00:00:00+00:00")
    newest = [dataclasses.replace(row, provenance=later) for row in full]
    assert {row.provenance for row in find([*newest, *full], model.name).values()} == {later}
    assert find(full, "other") == {}
    for name in ("betas", "gradients", "leaking"):
        assert SWEEPS[name].find(full, model.name) == {}
