"""Layers: a module imports its own package and packages of lower layers, nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "soap"

LAYERS = (  # a module may import modules of earlier lines and of its own line
    ("errors",),
    ("shapes",),
    ("specs",),
    ("validate",),
    ("_files",),
    ("_runtime",),
    ("balls", "descent"),
    ("results",),
    ("data",),
    ("models",),
    ("auxiliary",),
    ("purifiers",),
    ("gradient_rules", "detection_scores", "defence"),
    ("attacks", "constraints"),
    ("training",),
    ("evaluation",),
    ("estimator",),
    ("recipes", "zoo", "hub"),
    ("report",),
    ("bench",),
    ("TOP",),  # the names of `import soap`
    ("pictures",),
    ("serve",),
    ("onnx_export",),
    ("paper",),
    ("cli",),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
INDEPENDENT = {frozenset(pair) for pair in (("serve", "onnx_export"), ("serve", "pictures"), ("data", "models"))}
"""Pairs that must not import each other, whatever their order in the table."""


def imported(tree: ast.AST, package: tuple[str, ...], modules: set[str]) -> Iterator[tuple[int, str]]:
    """Return (line, module or package below soap) of every import of soap; "TOP" for a name of `import soap` itself.

    `modules` distinguishes the `x` of `from soap import x` that is a module from one that is a name of the top level.
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
            yield node.lineno, parts[1] if len(parts) > 1 else name if name in modules else "TOP"


def violations(package: Path) -> list[str]:
    """Return one line for each file outside the table and each import of a later layer.

    A file command*.py is the command of its package: it belongs to the layer `cli`, which nothing else may import.
    """
    found = []
    modules = {entry.name.removesuffix(".py") for entry in package.iterdir()} | set(LAYER)
    for file in sorted(package.rglob("*.py")):
        inside = file.relative_to(package)
        if inside.as_posix() in ("__init__.py", "__main__.py"):
            continue
        own = inside.parts[0].removesuffix(".py")
        if own not in LAYER:
            found.append(f"{inside}: {own!r} is not in the table")
            continue
        here = "cli" if file.stem == "command" or file.stem.startswith("command_") else own
        for line, there in imported(ast.parse(file.read_bytes()), ("soap", *inside.parts[:-1]), modules):
            if there not in LAYER:
                found.append(f"{inside}:{line}: imports {there!r}, which is not in the table")
            elif there == own:
                continue
            elif LAYER[there] > LAYER[here] or frozenset((here, there)) in INDEPENDENT:
                found.append(f"{inside}:{line}: {here} imports {there}")
            elif here == "cli" and own not in ("cli", "paper") and there == "paper":
                found.append(f"{inside}:{line}: the command of {own} imports paper")
    return found


def test_imports_follow_the_layers() -> None:
    assert (PACKAGE / "errors.py").is_file()  # otherwise no file would be checked
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
        ("report/page.py", "import soap"),  # the public names
        ("report/page.py", "from soap import load"),
        ("serve/app.py", "from soap.cli import main"),  # no package imports the command line
        ("serve/app.py", "from soap.onnx_export import step"),
        ("report/html.py", "from soap.paper.tables import TABLES"),
        ("onnx_export/page.py", "from soap.paper import rows"),
        ("paper/tables.py", "from soap.cli.console import table"),
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
