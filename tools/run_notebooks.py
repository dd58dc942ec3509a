"""Run the notebooks in docs/notebooks and store their outputs: `make notebooks`. No Jupyter is needed.

    python tools/run_notebooks.py [NOTEBOOK...]

The code cells are plain Python, run in order in one namespace, in a temporary folder. A cell's outputs are what it
prints and the value of its last expression, as text and as HTML where the object has `_repr_html_`.
"""

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def lines(text: str) -> list[str]:
    """Return the text as a notebook stores it: lines with their ends."""
    return text.splitlines(keepends=True)


def run_cell(source: str, names: dict[str, Any], title: str) -> list[dict[str, Any]]:
    """Run a cell in the namespace and return its outputs."""
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, title, "exec"), names)
        if last is not None:
            value = eval(compile(last, title, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = lines(value._repr_html_())
        outputs.append({"output_type": "execute_result", "metadata": {}, "data": data})
    return outputs


def run_notebook(path: Path) -> dict[str, Any]:
    """Return the notebook with the outputs of a new run; the file is not changed."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), torch.random.fork_rng(devices=[]):
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, cell in enumerate(code, 1):
            outputs = run_cell("".join(cell["source"]), names, f"{path.name}, cell {number}")
            cell["execution_count"] = number
            cell["outputs"] = [
                {**one, "execution_count": number} if one["output_type"] == "execute_result" else one for one in outputs
            ]
    return notebook


if __name__ == "__main__":
    os.environ.setdefault("SOAP_COMMIT", "notebook")
    for given in map(Path, sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb")))):
        text = json.dumps(run_notebook(given), indent=1, ensure_ascii=False) + "\n"
        given.write_text(text, encoding="utf-8")
        print(f"{given}: {len(text) / 1e3:.0f} kB")
