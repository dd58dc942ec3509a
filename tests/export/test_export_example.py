"""The example purifies with the exported files where torch cannot even be imported."""

import subprocess
import sys
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_without_torch.py"

WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = None  # an import of it raises
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
loaded = [name for name in sys.modules if name.split(".")[0] in ("torch", "soap") and sys.modules[name] is not None]
assert not loaded, loaded
"""


def test_labels_and_radii_equal_those_of_torch(fcn, fcn_files, some, tmp_path):
    np.savez(tmp_path / "images.npz", x=some.numpy())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, EXAMPLE, fcn_files.folder, tmp_path / "images.npz"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    want = fcn_files.purifier(some)
    labels = fcn(want.x).argmax(1).tolist()
    lines = [f"{label} (radius {eps:g})" for label, eps in zip(labels, want.eps.tolist(), strict=True)]
    # 0.1 as float32 prints as 0.1 either way: %g keeps six digits.
    assert done.stdout.splitlines() == lines
