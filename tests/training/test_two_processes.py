"""Two processes against one: the same losses, the same rows, one set of files; real processes, started by torchrun."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from launching import PATIENCE, launched
from rank_cases import BAD_STEP, COUNTS, STEPS, begin_alone, everything, noise, resume_another
from tiny import tiny_model

from soap._runtime.seeding import seed_for
from soap.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where two processes have done everything, and one has as well."""
    folder = tmp_path_factory.mktemp("ranks")
    begin_alone(folder / "two" / "single")
    cases = (str(Path(__file__).parent / "rank_cases.py"), str(folder / "two"))
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, launched("torchrun", *cases, folder=folder) as together:
        patch.setenv("SOAP_COMMIT", "test")
        torch.set_num_threads(1)  # as in the others
        begin_alone(folder / "one" / "single")
        (folder / "one" / "seen-0.json").write_text(json.dumps(everything(folder / "one")))
        torch.set_num_threads(threads)
        _, errors = together.communicate(timeout=PATIENCE)
    assert together.returncode == 0, errors
    return folder


@pytest.fixture(scope="module")
def alone(folder) -> dict:
    """What one process saw."""
    return json.loads((folder / "one" / "seen-0.json").read_text())


@pytest.fixture(scope="module")
def two(folder) -> list[dict]:
    """What each of two saw."""
    return [json.loads((folder / "two" / f"seen-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("task", ["reconstruction", "rotation", "consistency", "adversarial"])
def test_every_step_has_the_losses_that_it_has_in_one_process(alone, two, task):
    wanted = np.array(alone["losses"][task])
    got = np.array(two[0]["losses"][task])
    assert len(wanted) == STEPS
    assert wanted[0, 0] != wanted[-1, 0]  # it learns something
    assert np.abs(got - wanted).max() <= 1e-5
    assert two[1]["losses"] == two[0]["losses"]


def test_no_thread_of_the_group_outlives_it(folder):
    """Such a thread aborted a process that had done everything, while Python shut down."""
    for rank in (0, 1):
        names = json.loads((folder / "two" / f"threads-{rank}.json").read_text())
        if not names:
            pytest.skip("this system has no /proc to list threads from")
        assert not [name for name in names if "gloo" in name]


def test_the_numbers_drawn_matter_to_the_losses(alone):
    """Else equality would prove nothing about them."""
    assert alone["losses"]["rotation"] != alone["losses"]["consistency"]
    assert len({tuple(step) for step in alone["losses"]["reconstruction"]}) == STEPS


def test_batch_norms_normalise_by_parts_and_keep_the_mean_of_their_statistics(two):
    parts = tiny_model(seed=3)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed_for(0, 0, 0)))
    seen = parts.encoder[0](noise(20).x[order]).detach()
    means = torch.stack([part.mean((0, 2, 3)) for part in seen.chunk(2)])
    variances = torch.stack([part.transpose(0, 1).flatten(1).var(1) for part in seen.chunk(2)])
    for found in two:
        statistics = found["batch norm"]
        assert statistics["seen"] == 1
        torch.testing.assert_close(torch.tensor(statistics["mean"]), 0.1 * means.mean(0))
        torch.testing.assert_close(torch.tensor(statistics["var"]), 0.9 + 0.1 * variances.mean(0))
        assert not torch.allclose(torch.tensor(statistics["mean"]), 0.1 * means[0])  # the parts do differ


def test_a_stop_that_one_process_asks_for_is_everyones_and_loses_nothing(two):
    first, second = (found["resumed"] for found in two)
    assert first == second
    assert first["step"] == 7
    assert first["resumed"] == first["whole"]


def test_the_first_process_alone_writes(alone, two):
    assert two[0]["files"] == alone["files"]
    assert {"adversarial/metrics.jsonl", "nan/nonfinite.safetensors", "23.jsonl"} < {*two[0]["files"]}
    assert two[1]["files"] == []


def test_a_loss_that_is_no_number_in_one_process_stops_all_at_the_same_step(alone, two):
    for found in (alone, *two):
        assert f"loss of step {BAD_STEP} " in found["refused"]["no number"]


def test_what_cannot_be_shared_out_is_refused_by_all(two):
    for found in two:
        refused = found["refused"]
        assert "batch of 7 cannot be shared out evenly among 2 processes" in refused["uneven"]
        assert "train in one process, got 2" in refused["label-free"]


def test_a_run_is_taken_up_by_as_many_processes_as_began_it(folder, alone, two):
    for found in two:
        assert re.search(r"belongs to another run: processes differ", found["refused"]["another world"])
    assert alone["refused"]["another world"] == "nothing"
    with pytest.raises(InputError, match="processes") as refused:
        resume_another(folder / "two" / "shared")
    assert "world" not in str(refused.value)


@pytest.mark.parametrize("n", COUNTS)
def test_rows_are_those_of_one_process_value_for_value(folder, alone, two, n):
    wanted = alone["evaluated"][str(n)]
    assert wanted["kept"]
    assert len(wanted["rows"]) == 10
    assert wanted["shown"] == [n, n]
    for found in two:
        assert found["evaluated"][str(n)] == wanted
    for path in (folder / "one" / "of-0" / f"images-{n}").iterdir():
        ours = np.load(folder / "two" / "of-0" / f"images-{n}" / path.name)
        theirs = np.load(path)
        assert ours["x"].tobytes() == theirs["x"].tobytes()
        assert ours["y"].tobytes() == theirs["y"].tobytes()


def test_an_evaluation_that_one_process_stops_ends_in_all(two):
    for found in two:
        assert found["evaluated"]["stopped"] == 0
