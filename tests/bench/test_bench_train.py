"""Training epochs with a fake clock: what is timed, and how the loops alternate."""

from dataclasses import replace

import pytest
import torch

from soap import recipes
from soap.bench.inputs import BenchSetup
from soap.bench.reference import PlainTraining
from soap.bench.training import bench_train
from soap.training.joint_step import JointStep
from soap.training.loop import TrainingLoop

CPU = torch.device("cpu")
RECIPE = replace(recipes.read("mnist-fcn-no-def"), data="mnist-mini")
BATCH, STEPS = 2500, 4
OURS, PLAIN, WEIGHTS = 2.0, 7.0, 1000.0


@pytest.fixture
def calls(monkeypatch):
    """The order of events; a step of ours takes 2 seconds, of the reference 7, and writing weights 1000."""
    done, now = [], [0.0]

    def taking(name, seconds, method):
        def slow(*arguments, **settings):
            now[0] += seconds
            done.append(name)
            return method(*arguments, **settings)

        return slow

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(JointStep, "__call__", taking("ours", OURS, JointStep.__call__))
    monkeypatch.setattr(PlainTraining, "_train_step", taking("plain", PLAIN, PlainTraining._train_step))
    monkeypatch.setattr(TrainingLoop, "_save_weights", taking("weights", WEIGHTS, TrainingLoop._save_weights))
    return done


def measured(watch=lambda *progress: None, **settings):
    return bench_train(BenchSetup(device=CPU, rate=1e9, watch=watch), RECIPE, batch_size=BATCH, **settings)


def test_alone_our_loop_runs_once_and_its_end_is_not_timed(calls):
    seen = []
    row = measured(epochs=3, alone=True, watch=lambda *progress: seen.append(progress))
    assert calls == ["ours"] * 4 * STEPS + ["weights"]
    seconds = row["paths"]["ours"]["seconds"]
    assert (seconds["mean"], seconds["deviation"], seconds["median"]) == (STEPS * OURS, 0, STEPS * OURS)
    assert seconds["repeats"] == 3
    assert row["paths"]["ours"]["images_per_second"] == BATCH / OURS
    assert seen == [("timing", k, 4) for k in (1, 2, 3, 4)]


def test_both_loops_alternate(calls):
    row = measured(epochs=2)
    turns = [*(["ours"] * STEPS + ["plain"] * STEPS) * 3, "weights"]
    assert calls[-len(turns) :] == turns
    assert row["paths"]["ours"]["seconds"]["mean"] == STEPS * OURS
    assert row["paths"]["plain"]["seconds"]["mean"] == STEPS * PLAIN
    assert row["paths"]["plain"]["ratio"] == PLAIN / OURS
    losses = row["agreement"]["plain"]
    assert losses["first_loss_ours"] == pytest.approx(losses["first_loss_plain"], rel=1e-3)


def test_shortened_epochs_are_scaled_alone_and_with_the_reference(calls):
    rows = [measured(epochs=1, steps=3, alone=alone) for alone in (True, False)]
    for row in rows:
        assert row["paths"]["ours"]["seconds"]["mean"] == STEPS * OURS
        assert row["notes"][0] == "3 steps were timed and scaled to the 4 of an epoch."
    assert rows[1]["paths"]["plain"]["seconds"]["mean"] == STEPS * PLAIN
    assert list(rows[0]["paths"]) == ["ours"]


def test_the_compiler_is_reset_before_each_model(monkeypatch):
    done = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: done.append("reset"))
    monkeypatch.setattr(torch, "compile", lambda losses: done.append("compile") or losses)
    for _ in range(2):
        row = measured(epochs=1, steps=3, alone=True, compiled=True)
        assert row["case"]["compiled"] == "true"
    assert done == ["reset", "compile"] * 2
