"""The transfer protocol against a plain loop, and its store across a stop."""

import dataclasses

import pytest
import torch
from tiny import noise_images, state_of, tiny_model

import soap
from soap.attacks import FGSM, PGD, DeepFool
from soap.data import Dataset
from soap.evaluation import PAPER, Clean, evaluate_transfer
from soap.results import Store
from soap.specs import DefenceSpec, Spec, spec_of

ATTACKS = {"none": Clean(), "fgsm": FGSM(eps=0.1), "df": DeepFool(radius=0.5, candidates=4)}


def images(n: int = 23) -> Dataset:
    x = noise_images(n, seed=2)
    y = tiny_model()(x).argmax(1)
    y[::5] = (y[::5] + 1) % 4  # some are misclassified when clean
    return Dataset(name="noise", split="test", x=x, y=y, classes=tuple("abcd"), sha256="e" * 64)


def test_rows_equal_a_plain_loop():
    model, data = tiny_model(), images()
    before = state_of(model)
    purifiers = [soap.SOAP(model), soap.SOAP(model, eps="oracle"), soap.SOAP(model, eps=0.2)]
    rows = evaluate_transfer(model, data, ATTACKS, purifiers, batch_size=10)
    assert state_of(model) == before
    assert [(row.attack.name, row.defence.eps) for row in rows] == [
        (attack, choice) for attack in ATTACKS for choice in (None, "min-aux", "oracle", 0.2)
    ]
    found = {(row.attack.name, row.defence.eps): row.correct for row in rows}
    for name, attack in ATTACKS.items():
        x_adv = attack(model, data.x, data.y)
        ends = {None: x_adv, "min-aux": purifiers[0](x_adv).x, 0.2: purifiers[2](x_adv).x}
        ends["oracle"] = purifiers[1](x_adv, data.y).x
        for choice, x in ends.items():
            assert found[name, choice] == int((model(x).argmax(1) == data.y).sum()), (name, choice)


def test_any_purifier_is_accepted_and_rows_store_its_settings():
    class Darker:
        def __call__(self, x):
            one = x.new_ones(len(x))
            return soap.Purified(x=x / 2, eps=0.5 * one, loss_before=3 * one, loss_after=one)

    model, data = tiny_model(), images()
    near = Darker()
    near.eps = 0.25
    _, free, fixed = evaluate_transfer(model, data, {"none": Clean()}, [Darker(), near])
    assert free.defence == DefenceSpec(name="Darker", eps="free")
    assert fixed.defence == DefenceSpec(name="Darker", settings={"eps": 0.25}, eps=0.25)
    assert free.correct == int((model(data.x / 2).argmax(1) == data.y).sum())
    assert free.measures == {"mean_eps_pfy": 0.5, "mean_loss_before": 3.0, "mean_loss_after": 1.0}


def test_measures_hold_the_strength_of_the_attack():
    model, data = tiny_model(), images()
    rows = {row.attack.name: row for row in evaluate_transfer(model, data, ATTACKS, [])}
    assert rows["none"].measures == {"mean_l2": 0.0, "mean_linf": 0.0}
    assert rows["fgsm"].measures["mean_linf"] == pytest.approx(0.1, abs=1e-3)
    x_adv = ATTACKS["df"](model, data.x, data.y)
    hits = (model(x_adv).argmax(1) != data.y) & ((x_adv - data.x).flatten(1).norm(dim=1) < 0.5 - 1e-4)
    assert rows["df"].measures["success"] == pytest.approx(hits.float().mean().item())


def test_no_batch_is_larger_than_the_batch_size():
    """Regression: success was counted on all images at once, and a GPU then changed labels at the boundary."""
    model, data, sizes = tiny_model(), images(), []
    model.encoder.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    evaluate_transfer(model, data, {"df": ATTACKS["df"]}, [], batch_size=10)
    assert max(sizes) <= 10 * ATTACKS["df"].candidates
    assert len(data) > 10
    sizes.clear()
    evaluate_transfer(model, data, {"none": Clean()}, [], batch_size=10)
    assert max(sizes) == 10


