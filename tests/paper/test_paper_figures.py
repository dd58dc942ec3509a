"""The figures as data: their words, what they need, what is missing, and how it is made."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text

import soap
from soap import recipes, zoo
from soap.evaluation import PAPER, fingerprint
from soap.paper.figure_data import FIGURES, TABLE_KINDS, FigureData, FigureInput
from soap.paper.figure_records import RECORDS, read, record_path
from soap.paper.figures import DRAWINGS
from soap.paper.job_runner import JobRunner, run_jobs
from soap.paper.jobs import TrainingJob, plan_figure
from soap.paper.sweeps import SWEEPS
from soap.results import Store

KEPT = Path(__file__).parents[2] / "results" / "figures"
MODEL = "mnist-fcn-dr"


@pytest.fixture
def digits(monkeypatch):
    """The bundled digits in place of MNIST, and no slow attack."""
    mini = soap.data.load("mnist-mini").take(40)
    monkeypatch.setattr(soap.data, "load", lambda name, split, *, root: dataclasses.replace(mini, name=name))
    monkeypatch.setitem(PAPER, "mnist", {name: one for name, one in PAPER["mnist"].items() if name != "cw"})


def run(folder, name, **plan):
    """Make what a figure lacks of `MODEL`; returns the run's result and the data afterwards."""
    store = Store(folder / "rows.jsonl")
    stop = plan.pop("stop", lambda: False)
    runner = JobRunner(
        store=store, runs=folder / "runs", figures=folder, device=torch.device("cpu"), batch_size=10, stop=stop
    )
    data = FigureData(folder=folder, rows=store.read())
    inputs = [one for one in FIGURES[name].inputs if one.model == MODEL and one.missing(data)]
    done = run_jobs(plan_figure(inputs, weights=runner.weights, **plan), runner)
    return done, FigureData(folder=folder, rows=store.read())


def test_the_names_are_those_of_the_drawings():
    assert [name for name, figure in FIGURES.items() if figure.kind not in TABLE_KINDS] == list(DRAWINGS)
    assert all(figure.title and figure.caption.endswith(".") for figure in FIGURES.values())
    assert len(FIGURES["figure-7"].inputs) == 18
    kinds = {one.kind for figure in FIGURES.values() for one in figure.inputs}
    assert kinds == {*SWEEPS, *RECORDS, "timing"}


@pytest.mark.parametrize("figure", [FIGURES[name] for name in DRAWINGS], ids=DRAWINGS)
def test_what_the_data_lack_the_drawing_lacks_too(figure, tmp_path):
    data = FigureData(folder=tmp_path)
    missing = figure.missing(data)
    assert len(missing) == len(figure.inputs)
    drawn = DRAWINGS[figure.name](data)
    said = " ".join(text.get_text().replace("\n", " ") for text in drawn.findobj(Text))
    for source in figure.inputs:
        assert re.search(rf"no [\w ]+ {source.model}\b", said), source.model
        assert any(source.model in words for words in missing)
        assert source.model in recipes.names()


@pytest.mark.parametrize(("name", "kind"), [("figure-2", "examples"), ("figure-3", "curve")])
def test_a_record_is_made_once_from_the_bundled_weights(tmp_path, digits, name, kind):
    done, data = run(tmp_path, name, limit=20)
    assert (done.finished, done.done) == (True, 1)
    record = data.get(kind, MODEL)
    assert record.provenance["weights_sha256"] == fingerprint(zoo.load(MODEL))
    if kind == "examples":
        assert (record.attacks, len(record.truth)) == (("fgsm", "pgd", "df"), 10)
    else:
        assert (record.n, record.eps_adv) == (20, pytest.approx(0.3, abs=1e-6))
    assert run(tmp_path, name)[0].jobs == 0


@pytest.mark.parametrize("name", ["figure-5", "ablation-radius"])
def test_rows_are_measured_once_and_then_nothing_of_the_model_is_missing(tmp_path, digits, name):
    source, *others = FIGURES[name].inputs
    calls = iter(range(1000))
    part, data = run(tmp_path, name, limit=3, stop=lambda: next(calls) >= 12)
    assert not part.finished
    found = len(SWEEPS[source.kind].find(data.rows, MODEL))
    assert 0 < found < SWEEPS[source.kind].size
    assert source.missing(data) == f"only {found} of {SWEEPS[source.kind].size} {source.need} yet"
    done, data = run(tmp_path, name, limit=3)
    assert done.finished
    assert len(FIGURES[name].missing(data)) == len(others)
    assert run(tmp_path, name, limit=3)[0].jobs == 0


def test_a_model_without_weights_is_trained_first():
    source = FigureInput("curve", MODEL)
    training, measuring = plan_figure([source], weights=lambda recipe, seed: None, epochs=3, limit=50)
    assert training == TrainingJob(recipe=MODEL, seed=0, epochs=3)
    assert (measuring.source, measuring.n) == (source, 50)
    assert measuring.work < plan_figure([source], weights=lambda recipe, seed: KEPT)[0].work


def test_timings_are_found_by_what_and_model_and_their_mean(tmp_path):
    def missing(what, model, **seconds):
        row = {"what": what, "model": model, "paths": {"ours": {"seconds": {"median": 1.0, **seconds}}}}
        return FigureInput("timing", MODEL).missing(FigureData(folder=tmp_path, timings=[row]))

    assert missing("train", MODEL, mean=1.0) is None
    for other in (("purify", MODEL), ("train", "mnist-cnn-dr")):
        assert f"(soap bench train --alone --epochs 30 --model {MODEL})" in missing(*other, mean=1.0)
    assert missing("train", MODEL) is not None  # the older format


def test_what_is_kept_was_made_with_the_bundled_weights_and_is_small():
    """Stale files fail here: remove them and make them again."""
    assert sum(path.stat().st_size for path in KEPT.glob("*.npz")) < 3_000_000
    kept = [(kind, name) for kind in RECORDS for name in zoo.names() if record_path(KEPT, kind, name).exists()]
    assert kept
    for kind, name in kept:
        record = read(record_path(KEPT, kind, name), RECORDS[kind])
        assert record.provenance["weights_sha256"] == fingerprint(zoo.load(name)), (kind, name)
