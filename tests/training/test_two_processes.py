"""Two processes, started by torchrun, against one: the same losses, the same rows, one set of files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from launching import TIMEOUT_S, launched
from process_cases import BAD_STEP, COUNTS, STEPS, begin_alone, everything, noise, resume_another
from run_content import content
from tiny import tiny_model

from soap._runtime.seeding import seed_for
from soap.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return the folder in which two processes and one process have run all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    begin_alone(folder / "two" / "single")
    cases = (str(Path(__file__).parent / "process_cases.py"), str(folder / "two"))
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, launched("torchrun", *cases, folder=folder) as together:
        patch.setenv("SOAP_COMMIT", "test")
        torch.set_num_threads(1)  # as in the launched processes
        begin_alone(folder / "one" / "single")
        (folder / "one" / "seen-0.json").write_text(json.dumps(everything(folder / "one")))
        torch.set_num_threads(threads)
        _, errors = together.communicate(timeout=TIMEOUT_S)
    assert together.returncode == 0, errors
    return folder


@pytest.fixture(scope="module")
def alone(folder) -> dict:
    """Return the results of one process."""
    return json.loads((folder / "one" / "seen-0.json").read_text())


@pytest.fixture(scope="module")
def two(folder) -> list[dict]:
    """Return the results of each of two processes."""
    return [json.loads((folder / "two" / f"seen-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("task", ["reconstruction", "rotation", "consistency", "adversarial"])
def test_losses_of_every_step_equal_those_of_one_process(alone, two, task):
    wanted = np.array(alone["losses"][task])
    got = np.array(two[0]["losses"][task])
    assert len(wanted) == STEPS
    assert wanted[0, 0] != wanted[-1, 0]  # training changes the loss
    assert np.abs(got - wanted).max() <= 1e-5
    assert two[1]["losses"] == two[0]["losses"]


def test_no_thread_outlives_the_process_group(folder):
    """Such a thread once aborted a finished process at interpreter shutdown."""
    for rank in (0, 1):
        names = json.loads((folder / "two" / f"threads-{rank}.json").read_text())
        if not names:
            pytest.skip("this system has no /proc to list threads from")
        assert not [name for name in names if "gloo" in name]


def test_random_draws_affect_the_losses(alone):
    """Otherwise equal losses would not test the random draws."""
    assert alone["losses"]["rotation"] != alone["losses"]["consistency"]
    assert len({tuple(step) for step in alone["losses"]["reconstruction"]}) == STEPS


def test_batch_norm_normalises_per_process_and_averages_statistics(two):
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
        assert not torch.allclose(torch.tensor(statistics["mean"]), 0.1 * means[0])  # the parts differ


def test_stop_requested_by_one_process_stops_all_and_resumes_exactly(two):
    first, second = (found["resumed"] for found in two)
    assert first == second
    assert first["step"] == 7
    assert first["resumed"] == first["whole"]


def test_only_the_main_process_writes_files(alone, two):
    assert two[0]["files"] == alone["files"]
    assert {"adversarial/metrics.jsonl", "nan/nonfinite.safetensors", "23.jsonl"} < {*two[0]["files"]}
    assert two[1]["files"] == []


def test_nan_loss_in_one_process_stops_all_at_the_same_step(alone, two):
    for found in (alone, *two):
        assert f"loss of step {BAD_STEP} " in found["errors"]["nan"]


def test_uneven_batch_and_generative_training_raise_in_all_processes(two):
    for found in two:
        errors = found["errors"]
        assert "batch of 7 cannot be split evenly among 2 processes" in errors["uneven"]
        assert "train in one process, got 2" in errors["generative"]


def test_run_resumes_only_with_the_same_number_of_processes(folder, alone, two):
    for found in two:
        assert re.search(r"belongs to another run: processes differ", found["errors"]["another world"])
    assert alone["errors"]["another world"] == "nothing"
    with pytest.raises(InputError, match="processes") as refused:
        resume_another(folder / "two" / "shared")
    assert "world" not in str(refused.value)


@pytest.mark.parametrize("n", COUNTS)
def test_rows_equal_those_of_one_process(folder, alone, two, n):
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


def test_a_suite_run_equals_that_of_one_process(folder, alone, two):
    """Files, too: attacked images, facts of the checks, rows, verdict and seal."""
    assert alone["suite"]["stopped"]
    assert {"clean", "noise", "transfer", "worst"} < {row["attack"]["name"] for row in alone["suite"]["rows"]}
    assert alone["suite"]["images"] == [4, 5, 6, 7, 8, 9, 10]
    for found in two:
        assert found["suite"] == alone["suite"]
    assert content(folder / "two" / "suite") == content(folder / "one" / "suite")


def test_a_suite_in_the_folder_of_another_run_raises_in_all_processes(alone, two):
    assert [found["suite"]["error"] for found in (alone, *two)] == [True, True, True]


def test_evaluation_stopped_by_one_process_ends_in_all(two):
    for found in two:
        assert found["evaluated"]["stopped"] == 0
