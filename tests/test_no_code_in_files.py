"""No file that a command reads brings code along: the package never unpickles, evaluates or imports at its word."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "soap"

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
CALLS = {"torch.load", "torch.jit.load", "torch.hub.load", "pandas.read_pickle", "os.system", "os.popen"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
LOADS_ARRAYS = {"np.load", "numpy.load"}


def offences(tree: ast.AST) -> Iterator[str]:
    """What could run code of a file, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{node.lineno}: import {name}" for name in names if name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS or name in BUILTINS:
                yield f"{node.lineno}: {name}"
            if name in LOADS_ARRAYS and not any(_refuses(keyword) for keyword in node.keywords):
                yield f"{node.lineno}: {name} without allow_pickle=False"
            by_shell = any(one.arg == "shell" and not _false(one.value) for one in node.keywords)
            if name.startswith("subprocess.") and by_shell:
                yield f"{node.lineno}: {name} by a shell"


def _refuses(keyword: ast.keyword) -> bool:
    return keyword.arg == "allow_pickle" and _false(keyword.value)


def _false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def test_nothing_in_the_package_runs_what_a_file_holds() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 200  # an empty walk would prove nothing
    found = [f"{file.relative_to(PACKAGE)}:{line}" for file in files for line in offences(ast.parse(file.read_bytes()))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "def f():\n    import yaml",
        "import torch\ntorch.load('x')",
        "torch.load('x', weights_only=True)",  # its reader is a pickle's all the same
        "np.load('x')",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=flag)",
        "eval(text)",
        "__import__(name)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_an_offence_is_found(source: str) -> None:
    assert len(list(offences(ast.parse(source)))) == 1


@pytest.mark.parametrize("source", ["np.load(f, allow_pickle=False)", "model.eval()", "re.compile(p)", "import json"])
def test_what_is_harmless_passes(source: str) -> None:
    assert not list(offences(ast.parse(source)))
