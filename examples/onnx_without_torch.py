"""Purify and classify with the files of `soap export`, numpy and onnxruntime, without PyTorch.

    soap export mnist-fcn-dr --out onnx
    python examples/onnx_without_torch.py onnx images.npz

images.npz contains `x`, float32 [n, ...] in [0, 1]. The program runs the purification steps once for every radius; each
image gets the smallest radius that minimises its auxiliary loss. `whole.onnx` does the same in one call, and faster.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

TIE = 1e-5  # relative; radii that clip no step end at the same point up to rounding, so their losses are ties


def main(folder: Path, images: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and radii of purification."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    sessions = {name: onnxruntime.InferenceSession(folder / part["file"]) for name, part in manifest["parts"].items()}
    settings = manifest["settings"]
    x0 = np.load(images)["x"].astype(np.float32)
    points = []
    for radius in settings["grid"]:
        x = x0
        ball = {"step_size": np.array(settings["step_size"], np.float32), "eps": np.full(len(x0), radius, np.float32)}
        for _ in range(settings["steps"]):
            (x,) = sessions["step"].run(None, {"x": x, "x0": x0, **ball})
        points.append(x)
    losses = np.stack([sessions["loss"].run(None, {"x": x})[0] for x in points])  # [radii, n]
    choice = np.argmax(losses <= losses.min(0) * (1 + TIE), axis=0)
    purified = np.stack(points)[choice, np.arange(len(x0))]
    (logits,) = sessions["classifier"].run(None, {"x": purified})
    return logits.argmax(1), np.float32(settings["grid"])[choice]


if __name__ == "__main__":
    labels, radii = main(Path(sys.argv[1]), Path(sys.argv[2]))
    for label, radius in zip(labels, radii, strict=True):
        print(f"{label} (radius {radius:g})")
