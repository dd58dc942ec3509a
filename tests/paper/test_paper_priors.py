"""Cells behind a purifier with a generative model of its own: what is trained for them, and that rows tell of both."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_recipes
from tiny_recipes import PRIORS, cells, nowhere, own_recipes, row_for  # noqa: F401

from soap import data, zoo
from soap._files import tensor_files
from soap.defence import Defence
from soap.errors import InputError
from soap.evaluation import PAPER, fingerprint
from soap.paper.job_runner import WEIGHTS
from soap.paper.jobs import EvaluationJob, TrainingJob, plan_jobs
from soap.paper.tables import CellQuery
from soap.purifiers import DefenseGAN
from soap.report.row_text import training_text
from soap.specs import DefenceSpec

pytestmark = pytest.mark.usefixtures("own_recipes", "few_digits")
BARE = cells("fgsm", recipe="tiny-no-def", choices=("none",))
BEHIND = CellQuery(recipe="tiny-no-def", attack="fgsm", prior="tiny-prior", n=30)
SETTINGS = {"generator": "tiny-prior", "steps": 3, "starts": 2, "step_size": 10.0, "momentum": 0.7, "seed": 0}
DEFENCE = DefenceSpec(name="DefenseGAN", settings=SETTINGS, eps="free")


@pytest.fixture
def few_digits(monkeypatch):
    """Trainings see 500 digits."""
    load = data.load

    def few(name, split="test", **options):
        images = load(name, split, **options)
        return images.take(500) if split == "train" else images

    monkeypatch.setattr(data, "load", few)


def go(folder: Path, wanted, **options):
    return tiny_recipes.go(folder, wanted, **{"epochs": 1, **options})


def test_the_prior_is_trained_once_whatever_trainings_stand_behind_it():
    jobs = plan_jobs([*BARE, BEHIND], [], weights=nowhere, seeds=(0, 1))
    attack = {"attack": "fgsm", "n": 30, "purified": (BEHIND,)}
    assert jobs == [
        TrainingJob(recipe="tiny-no-def", seed=0, epochs=2),
        TrainingJob(recipe="tiny-prior", seed=0, epochs=2),
        EvaluationJob(recipe="tiny-no-def", seed=0, **attack),
        TrainingJob(recipe="tiny-no-def", seed=1, epochs=2),
        EvaluationJob(recipe="tiny-no-def", seed=1, **attack),
    ]
    assert jobs[2].title == "tiny-no-def: fgsm on 30 images, bare, tiny-prior"
    assert plan_jobs([BEHIND], [row_for(BEHIND)], weights=nowhere) == []
    other = replace(DEFENCE, settings={**DEFENCE.settings, "steps": 4})
    assert len(plan_jobs([BEHIND], [row_for(BEHIND, defence=other)], weights=nowhere)) == 3


def test_rows_are_a_plain_count_and_tell_of_both_networks(tmp_path):
    done = go(tmp_path, [*BARE, BEHIND])
    assert (done.finished, done.jobs, done.done) == (True, 3, 3)
    bare, behind = done.rows
    assert (bare.defence, behind.defence, behind.defence.eps) == (DefenceSpec(name="none"), DEFENCE, "free")
    assert (BARE[0].found_in(done.rows), BEHIND.found_in(done.rows)) == ([bare], [behind])
    model = zoo.load(tmp_path / "runs/tiny-no-def" / WEIGHTS)
    purify = DefenseGAN(zoo.load_prior(tmp_path / "runs/tiny-prior" / WEIGHTS), steps=3, starts=2)
    images = data.load("mnist-mini").take(30)
    attacked = PAPER["mnist-mini"]["fgsm"](model, images.x, images.y)
    right = [int(model(purify(x[None]).x).argmax() == y) for x, y in zip(attacked, images.y, strict=True)]
    assert behind.correct == sum(right)
    assert bare.provenance.weights_sha256 == fingerprint(model)
    assert behind.provenance.weights_sha256 == fingerprint(Defence(model, purify)) != fingerprint(model)
    assert training_text(behind.training) == "1 epochs, seed 0, fp32; prior tiny-prior, 1 epochs, seed 0"
    assert go(tmp_path, [*BARE, BEHIND]).jobs == 0
    # Another training of the classifier stands behind the same prior.
    other = go(tmp_path, [BEHIND], seeds=(1,))
    assert (other.jobs, other.rows[-1].training.seed) == (2, 1)


def test_a_stop_while_the_prior_is_trained_loses_nothing(tmp_path):
    whole = go(tmp_path / "whole", [BEHIND])
    calls = iter(range(10_000))  # asked before each job, after the classifier's one step and the prior's five
    part = go(tmp_path, [BEHIND], stop=lambda: next(calls) >= 5)
    assert (part.finished, part.done, part.rows) == (False, 1, [])
    assert not (tmp_path / "runs/tiny-prior" / WEIGHTS).exists()
    rest = go(tmp_path, [BEHIND])
    assert [(row.key, row.correct) for row in rest.rows] == [(row.key, row.correct) for row in whole.rows]


def test_bundled_weights_are_taken_and_those_of_a_trial_refused(tmp_path, monkeypatch):
    go(tmp_path, [BEHIND])
    folder = tmp_path / "runs/tiny-prior"
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path / "zoo")
    (tmp_path / "zoo").mkdir()
    shutil.move(folder / WEIGHTS, tmp_path / "zoo/tiny-prior.safetensors")
    shutil.rmtree(folder)
    again = go(tmp_path, [BEHIND], results=tmp_path / "other.jsonl")
    assert (again.jobs, again.done, len(again.rows), folder.exists()) == (1, 1, 2, False)
    tensors, metadata = tensor_files.load_tensors(tmp_path / "zoo/tiny-prior.safetensors")
    (tmp_path / "zoo/tiny-prior.safetensors").unlink()
    text = metadata["recipe"].replace("lr = 1e-3", "lr = 1e-2")
    assert text != metadata["recipe"]
    tensor_files.save_tensors(folder / WEIGHTS, tensors, {**metadata, "recipe": text})
    with pytest.raises(InputError, match=r"was not trained by the recipe tiny-prior .* move its folder"):
        go(tmp_path, [BEHIND], results=tmp_path / "third.jsonl")


def test_a_prior_without_its_data_is_skipped_with_the_reason_and_the_rest_is_done(tmp_path):
    absent = replace(BEHIND, attack="pgd", prior="tiny-prior-mnist")
    done = go(tmp_path, [BEHIND, absent], data_root=tmp_path / "empty")
    assert (done.finished, done.jobs, done.done) == (True, 5, 3)
    assert [job.recipe for job in done.skipped] == ["tiny-prior-mnist", "tiny-no-def"]
    assert all("soap data download mnist" in reason for reason in done.skipped.values())
    assert {row.attack.name for row in done.rows} == {"fgsm"}


def test_no_weights_are_bundled_of_the_tiny_priors():
    assert not set(PRIORS) & set(zoo.prior_names())
