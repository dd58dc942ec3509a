"""The fixture `run`: the command line as a user calls it, in an empty folder."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from soap.cli import main


@dataclass
class Outcome:
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("evaluate", "mnist-fcn-dr")` in a new folder, with only the bundled data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOAP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SOAP_COMMIT", "test")  # avoids a call of git for each row

    def call(*arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return call
