"""The black-box protocol against a slow plain reading of it: who answers, who is scored, and what a stop keeps."""

import dataclasses

import pytest
from tiny import noise_images, state_of, tiny_model

import soap
from soap.attacks import FGSM, Substitute
from soap.data import Dataset
from soap.paper.black_box import PROTOCOL, SUBSTITUTES, evaluate_black_box
from soap.report.row_text import eps_text
from soap.results import Store
from soap.specs import attack_spec

SEEDS = 12
TRIAL = {"seeds": SEEDS, "rounds": 2, "epochs": 3, "batch_size": 8}
FCN = {"substitute-fcn": Substitute(network="fcn", **TRIAL)}
BOTH = {**FCN, "substitute-cnn": Substitute(network="cnn", attack=FGSM(eps=0.2), seed=3, **TRIAL)}


def images(n: int = 41) -> Dataset:
    x = noise_images(n, seed=2)
    y = tiny_model()(x).argmax(1)
    y[::5] = (y[::5] + 1) % 4  # some are wrong from the start
    return Dataset(name="noise", split="test", x=x, y=y, classes=tuple("abcd"), sha256="e" * 64)


def test_rows_are_the_figures_computed_by_hand():
    model, data = tiny_model(), images()
    before = state_of(model)
    purifiers = [soap.SOAP(model), soap.SOAP(model, eps="oracle")]
    rows = evaluate_black_box(model, data, BOTH, purifiers, batch_size=10, seed=7)
    assert state_of(model) == before
    assert [(row.attack.name, eps_text(row.defence)) for row in rows] == [
        (name, choice) for name in BOTH for choice in ("none", "min-aux", "oracle")
    ]
    found = {(row.attack.name, eps_text(row.defence)): row for row in rows}
    x, y = data.x[SEEDS:], data.y[SEEDS:]
    for name, settings in BOTH.items():
        # The attacker asks the bare classifier about its own images, and knows their true labels nowhere.
        copy = settings.train(lambda queries: model(queries).argmax(1).detach(), data.x[:SEEDS])
        x_adv = settings.attack(copy, x, y)
        assert (x_adv != x).any()
        ends = {"none": x_adv, "min-aux": purifiers[0](x_adv).x, "oracle": purifiers[1](x_adv, y).x}
        for choice, end in ends.items():
            row = found[name, choice]
            assert row.correct == sum(int(model(end[k : k + 1]).argmax()) == int(y[k]) for k in range(len(y)))
            assert (row.protocol, row.n, row.attack) == (
                "black-box",
                41 - SEEDS,
                attack_spec(row.attack.name, settings),
            )
            assert row.provenance.images == "12..40 of test; those before are the attacker's"
            assert (row.provenance.seed, row.provenance.data_sha256) == (7, data.sha256)
        assert found[name, "none"].measures["mean_linf"] == pytest.approx(settings.attack.eps, abs=0.01)


def test_the_attackers_images_do_not_score_and_the_scored_ones_do_not_teach():
    model, data = tiny_model(), images()
    wrong = data.y.clone()
    wrong[:SEEDS] = (wrong[:SEEDS] + 1) % 4  # the labels of the attacker's own images must not matter
    (one,), (two,) = (evaluate_black_box(model, each, FCN, []) for each in (data, dataclasses.replace(data, y=wrong)))
    assert one.correct == two.correct
    fewer = dataclasses.replace(data, x=data.x[:-9], y=data.y[:-9])
    (part,) = evaluate_black_box(model, fewer, FCN, [])
    assert (part.n, part.key == one.key) == (41 - SEEDS - 9, False)
    assert 0 <= one.correct - part.correct <= 9  # the same attack on the images that are left


def test_rows_already_in_the_store_train_no_substitute(tmp_path, monkeypatch):
    model, data, store = tiny_model(), images(), Store(tmp_path / "rows.jsonl")
    first = evaluate_black_box(model, data, FCN, [soap.SOAP(model)], store=store)
    assert store.read() == first
    content = store.path.read_bytes()
    trained = []
    train = Substitute.train
    monkeypatch.setattr(Substitute, "train", lambda self, *given: trained.append(self.network) or train(self, *given))
    assert evaluate_black_box(model, data, FCN, [soap.SOAP(model)], store=store) == first
    assert (trained, store.path.read_bytes()) == ([], content)
    more = evaluate_black_box(model, data, BOTH, [soap.SOAP(model)], store=store)
    assert (trained, len(more), len(store.read())) == (["cnn"], 4, 4)


def test_a_stop_is_heard_while_the_substitute_learns_and_the_next_run_goes_on(tmp_path):
    model, data = tiny_model(), images()
    whole = evaluate_black_box(model, data, FCN, [soap.SOAP(model)], batch_size=10)
    lengths = []
    for asked in range(16):
        store = Store(tmp_path / f"{asked}.jsonl")
        calls = iter(range(1000))
        part = evaluate_black_box(
            model,
            data,
            FCN,
            [soap.SOAP(model)],
            batch_size=10,
            store=store,
            stop=lambda: next(calls) >= asked,  # noqa: B023
        )
        assert part == store.read()
        lengths.append(len(part))
        done = evaluate_black_box(model, data, FCN, [soap.SOAP(model)], batch_size=10, store=store)
        assert [(r.key, r.correct) for r in done] == [(r.key, r.correct) for r in whole]
    assert lengths[0] == 0
    assert lengths == sorted(lengths)
    assert {0, 1} <= set(lengths)


def test_progress_counts_the_queries_then_the_images():
    seen = []
    evaluate_black_box(tiny_model(), images(), FCN, [], batch_size=10, watch=lambda *at: seen.append(at))
    queries = [at for at in seen if at[0] == "substitute-fcn, queries"]
    assert queries[-1][1:] == (SEEDS * 4, SEEDS * 4)
    assert [at for at in seen if at[0] == "substitute-fcn"][-1] == ("substitute-fcn", 29, 29)


def test_the_papers_substitutes():
    assert list(SUBSTITUTES) == ["substitute-fcn", "substitute-cnn"]
    for name, settings in SUBSTITUTES.items():
        assert settings.network == name.removeprefix("substitute-")
        assert (settings.seeds, settings.rounds, settings.augment_step, settings.epochs) == (150, 6, 0.1, 10)
        assert settings.attack == FGSM(eps=0.3)
    assert PROTOCOL == "black-box"
