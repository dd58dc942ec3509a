"""Running the paper's cells: what is trained and measured, that nothing is done twice, that a stop loses nothing."""

from dataclasses import replace

import pytest
from tiny_recipes import OWN, cells, go, own_recipes  # noqa: F401

from soap import recipes, zoo
from soap._files import tensor_files
from soap.auxiliary import Reconstruction
from soap.errors import InputError
from soap.evaluation import fingerprint
from soap.paper.black_box import SUBSTITUTES
from soap.paper.tables import CellQuery
from soap.results import Row, Store
from soap.specs import TrainingSpec
from soap.training import checkpoint, loop

pytestmark = pytest.mark.usefixtures("own_recipes")
STEPS = 5  # an epoch of 10,000 digits in batches of 2,000


def figures(rows: list[Row]) -> list[tuple[str, int]]:
    return sorted((row.key, row.correct) for row in rows)


def test_one_go_trains_and_measures_and_a_second_does_nothing(tmp_path):
    wanted = [*cells("none", "fgsm", "df"), *cells("fgsm", recipe="tiny-no-def")]
    titles, notes = [], []
    show = lambda *step, note: notes.append(note)  # noqa: E731
    done = go(tmp_path, wanted, announce=titles.append, show=show, epochs=1)
    assert (done.finished, done.jobs, done.done, done.skipped) == (True, 6, 6, {})
    assert Store(tmp_path / "rows.jsonl").read() == done.rows
    assert len(done.rows) == 7
    for cell in wanted:
        assert len(cell.found_in(done.rows)) == 1
    assert {row.training for row in done.rows} == {TrainingSpec(epochs=1, seed=0, precision="fp32")}
    assert "[changed]\nepochs = 1\n" in (tmp_path / "runs/tiny-dr/recipe.toml").read_text()
    assert (len(titles), titles[0]) == (6, "1/6 tiny-dr: train for 1 epochs")
    assert list(dict.fromkeys(notes)) == titles
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = go(tmp_path, wanted)
    assert (again.finished, again.jobs, again.rows) == (True, 0, [])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    # Rows kept elsewhere count as well.
    elsewhere = go(tmp_path, wanted, rows=done.rows, results=tmp_path / "other.jsonl")
    assert (elsewhere.jobs, (tmp_path / "other.jsonl").exists()) == (0, False)
    # One purifier more attacks again, and measures that one alone.
    more = go(tmp_path, cells("fgsm", choices=("oracle",)), rows=done.rows, results=tmp_path / "other.jsonl")
    assert [(row.attack.name, row.defence.eps) for row in more.rows] == [("fgsm", "oracle")]


def test_a_stop_anywhere_and_a_second_run_give_the_rows_of_one_go(tmp_path):
    wanted = cells("none", "fgsm")
    whole = go(tmp_path / "whole", wanted, epochs=1)
    steps = []
    # Asked before each job, after each of 5 training steps, and before each batch: 3 attacked, 3 bare, 3 purified.
    for asked in (0, 3, 8, 14, 16, 24):
        calls = iter(range(10_000))
        part = go(tmp_path / str(asked), wanted, epochs=1, stop=lambda: next(calls) >= asked)  # noqa: B023
        assert not part.finished
        assert figures(part.rows) == [each for each in figures(whole.rows) if each in figures(part.rows)]
        steps.append((part.done, len(part.rows)))
        rest = go(tmp_path / str(asked), wanted, epochs=1)
        assert rest.finished
        assert figures([*part.rows, *rest.rows]) == figures(whole.rows)
    assert steps == [(0, 0), (0, 0), (1, 0), (1, 1), (2, 2), (2, 3)]


def test_a_training_that_was_killed_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    wanted = cells("none")
    whole = go(tmp_path / "whole", wanted)
    monkeypatch.setattr(loop, "SAVE_INTERVAL_S", -1.0)  # a checkpoint every epoch
    losses, calls = Reconstruction.losses, []

    def counted(self, *given):
        calls.append(None)
        if len(calls) == STEPS + 3:
            raise KeyboardInterrupt
        return losses(self, *given)

    monkeypatch.setattr(Reconstruction, "losses", counted)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, wanted)
    assert not (tmp_path / "runs/tiny-dr/last.safetensors").exists()
    calls.extend([None] * STEPS)  # past the step at which it is killed
    begun = len(calls)
    done = go(tmp_path, wanted)
    assert len(calls) - begun == STEPS  # the second epoch alone
    assert figures(done.rows) == figures(whole.rows)


def test_a_checkpoint_at_its_end_without_weights_is_told(tmp_path):
    wanted = cells("none")
    go(tmp_path, wanted)
    (tmp_path / "runs/tiny-dr/last.safetensors").unlink()
    (tmp_path / "rows.jsonl").unlink()
    done = go(tmp_path, wanted)
    assert (done.finished, done.done, len(done.skipped)) == (True, 0, 2)
    assert all("remove checkpoint.safetensors there" in reason for reason in done.skipped.values())


