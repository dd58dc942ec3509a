"""Checks of the paper's figures: where the claim holds, where it does not, and where something is lacking."""

from dataclasses import replace

import pytest
from claim_worlds import (
    SECONDS,
    TABLE_CLAIMS,
    as_rows,
    attack_steps,
    beta_row,
    curve,
    digits,
    figure_verdict,
    findings,
    purified_row,
    sweep_rows,
    world,
)

from soap.paper.claims import CLAIMS
from soap.paper.comparison import compare_all
from soap.paper.figure_claims import FIGURE_CHECKS
from soap.paper.figure_data import TASKS, epoch_seconds
from soap.paper.judging import judge, judge_all
from soap.paper.tables import TABLES

DR, RP, LC = TASKS
ALL = sweep_rows()


def without(kind):
    return {key: row for key, row in ALL.items() if key[1] != kind}


def beta(model, value, purified, percent):
    return {"rows": ALL | {(model, "beta", value, purified): beta_row(model, value, purified, percent)}}


NO_CURVES, NO_PICTURES = {"curves_of": []}, {"pictures": []}
NO_BETAS = {"rows": {key: row for key, row in ALL.items() if key[1:3] != ("beta", 10.0)}}

FIGURE_CASES = {
    "loss-tells-attack": ({"curves_of": [curve(DR), curve(RP, clean=0.09), curve(LC)]}, NO_CURVES),
    "elbow-at-attack-radius": ({"curves_of": [curve(DR, eps_adv=0.35), curve(RP), curve(LC)]}, NO_CURVES),
    "decoder-sees-class-again": ({"pictures": [digits(back=range(5))]}, NO_PICTURES),
    "over-estimation-helps": (
        {"rows": ALL | {(LC, "radius", attack_steps(LC)): purified_row(LC, 57.1, eps=attack_steps(LC))}},
        {"rows": without("radius")},
    ),
    "squared-error-for-rotation": (
        {"rows": ALL | {(RP, "cross entropy"): replace(ALL[RP, "cross entropy"], measures={"mean_eps_pfy": 8 / 255})}},
        {"rows": without("cross entropy")},
    ),
    "few-large-steps": (
        {"rows": ALL | {(DR, "steps", 4): purified_row(DR, 59.1, gamma=1 / 4, steps=20)}},
        {"rows": {key: row for key, row in ALL.items() if key != (LC, "steps", 2)}},
    ),
    "knowing-the-task-does-not-pay": (beta(DR, 0.01, True, 46.9), NO_BETAS),
    "negative-beta-weakens": (beta(LC, -10.0, False, 33.9), NO_BETAS),
    "positive-beta-rises": (beta(DR, 10.0, True, 63.9), NO_BETAS),
    "positive-beta-stays": (beta(RP, 1.0, True, 53.1), NO_BETAS),
    "small-overhead": (
        {"seconds": SECONDS | {"cifar10-resnet18-rp": 1.6}},
        {"seconds": {model: s for model, s in SECONDS.items() if model != "mnist-cnn-no-def"}},
    ),
    "small-networks-train-fast": (
        {"seconds": SECONDS | {"mnist-fcn-pgd-at": 2.7}},
        {"seconds": {model: s for model, s in SECONDS.items() if model != "mnist-fcn-dr"}},
    ),
    "large-networks-train-faster": (
        {"seconds": SECONDS | {"mnist-cnn-dr": 1.1}},
        {"seconds": {model: s for model, s in SECONDS.items() if model != "cifar10-wide-resnet28-pgd-at"}},
    ),
}
"""By claim: what spoils it, and what leaves it open."""


def test_the_table_of_cases_has_every_claim_of_figures():
    assert set(FIGURE_CASES) == set(FIGURE_CHECKS)


