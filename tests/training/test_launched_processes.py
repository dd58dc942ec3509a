"""Commands under both launchers: a stopped training, a failure, an evaluation."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import TIMEOUT_S, launched
from run_content import content

from soap._files.tensor_files import load_tensors
from soap.cli import main
from soap.training import checkpoint

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGTERM")


def test_torchrun_trains_and_sigterm_stops_all_and_saves_once(tmp_path, capsys):
    digits = ("--data", "mnist-mini", "--limit", "2000", "--epochs", "9000")
    command = ("train", "mnist-fcn-dr", *digits, "--out", "run", "--device", "cpu")
    with launched("torchrun", "-m", "soap", *command, folder=tmp_path) as process:
        wait_for(tmp_path / "run" / "metrics.jsonl", process)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    assert out.count("stopped at step") == 1, errors
    assert errors.count("A checkpoint is saved") == 1, errors
    assert "error:" not in errors.replace("ChildFailedError:", ""), errors
    _, metadata = load_tensors(tmp_path / "run" / checkpoint.NAME)
    state = json.loads(metadata["state"])
    assert out.split("stopped at step ")[1].split()[0] == f"{state['step']:,}"
    assert state["identity"]["processes"] == 2
    assert not (tmp_path / "run" / checkpoint.PREVIOUS).exists()  # saved once
    assert not list((tmp_path / "run").glob(".*"))  # no temporary files
    assert main([*command[:-3], str(tmp_path / "run"), "--device", "cpu", "--resume"]) == 2
    assert "processes differ" in capsys.readouterr().err


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the file exists."""
    end = time.monotonic() + TIMEOUT_S
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def test_failure_of_one_process_ends_all(tmp_path):
    cases = (str(Path(__file__).parent / "process_cases.py"), str(tmp_path / "run"), "fail")
    with launched("torchrun", *cases, folder=tmp_path) as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    assert "ArithmeticError: the last process fails" in errors
    assert not (tmp_path / "run" / "last.safetensors").exists()
    assert not (tmp_path / "run" / "seen-0.json").exists()


ON_DIGITS = ("evaluate", "mnist-fcn-dr", "--data", "mnist-mini")
TRANSFER = (*ON_DIGITS, "--limit", "23", "--batch-size", "10", "--attack", "fgsm", "--json", "--device", "cpu")
SUITE = (
    *ON_DIGITS, "--limit", "9", "--batch-size", "4", "--suite", "noise", "--eps", "0.1", "--json", "--device", "cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory) -> tuple[Path, list[dict], str]:
    """Two commands in the same two processes: their folder, the objects that they printed, and their messages."""
    folder = tmp_path_factory.mktemp("accelerate")
    commands = (str(Path(__file__).parent / "commands.py"), json.dumps([TRANSFER, [*SUITE, "--out", "two"]]))
    with launched("accelerate", *commands, folder=folder) as process:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    return folder, printed(out), errors


def printed(text: str) -> list[dict]:
    """Return the JSON objects that follow one another in a text."""
    found = []
    while text := text.lstrip():
        one, end = json.JSONDecoder().raw_decode(text)
        found, text = [*found, one], text[end:]
    return found


def test_accelerate_launch_evaluates_and_one_process_prints(evaluated, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOAP_COMMIT", "test")
    folder, objects, errors = evaluated
    assert len(objects) == 2  # one of each command, printed by one process
    assert errors.count("The rows are in") == 1, errors
    assert main([*TRANSFER, "--results", str(tmp_path / "alone.jsonl")]) == 0
    found, wanted = objects[0], json.loads(capsys.readouterr().out)
    figures = ("key", "n", "correct", "accuracy", "measures", "attack", "defence")
    assert [[row[name] for name in figures] for row in found["rows"]] == [
        [row[name] for name in figures] for row in wanted["rows"]
    ]
    assert len((folder / "runs" / "results.jsonl").read_text().splitlines()) == len(found["rows"]) == 2


def test_accelerate_launch_runs_a_suite_as_one_process_does(evaluated, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOAP_COMMIT", "test")
    folder, objects, errors = evaluated
    assert errors.count("The run is in two") == 1, errors
    assert main([*SUITE, "--out", str(tmp_path / "one")]) == 0
    wanted = json.loads(capsys.readouterr().out)
    assert [row["correct"] for row in objects[1]["rows"]] == [row["correct"] for row in wanted["rows"]]
    files = [content(place) for place in (folder / "two", tmp_path / "one")]
    for each in files:
        del each["facts/asked.json"]  # the command has another --out
    assert files[0] == files[1]