def test_seeds_are_trained_apart(tmp_path):
    done = go(tmp_path, cells("none", choices=("none",)), seeds=(0, 3), epochs=1)
    assert [row.training.seed for row in done.rows] == [0, 3]
    assert len({row.provenance.weights_sha256 for row in done.rows}) == 2
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"tiny-dr", "tiny-dr-seed-3"}
    assert go(tmp_path, cells("none", choices=("none",)), seeds=(3, 0)).jobs == 0


def test_one_attack_serves_every_gradient(tmp_path):
    wanted = [
        CellQuery(recipe="tiny-lc", attack="pgd", eps_pfy="min-aux", gradient=gradient, n=10)
        for gradient in (None, "stop", "exact")
    ]
    done = go(tmp_path, wanted, epochs=1)
    assert (done.jobs, len(done.rows)) == (2, 4)
    found = [row.defence for cell in wanted for row in cell.found_in(done.rows)]
    for name, defence in zip(("paper", "stop", "exact"), found, strict=True):
        assert defence.settings["task"] == {"gradient": name}
    # Each purifier went by its own gradient: the losses it ended at tell.
    ends = {row.measures["mean_loss_after"] for row in done.rows if row.defence in found}
    assert len(ends) == 3


def test_bundled_weights_are_used_for_seed_0_and_the_black_box_is_measured(tmp_path, monkeypatch):
    target, name = "mnist-fcn-dr", "substitute-fcn"
    mini, read = replace(recipes.read(target), data="mnist-mini"), recipes.read
    monkeypatch.setattr(recipes, "read", lambda name: mini if name == target else read(name))
    monkeypatch.setitem(SUBSTITUTES, name, replace(SUBSTITUTES[name], seeds=20, rounds=1, epochs=1))
    wanted = [CellQuery(recipe=target, attack=name, eps_pfy=choice, n=50) for choice in ("none", "min-aux")]
    done = go(tmp_path, wanted, batch_size=100)
    assert (done.finished, done.jobs, (tmp_path / "runs").exists()) == (True, 1, False)
    assert [cell.found_in(done.rows) for cell in wanted] == [[row] for row in done.rows]
    assert {row.provenance.images for row in done.rows} == {"20..69 of test; those before are the attacker's"}
    assert {row.provenance.weights_sha256 for row in done.rows} == {fingerprint(zoo.load(target))}
    assert go(tmp_path, wanted).jobs == 0


def test_missing_data_are_told_and_the_rest_is_done(tmp_path):
    wanted = [*cells("none", "pgd", recipe="tiny-mnist"), *cells("none")]
    done = go(tmp_path, wanted, data_root=tmp_path / "empty")
    assert (done.finished, done.jobs, done.done, len(done.rows)) == (True, 5, 2, 2)
    assert [type(job).__name__ for job in done.skipped] == ["TrainingJob", "EvaluationJob", "EvaluationJob"]
    assert all("soap data download mnist" in reason for reason in done.skipped.values())
    assert not (tmp_path / "runs/tiny-mnist").exists()


def test_weights_of_a_trial_are_refused(tmp_path):
    wanted = cells("none", choices=("none",))
    go(tmp_path, wanted)
    folder = tmp_path / "runs/tiny-dr"
    tensors, metadata = tensor_files.load_tensors(folder / "last.safetensors")
    other = metadata["recipe"].replace("alpha = 100.0", "alpha = 1.0")
    tensor_files.save_tensors(folder / "last.safetensors", tensors, {**metadata, "recipe": other})
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(InputError, match=r"was not trained by the recipe tiny-dr .* move its folder"):
        go(tmp_path, wanted)
    # On some of the images only: the recipe is the same, the data are not.
    published = OWN["tiny-mnist"]
    tensor_files.save_tensors(
        tmp_path / "runs/tiny-mnist/last.safetensors", tensors, {"recipe": published, "data": "c" * 64}
    )
    with pytest.raises(InputError, match="on all of mnist;"):
        go(tmp_path, cells("none", recipe="tiny-mnist"))


def test_a_half_done_training_with_another_schedule_is_refused(tmp_path):
    calls = iter(range(100))
    go(tmp_path, cells("none"), stop=lambda: next(calls) >= 4)
    assert (tmp_path / "runs/tiny-dr" / checkpoint.NAME).exists()
    with pytest.raises(InputError, match="belongs to another run"):
        go(tmp_path, cells("none"), epochs=1)


def test_no_weights_are_bundled_of_the_tiny_recipes():
    assert not set(OWN) & set(zoo.names())  # else the tests above would train nothing
