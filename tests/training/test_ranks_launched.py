"""The commands under both launchers, as users start them: a training that is stopped, an evaluation, a refusal."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import PATIENCE, launched

from soap._files.tensor_files import load_tensors
from soap.cli import main
from soap.training import checkpoint

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGTERM")


def test_torchrun_trains_and_a_sigterm_stops_all_and_saves_once(tmp_path, capsys):
    command = ("train", "mnist-fcn-dr", "--data", "mnist-mini", "--epochs", "2000", "--out", "run", "--device", "cpu")
    with launched("torchrun", "-m", "soap", *command, folder=tmp_path) as process:
        wait_for(tmp_path / "run" / "metrics.jsonl", process)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert out.count("stopped at step") == 1, errors
    assert errors.count("A checkpoint is saved") == 1, errors
    assert "error:" not in errors.replace("ChildFailedError:", ""), errors
    _, metadata = load_tensors(tmp_path / "run" / checkpoint.NAME)
    state = json.loads(metadata["state"])
    assert out.split("stopped at step ")[1].split()[0] == f"{state['step']:,}"
    assert state["identity"]["processes"] == 2
    assert not (tmp_path / "run" / checkpoint.PREVIOUS).exists()  # it was saved once
    assert not list((tmp_path / "run").glob(".*"))  # nothing half-written
    assert main([*command[:7], str(tmp_path / "run"), "--device", "cpu", "--resume"]) == 2
    assert "processes differ" in capsys.readouterr().err


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until the file is there."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def test_when_one_process_fails_all_end_and_the_launcher_says_so(tmp_path):
    cases = (str(Path(__file__).parent / "rank_cases.py"), str(tmp_path / "run"), "fail")
    with launched("torchrun", *cases, folder=tmp_path) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "ArithmeticError: the last process fails" in errors
    assert not (tmp_path / "run" / "last.safetensors").exists()
    assert not (tmp_path / "run" / "seen-0.json").exists()


def test_accelerate_launch_evaluates_and_one_process_speaks(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOAP_COMMIT", "test")
    asked = ("evaluate", "mnist-fcn-dr", "--data", "mnist-mini", "--limit", "23", "--batch", "10", "--attack", "fgsm")
    common = ("--json", "--device", "cpu")
    with launched("accelerate", "-m", "soap", *asked, *common, folder=tmp_path) as process:
        out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert errors.count("The rows are in") == 1, errors
    found = json.loads(out)  # one object, by one process
    assert main([*asked, *common, "--results", str(tmp_path / "alone.jsonl")]) == 0
    wanted = json.loads(capsys.readouterr().out)
    figures = ("key", "n", "correct", "accuracy", "measures", "settings", "defence")
    assert [[row[name] for name in figures] for row in found["rows"]] == [
        [row[name] for name in figures] for row in wanted["rows"]
    ]
    assert len((tmp_path / "runs" / "results.jsonl").read_text().splitlines()) == len(found["rows"]) == 2