@pytest.mark.parametrize("name", FIGURE_CHECKS)
def test_claims_of_figures_both_ways_and_open(name, tmp_path):
    cases = zip(("spoilt", "open"), FIGURE_CASES[name], strict=True)
    folders = {case: tmp_path / case for case in ("good", "spoilt", "open")}
    for folder in folders.values():
        folder.mkdir()
    good = figure_verdict(name, findings(folders["good"]))
    assert good.held is True, good.evidence
    assert set(good.evidence_by_kind) == {"For it"}
    spoilt, lacking = (figure_verdict(name, findings(folders[case], **changes)) for case, changes in cases)
    assert spoilt.held is False, spoilt.evidence
    assert spoilt.against
    assert lacking.held is None, lacking.evidence
    assert "Missing" in lacking.evidence_by_kind


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loss-tells-attack", "SOAP-DR: clean 0.2, attacked 1, purified 0.2 (1,000 images)"),
        ("elbow-at-attack-radius", "SOAP-LC: elbow at 8/255, attack's radius 8/255 (1,000 images)"),
        ("decoder-sees-class-again", "again: 0 1 2 3 4 5 6 7 8 9; then correctly classified: 0 1 2 3 4 5 6 7 8 9."),
        ("over-estimation-helps", "SOAP-DR: 55.00 at 0.3, at best 58.00 slightly above, at 0.35 (1,000 images)"),
        ("squared-error-for-rotation", "cross entropy chooses 4/255 on average, the attack 8/255, under PGD 60.00 by"),
        ("few-large-steps", "SOAP-RP: 60.00 with 5 steps, 50.00 with 10 steps of 1/2 the size (1,000 images)"),
        ("knowing-the-task-does-not-pay", "SOAP-DR: 50.00 at beta 0, at worst 50.00 at beta 0 (1,000 images)"),
        ("negative-beta-weakens", "SOAP-DR: from 5.00 to 55.00 before purification (1,000 images), from 50.00 to"),
        ("positive-beta-rises", "SOAP-LC: from 50.00 to 75.00 after purification (1,000 images)"),
        ("positive-beta-stays", "SOAP-RP: 50.00 at beta 0, from 50.00 to 50.00 above it (1,000 images)"),
        ("small-overhead", "SOAP-DR: mnist-fcn 1.40 s against No Def 1.00 s"),
        ("small-networks-train-fast", "SOAP-RP: cifar10-resnet18 1.40 s against FGSM AT 1.20 s"),
        ("large-networks-train-faster", "SOAP-DR: mnist-cnn 1.40 s against FGSM AT 1.20 s"),
    ],
)
def test_evidence_of_figures_in_words(name, words, tmp_path):
    assert words in figure_verdict(name, findings(tmp_path)).evidence


def test_a_fall_in_between_is_told(tmp_path):
    found = figure_verdict("positive-beta-rises", findings(tmp_path, **beta(DR, 10.0, True, 63.9)))
    told = "Against it: SOAP-DR: from 50.00 to 75.00 after purification, falling by 1.10 in between (1,000 images)."
    assert found.evidence.startswith(told)


def test_claims_are_judged_in_the_papers_order_and_descriptions_are_not(tmp_path):
    data, entries = findings(tmp_path), compare_all(TABLES.values(), as_rows(world()))
    judged = judge_all(entries, data)
    assert [one.claim.name for one in judged] == [name for name in CLAIMS if name in {*TABLE_CLAIMS, *FIGURE_CHECKS}]
    assert all(one.ours.held for one in judged)
    assert [one.claim.name for one in judged if one.printed is not None] == TABLE_CLAIMS
    assert judge(CLAIMS["examples-of-attacks"], entries, data) is None
    leaking = judge(CLAIMS["labels-leak"], entries, data)
    assert (leaking.ours.held, leaking.printed.held) == (True, True)
    assert "FGSM 99.50 against No Atk 98.78" in leaking.printed.evidence


def test_seconds_are_those_of_the_figure():
    row = {
        "what": "train", "model": "mnist-fcn-dr",
        "case": {"precision": "fp32", "compiled": "false", "batch_size": 128},
        "paths": {"ours": {"seconds": {"median": 2.0, "mean": 3.0, "deviation": 0.0, "repeats": 30}}},
        "provenance": {"device": "a GPU", "processor": "a CPU", "date": "2026"},
    }  # fmt: skip
    assert epoch_seconds([row, {**row, "what": "purify"}, {**row, "model": "other"}]) == {"mnist-fcn-dr": 3.0}
    assert epoch_seconds([]) == {}
