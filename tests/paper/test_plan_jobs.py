"""What there is to do for cells of the paper: no more than is missing, and in which order."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_recipes import cells, nowhere, own_recipes, row_for  # noqa: F401

from soap.attacks import FGSM, PGD
from soap.errors import InputError
from soap.paper.jobs import EvaluationJob, TrainingJob, plan_jobs
from soap.paper.tables import CellQuery
from soap.specs import attack_spec

pytestmark = pytest.mark.usefixtures("own_recipes")


def test_a_model_is_trained_once_and_each_attack_is_made_once_cheap_ones_first():
    lc = "cifar10-resnet18-lc"
    wanted = [
        CellQuery(recipe=lc, attack="cw", measure="success"),
        *(CellQuery(recipe=lc, attack=attack, eps_pfy=choice) for attack in ("cw", "df", "pgd", "none", "fgsm")
          for choice in ("none", "min-aux", "oracle")),
        CellQuery(recipe=lc, attack="pgd", eps_pfy="min-aux", gradient="paper"),  # the recipe's own: nothing new
        CellQuery(recipe=lc, attack="pgd", eps_pfy="min-aux", gradient="stop"),
        CellQuery(recipe="mnist-fcn-no-def", attack="fgsm"),
        CellQuery(recipe="mnist-fcn-no-def", attack="fgsm", eps_pfy="min-aux"),  # nothing to purify with
        CellQuery(recipe="mnist-fcn-dr", attack="substitute-cnn", eps_pfy="oracle", n=9_850),
    ]  # fmt: skip
    jobs = plan_jobs(wanted, [], weights=lambda recipe, seed: Path("x") if recipe == "mnist-fcn-dr" else None)

    def both(attack):
        return tuple(CellQuery(recipe=lc, attack=attack, eps_pfy=choice) for choice in ("min-aux", "oracle"))

    oracle = CellQuery(recipe="mnist-fcn-dr", attack="substitute-cnn", eps_pfy="oracle", n=9_850)
    pgd = jobs[3]
    assert jobs == [
        TrainingJob(recipe=lc, seed=0, epochs=200),
        *(
            EvaluationJob(recipe=lc, seed=0, attack=attack, purified=both(attack), n=10_000)
            for attack in ("none", "fgsm")
        ),
        pgd,
        *(EvaluationJob(recipe=lc, seed=0, attack=attack, purified=both(attack), n=10_000) for attack in ("df", "cw")),
        TrainingJob(recipe="mnist-fcn-no-def", seed=0, epochs=100),
        EvaluationJob(recipe="mnist-fcn-no-def", seed=0, attack="fgsm", n=10_000),
        EvaluationJob(recipe="mnist-fcn-dr", seed=0, attack="substitute-cnn", purified=(oracle,), n=9_850),
    ]
    assert isinstance(pgd, EvaluationJob)
    assert (pgd.attack, [cell.eps_pfy for cell in pgd.purified]) == ("pgd", ["min-aux", "oracle", "min-aux"])
    assert [cell.gradient or "paper" for cell in pgd.purified] == ["paper", "paper", "stop"]
    assert len({job.title for job in jobs}) == len(jobs)
    assert "min-aux (stop)" in pgd.title


def test_what_rows_fill_is_not_planned_and_other_settings_fill_nothing():
    wanted = cells("pgd", "none", choices=("none", "min-aux", "oracle"))
    there = [row_for(cell) for cell in wanted]
    assert plan_jobs(wanted, there, weights=nowhere) == []
    assert plan_jobs(wanted, [replace(row, provenance=replace(row.provenance, training=None)) for row in there],
                weights=nowhere) == []  # fmt: skip
    left = plan_jobs(wanted, there[1:], weights=nowhere)
    assert left[1:] == [EvaluationJob(recipe="tiny-dr", seed=0, attack="pgd", n=30)]
    whole = plan_jobs(wanted[1:2], [], weights=nowhere)
    assert len(whole) == 2
    for other in (
        {"attack": attack_spec("pgd", PGD(eps=0.1, step_size=0.1, steps=1))},
        {"defence": replace(there[1].defence, settings={**there[1].defence.settings, "steps": 9})}, {"n": 20},
        {"model": "tiny-lc"}, {"protocol": "adaptive"}, {"data": "mnist"},
        {"attack": attack_spec("fgsm", FGSM(eps=0.3))},
    ):  # fmt: skip
        assert plan_jobs(wanted[1:2], [replace(there[1], **other)], weights=nowhere) == whole, other


def test_every_seed_is_wanted_and_rows_fill_their_own_seed_alone():
    wanted = cells("none", "pgd", choices=("none",))
    there = [row_for(cell, training="2 epochs, seed 1, fp32") for cell in wanted]
    jobs = plan_jobs(wanted, [*there, row_for(wanted[0])], weights=nowhere, seeds=(0, 1, 2), epochs=1)
    assert [(type(job).__name__, job.seed, getattr(job, "attack", "")) for job in jobs] == [
        ("TrainingJob", 0, ""), ("EvaluationJob", 0, "pgd"),
        ("TrainingJob", 2, ""), ("EvaluationJob", 2, "none"), ("EvaluationJob", 2, "pgd"),
    ]  # fmt: skip
    assert {job.epochs for job in jobs if isinstance(job, TrainingJob)} == {1}
    assert [
        job.epochs for job in plan_jobs(wanted, [], weights=nowhere, epochs=50) if isinstance(job, TrainingJob)
    ] == [2]


def test_a_limit_takes_fewer_images_and_more_will_do():
    wanted = cells("pgd", "cw", choices=("none",))
    jobs = plan_jobs(wanted, [], weights=nowhere, limit={"cw": 7})
    assert [job.n for job in jobs if isinstance(job, EvaluationJob)] == [30, 7]
    fewer = row_for(replace(wanted[1], n=7))
    assert len(plan_jobs(wanted[1:], [fewer], weights=nowhere)) == 2
    assert plan_jobs(wanted[1:], [fewer], weights=nowhere, limit={"cw": 7}) == []
    assert plan_jobs(wanted[1:], [row_for(wanted[1])], weights=nowhere, limit={"cw": 7}) == []


def test_an_unknown_recipe_is_refused():
    with pytest.raises(InputError, match="unknown recipe 'mnist-fnc-dr'"):
        plan_jobs([CellQuery(recipe="mnist-fnc-dr", attack="pgd")], [], weights=nowhere)


def test_the_work_of_jobs_is_in_a_sensible_order():
    def evaluation(attack: str, recipe: str = "cifar10-resnet18-lc", **changed: object) -> float:
        given = {"seed": 0, "attack": attack, "n": 10_000, **changed}
        return EvaluationJob(recipe=recipe, **given).work

    attacks = [evaluation(attack) for attack in ("none", "fgsm", "pgd", "df", "cw")]
    assert attacks == sorted(attacks)
    assert evaluation("pgd", purified=tuple(cells("pgd", choices=("min-aux",)))) > evaluation("pgd")
    assert evaluation("pgd", n=1_000) == pytest.approx(evaluation("pgd") / 10)
    sizes = ("mnist-fcn-dr", "mnist-cnn-dr", "cifar10-resnet18-rp", "cifar10-wide-resnet28-rp")
    assert [evaluation("pgd", recipe) for recipe in sizes] == sorted(evaluation("pgd", recipe) for recipe in sizes)
    methods = ("no-def", "fgsm-at", "pgd-at")
    lengths = [TrainingJob(recipe=f"cifar10-resnet18-{name}", seed=0, epochs=200).work for name in methods]
    assert lengths == sorted(lengths)
    assert TrainingJob(recipe="cifar10-resnet18-no-def", seed=0, epochs=20).work == pytest.approx(lengths[0] / 10)
