"""Layers: a module imports its own package and packages of lower layers, nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "soap"

# (layer, the modules or packages of one room). Below 0 lies what every room stands on: errors and shapes, which
# import nothing of soap, and the small rooms that import these two alone.
ROOMS = (
    (-2, {"errors"}),
    (-2, {"shapes"}),
    (-1, {"validate"}),
    (-1, {"_files"}),
    (-0.5, {"_runtime"}),
    (0, {"balls", "descent"}),
    (-1.5, {"specs"}),
    (0, {"results"}),
    (1, {"data"}),
    (1, {"models"}),
    (2, {"auxiliary"}),
    (3, {"purifiers"}),
    (3.5, {"gradient_rules", "defence"}),
    (3.6, {"attacks"}),
    (3.7, {"training"}),
    (4, {"evaluation"}),
    (4, {"estimator"}),
    (5, {"recipes", "zoo"}),
    (6, {"report"}),
    (6, {"bench"}),
    (7, {"pictures"}),
    (6.25, {"bench"}),
    (7, {"serve"}),
    (7, {"export"}),
    (7.5, {"paper"}),
    (8, {"cli"}),
)
LAYER = {name: layer for layer, names in ROOMS for name in names}
ROOM = {name: names for _, names in ROOMS for name in names}
FRONT_DOOR = 6.5  # `import soap` opens every room up to layer 6, so only the skins above may use it


def imported(tree: ast.AST, package: tuple[str, ...], modules: set[str]) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of soap in the tree, at any depth; the front door is the room ''.

    `modules` tells the `x` of `from soap import x` that is a room from the one that is a name of the front door.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [(alias.name.split("."), "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            targets = [(base, alias.name) for alias in node.names]
        else:
            continue
        for parts, name in targets:
            if parts[0] != "soap" or (parts == ["soap"] and name == "__version__"):  # the version is a constant
                continue
            yield node.lineno, parts[1] if len(parts) > 1 else name if name in modules else ""


def is_command(file: Path) -> bool:
    """Whether the file is a command of the CLI that lives in its own package: it may import `soap.cli`."""
    return file.stem == "command" or file.stem.startswith("command_")


def violations(package: Path) -> list[str]:
    """One line for each file outside the table and each import that goes up or sideways."""
    found = []
    modules = {entry.name.removesuffix(".py") for entry in package.iterdir()} | set(LAYER)
    for file in sorted(package.rglob("*.py")):
        inside = file.relative_to(package)
        if inside.as_posix() in ("__init__.py", "__main__.py"):  # the front door
            continue
        here = inside.parts[0].removesuffix(".py")
        if inside.name == "command.py":  # the command of a vertical slice belongs to the command line
            here = "cli"
        if here not in LAYER:
            found.append(f"{inside}: no room named {here!r} in the table")
            continue
        own = ROOM[here] | (ROOM["cli"] if is_command(file) else set())
        tree = ast.parse(file.read_bytes())
        for line, there in imported(tree, ("soap", *inside.parts[:-1]), modules):
            if there and there not in LAYER:
                found.append(f"{inside}:{line}: imports {there!r}, which is not in the table")
            elif there not in own and LAYER.get(there, FRONT_DOOR) >= LAYER[here]:
                target = f"{there} (layer {LAYER[there]})" if there else "the front door"
                found.append(f"{inside}:{line}: {here} (layer {LAYER[here]}) imports {target}")
    return found


def test_the_layers_hold() -> None:
    assert (PACKAGE / "errors.py").is_file()  # an empty walk would prove nothing
    found = violations(PACKAGE)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("purifiers/soap.py", "from soap.attacks import PGD"),  # up
        ("attacks/pgd.py", "import soap.training.schedule as schedule"),
        ("attacks/pgd.py", "from soap import training"),
        ("attacks/pgd.py", "from .. import training"),
        ("attacks/pgd.py", "from ..training import fit"),
        ("attacks/__init__.py", "from ..training import fit"),
        ("attacks/deep/er.py", "from ...training import fit"),
        ("attacks/pgd.py", "from soap.errors import unknown\ndef f():\n    import soap.evaluation"),  # hidden
        ("attacks/pgd.py", "if TYPE_CHECKING:\n    from soap.evaluation import Row"),
        ("balls.py", "from .data import load"),
        ("descent.py", "from soap.results import Row"),
        ("errors.py", "from soap.shapes import Float"),
        ("shapes.py", "from soap.validate import images"),
        ("data/idx.py", "from soap.auxiliary import Task"),  # up
        ("report/page.py", "import soap"),  # the front door
        ("report/page.py", "from soap import load"),
        ("serve/app.py", "from soap.cli import main"),  # nobody imports the command line
        ("serve/app.py", "from soap.export import step"),
        ("report/html.py", "from soap.paper.tables import TABLES"),
        ("export/docs_page.py", "from soap.paper import rows"),
        ("paper/tables.py", "from soap.cli.tables import table"),
        ("report/command.py", "from soap.paper import rows"),
        ("evaluation/grid.py", "from soap.nowhere import x"),
        ("drawer.py", ""),
        ("drawer/odds.py", ""),
    ],
)
def test_a_bad_import_is_found(tmp_path: Path, file: str, source: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(source)
    assert len(violations(tmp_path)) == 1, source


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("attacks/pgd.py", "from soap.descent import walk\nfrom ..errors import InputError\nfrom . import norms"),
        ("attacks/pgd.py", "from soap.attacks.norms import L2\nimport soap.attacks.norms\nfrom .norms import L2"),
        ("attacks/__init__.py", "from .pgd import PGD"),
        ("validate.py", "from soap.errors import InputError\nfrom soap.shapes import Tensor"),
        ("balls.py", "from soap.validate import images\nfrom soap import errors, shapes"),
        ("zoo.py", "from soap.recipes import Recipe"),
        ("paper/command.py", "from soap.cli.shell import Shell\nfrom soap.paper import tables"),
        ("cli/__init__.py", "from soap.paper import command"),
        ("results.py", "from soap import __version__"),
        ("cli/demo.py", "import soap\nfrom soap import load, report"),
        ("bench/command.py", "from soap.cli.console import Console\nfrom soap.bench import read"),
        ("data/idx.py", "import torch\nfrom soapbox import attacks\nimport purifiers"),
        ("__init__.py", "from soap.cli import main"),
        ("__main__.py", "from soap.cli import main"),
    ],
)
def test_a_good_import_passes(tmp_path: Path, file: str, source: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(source)
    assert violations(tmp_path) == []
