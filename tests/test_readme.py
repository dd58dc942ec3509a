"""The README tells the truth: its code runs, its table is rendered from the rows, its files and commands exist."""

import contextlib
import io
import re
from pathlib import Path

import own_attack
import own_task
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_code_blocks_run_and_purification_pays():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    assert len(blocks[0].splitlines()) == 6
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(block, names)
    bare, purified = map(float, printed.getvalue().splitlines()[0].split())
    assert purified > bare + 0.5
    stated = [float(number) for number in re.search(r"This prints `([\d. ]+)`", README)[1].split()]
    assert [bare, purified] == pytest.approx(stated, abs=0.03)  # other processors round differently


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_linked_files_exist(target):
    assert (ROOT / target).exists()


def test_the_commands_of_the_readme_exist():
    from soap.cli import COMMANDS

    used = set(re.findall(r"^soap (\w+)", README, re.MULTILINE))
    assert used <= set(COMMANDS)
    assert len(used) >= 7


def test_an_attack_in_one_file():
    accuracy = own_attack.main(n=60)
    assert accuracy["purified"] > accuracy["bare"] + 0.4


def test_an_auxiliary_task_in_one_file():
    accuracy = own_task.main(epochs=3, n=100)
    assert accuracy["purified"] > accuracy["bare"]
