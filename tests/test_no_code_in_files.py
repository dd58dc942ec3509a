"""Reading a file never runs code: the package does not unpickle, evaluate or import what a file contains."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "soap"

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
CALLS = {"torch.load", "torch.jit.load", "torch.hub.load", "pandas.read_pickle", "os.system", "os.popen"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
LOADS_ARRAYS = {"np.load", "numpy.load"}


def unsafe_calls(tree: ast.AST) -> Iterator[str]:
    """Yield calls and imports that could run code from a file, with their line numbers."""
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
            through_shell = any(one.arg == "shell" and not _false(one.value) for one in node.keywords)
            if name.startswith("subprocess.") and through_shell:
                yield f"{node.lineno}: {name} through a shell"


def _refuses(keyword: ast.keyword) -> bool:
    return keyword.arg == "allow_pickle" and _false(keyword.value)


def _false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def test_package_has_no_call_that_runs_code_from_a_file() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100  # an empty list would prove nothing
    found = [
        f"{file.relative_to(PACKAGE)}:{line}" for file in files for line in unsafe_calls(ast.parse(file.read_bytes()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "def f():\n    import yaml",
        "import torch\ntorch.load('x')",
        "torch.load('x', weights_only=True)",  # still reads a pickle
        "np.load('x')",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=flag)",
        "eval(text)",
        "__import__(name)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_unsafe_call_is_found(source: str) -> None:
    assert len(list(unsafe_calls(ast.parse(source)))) == 1


@pytest.mark.parametrize("source", ["np.load(f, allow_pickle=False)", "model.eval()", "re.compile(p)", "import json"])
def test_safe_call_is_accepted(source: str) -> None:
    assert not list(unsafe_calls(ast.parse(source)))
