"""The documentation is correct: its Python blocks run, its command lines parse, its linked files exist."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
import typer.main
from service_process import service_process

import soap
from soap._runtime.isolation import preserved_random_state
from soap.cli import COMMANDS, app, load_command, main

ROOT = Path(__file__).parents[1]
ALL_RUN = "All blocks of this page run in order as a test"
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
WITH_README = {**TEXTS, "README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
SHELLS = ("console", "sh", "")


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(content: str) -> list[str]:
    """The lines of a shell block that call soap."""
    return [line for line in content.splitlines() if line.startswith("soap ")]


PYTHON = sorted(page for page, text in TEXTS.items() if any(kind == "python" for kind, _ in blocks(text)))
TYPED = sorted(
    {
        (page, line)
        for page, text in WITH_README.items()
        for kind, content in blocks(text)
        if kind in SHELLS
        for line in commands(content)
    }
)
MENTIONED = sorted(
    {
        (page, " ".join(words.split()))
        for page, text in WITH_README.items()
        for words in re.findall(r"`(soap [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    }
)
RECORDED = r"^- `(soap [^`]+)`: .*commit [0-9a-f]{12}, "
"""A command below rendered rows: as it was typed at that commit."""
FORMER = {"--grow"}
"""Options of recorded commands that are gone; docs/performance.md says what to use instead."""


SMALLER = {
    "docs/your_own_model.md": {
        "few = test.take(len(test) // 10)": "few = test.take(6)",
        'out="runs/quick", steps=5': 'out="runs/quick", steps=3',
        'out="runs/full", steps=5, queries=20': 'out="runs/full", steps=2, queries=10',
        "--out onnx": "--out onnx --part step",
    }
}
"""Numbers that the test lowers, by page: images, steps and queries of the suite runs, and the ONNX files."""


def test_blocks_and_commands_are_found():
    assert {"docs/your_own_model.md", "docs/tutorial.md", "docs/method.md", "docs/index.md"} <= {*PYTHON}
    assert len(TYPED) > 20
    assert len(MENTIONED) > 20


@pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning")  # foolbox imports deprecated names of scipy
@pytest.mark.usefixtures("unchecked_shapes")  # as for a user; the run-time checks are slow
@pytest.mark.parametrize("page", PYTHON)
def test_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOAP_COMMIT", "test")
    monkeypatch.syspath_prepend(tmp_path)  # for the files that a page asks to save
    names: dict[str, object] = {"__name__": "__main__", "soap": soap}
    printed = io.StringIO()
    with preserved_random_state(), contextlib.redirect_stdout(printed):
        torch.manual_seed(0)  # foolbox draws random starts from the global state
        text = TEXTS[page]
        for of_the_page, smaller in SMALLER.get(page, {}).items():
            assert text.count(of_the_page) == 1
            text = text.replace(of_the_page, smaller)
        for number, (kind, content) in enumerate(blocks(text), 1):
            if saved := re.match(r"# (\w+\.py)\n", content):
                (tmp_path / saved[1]).write_text(content)
            elif kind == "python":
                exec(compile(content, f"{page}, block {number}", "exec"), names)
            elif ALL_RUN in text:
                for line in commands(content):
                    if line.startswith("soap serve"):  # runs until it is stopped
                        continue
                    assert main(shlex.split(line, comments=True)[1:]) == 0, line
    if (check := CHECKS.get(Path(page).stem)) is not None:
        check(names, printed.getvalue(), tmp_path)


def check_your_own_model(names, printed, folder):
    bare, untrained, tuned = (names[key] for key in ("bare", "untrained", "tuned"))
    assert bare["clean"] > 0.85
    assert bare["attacked"] < 0.15
    assert untrained["attacked"] > bare["attacked"]
    assert untrained["clean"] < bare["clean"]
    assert tuned["attacked"] > tuned["attacked, not purified"]
    assert tuned["clean"] > 0.85
    assert names["tuning"].helps
    assert {path.suffix for path in (folder / "runs" / "tune").iterdir()} == {".json", ".png", ".svg"}
    assert re.findall(r"^(quick|full) worst .* of (\d+) images: [A-Z]+", printed, re.MULTILINE) == [
        ("quick", "6"),
        ("full", "4"),
    ]
    assert names["report"].worst == 0  # of the full suite, at a radius that no defence survives
    assert (folder / "onnx" / "step.onnx").exists()
    assert re.search(r"digits/test/7/7\.png +\d \(\d", printed)  # of `soap predict`
    check_served_with_curl(folder)


def check_served_with_curl(folder):
    """Run `soap serve` and curl as the page prints them, but on a free port."""
    shell = "".join(content for kind, content in blocks(TEXTS["docs/your_own_model.md"]) if kind == "console")
    (serve,) = re.findall(r"^soap serve (.*) --port 8000$", shell, re.MULTILINE)
    (curl,) = re.findall(r"^curl .*$", shell, re.MULTILINE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with service_process(folder / "log", models=[], options=serve.split(), environment=environment) as service:
        words = shlex.split(curl.replace("http://127.0.0.1:8000", service.address))
        response = json.loads(subprocess.run(words, check=True, capture_output=True, timeout=60).stdout)
    assert response["name"] in list("0123456789")
    assert response["before"]["name"] in list("0123456789")
    assert response["model"] == "mine"


def check_tutorial(names, printed, folder):
    model, attacked, truth = names["model"], names["attacked"], names["digits"].y
    bare, purified = ((logits.argmax(1) == truth).sum() for logits in (model(attacked), names["defence"](attacked)))
    assert bare <= 2  # "mostly wrong"
    assert purified >= 6  # "mostly correct"
    assert "CHECKS WARNED" in printed
    assert "The report holds" in printed
    files = ("demo.html", "attacked/side-by-side.png", "purified/side-by-side.png", "runs/quick/report.html")
    assert all((folder / file).exists() for file in files)


def shares(printed):
    return [float(share) for share in re.findall(r"tensor\(([\d.]+)\)", printed)]


def check_method(names, printed, folder):
    clean, attacked, purified = shares(printed)
    assert clean > 0.95
    assert attacked < 0.1
    assert purified > attacked + 0.4


def check_index(names, printed, folder):
    bare, purified = shares(printed)
    assert purified > bare + 0.5


def check_other_libraries(names, printed, folder):
    digits = names["digits"]
    clean = (names["defence"](digits.x).argmax(1) == digits.y).float().mean()
    attacked = shares(printed)
    assert len(attacked) == 5  # foolbox, AutoAttack, and three gradient rules
    assert max(attacked) < clean


def check_own_purifier(names, printed, folder):
    assert re.search(r"^worst .* of 10 images: CHECKS WARNED", printed, re.MULTILINE)
    assert len(re.findall(r"^\d+ (?:PASS|WARN|FAIL|NOT RUN) ", printed, re.MULTILINE)) == 22


CHECKS = {
    "your_own_model": check_your_own_model,
    "tutorial": check_tutorial,
    "method": check_method,
    "index": check_index,
    "attack-with-other-libraries": check_other_libraries,
    "evaluate-your-own-purifier": check_own_purifier,
}


def command_of(words: list[str]) -> tuple[object, list[str]]:
    """The command that the words after `soap` name, and its arguments."""
    rest = list(words)
    if not rest or rest[0].startswith("-"):
        return typer.main.get_command(app), rest
    assert rest[0] in COMMANDS, f"no command {rest[0]!r}"
    command = load_command(rest.pop(0))
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    return command, rest


@pytest.mark.parametrize(("page", "line"), TYPED)
def test_command_lines_parse(page, line):
    command, rest = command_of(shlex.split(line, comments=True)[1:])
    command.make_context("soap", rest)


@pytest.mark.parametrize(("page", "words"), MENTIONED)
def test_mentioned_commands_and_options_exist(page, words):
    if re.match(r"soap [A-Z]", words):  # `soap COMMAND --help`: any command
        return
    command, rest = command_of(shlex.split(words)[1:])
    known = {option for parameter in command.params for option in parameter.opts}
    if words in re.findall(RECORDED, WITH_README[page], re.MULTILINE):
        known |= FORMER
    assert {word.split("=")[0] for word in rest if word.startswith("-")} <= known | {"-h", "--help"}


@pytest.mark.parametrize("page", sorted(TEXTS))
def test_linked_files_exist(page):
    for target in re.findall(r"\]\(([^)#:\s]+)[)#]", TEXTS[page]):
        assert ((ROOT / page).parent / target).exists(), target