def test_stored_rows_are_not_measured_again(tmp_path):
    model, data, store = tiny_model(), images(), Store(tmp_path / "rows.jsonl")
    first = evaluate_transfer(model, data, ATTACKS, [soap.SOAP(model)], store=store)
    content = store.path.read_bytes()

    class Explodes(FGSM):
        def perturb(self, model, x, y):
            raise AssertionError("measured again")

        def spec(self) -> Spec:
            return spec_of(ATTACKS["fgsm"])

    again = evaluate_transfer(model, data, {"fgsm": Explodes(eps=0.1)}, [soap.SOAP(model)], store=store)
    assert again == [row for row in first if row.attack.name == "fgsm"]
    assert store.path.read_bytes() == content
    more = evaluate_transfer(model, data, ATTACKS, [soap.SOAP(model), soap.SOAP(model, eps=0.3)], store=store)
    assert len(more) == 9
    assert len(store.read()) == 9


def test_a_stopped_evaluation_resumes(tmp_path):
    model, data = tiny_model(), images()
    whole = evaluate_transfer(model, data, ATTACKS, [soap.SOAP(model)], batch_size=10)
    for asked in range(12):
        store = Store(tmp_path / f"{asked}.jsonl")
        calls = iter(range(1000))
        part = evaluate_transfer(
            model,
            data,
            ATTACKS,
            [soap.SOAP(model)],
            batch_size=10,
            store=store,
            stop=lambda: next(calls) >= asked,  # noqa: B023
        )
        assert part == store.read()
        done = evaluate_transfer(model, data, ATTACKS, [soap.SOAP(model)], batch_size=10, store=store)
        assert [(r.key, r.correct) for r in done] == [(r.key, r.correct) for r in whole]


def test_other_weights_or_data_are_other_rows(tmp_path):
    store = Store(tmp_path / "rows.jsonl")
    data = images()
    evaluate_transfer(tiny_model(), data, {"none": Clean()}, [], store=store)
    evaluate_transfer(tiny_model(seed=1), data, {"none": Clean()}, [], store=store)
    evaluate_transfer(tiny_model(), dataclasses.replace(data, sha256="f" * 64), {"none": Clean()}, [], store=store)
    assert len(store.read()) == 3


def test_saved_adversarial_images_can_be_loaded(tmp_path):
    model, data = tiny_model(), images()
    attack = PGD(eps=0.1, step_size=0.05, steps=3)
    evaluate_transfer(model, data, {"pgd": attack}, [], save_adversarial=tmp_path)
    saved = soap.data.load(tmp_path / "tiny-reconstruction-pgd.npz")
    torch.testing.assert_close(saved.x, attack(model, data.x, data.y))
    assert torch.equal(saved.y, data.y)


def test_the_papers_attacks():
    assert repr(PAPER["mnist"]["pgd"]).startswith("PGD(eps=0.3, step_size=0.01, steps=40, norm='linf', start='zero'")
    assert PAPER["cifar10"]["pgd"] == PGD(eps=8 / 255, step_size=2 / 255, steps=20)
    assert (PAPER["mnist"]["cw"].radius, PAPER["cifar10"]["df"].radius) == (4.0, 2.0)
    assert all(list(attacks) == ["none", "fgsm", "pgd", "cw", "df"] for attacks in PAPER.values())


def test_invalid_input_is_rejected():
    model, data = tiny_model(), images()
    with pytest.raises(soap.InputError, match="no attack given"):
        evaluate_transfer(model, data, {}, [])
    with pytest.raises(soap.InputError, match="batch_size is 0"):
        evaluate_transfer(model, data, ATTACKS, [], batch_size=0)
    small = dataclasses.replace(data, x=noise_images(23, side=6))
    with pytest.raises(soap.InputError, match=r"this model takes \[batch, 1, 8, 8\]"):
        evaluate_transfer(model, small, ATTACKS, [])
