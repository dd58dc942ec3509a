"""Measure what was tried to purify faster on a GPU and left out, so that anyone can try again.

    python tools/bench_variants.py cifar10-resnet18-lc.safetensors results/variants-h200.jsonl

Each variant is a process of its own: cuDNN remembers the algorithms it has chosen.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from soap import bench
from soap._runtime import devices
from soap.bench.purification import bench_purify
from soap.purifiers import soap as purifier

VARIANTS = {
    "as it is": lambda: None,
    "cuDNN times its algorithms": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "no bound on points side by side": lambda: purifier.MAX_POINTS_AT_ONCE.pop("cuda"),
    "without TF32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
}
BATCHES = (128, 1024)


def measure(name: str, weights: str, out: Path) -> None:
    """Append a row for each batch size, with the variant in its case."""
    device = devices.pick_device("cuda")
    VARIANTS[name]()
    subject, rates = bench.load_bench_model(weights, device), bench.measure_rates(device)
    for batch in BATCHES:
        row = bench_purify(subject, rates, batch=batch, device=device, repeats=5)
        command = {"command": f"python tools/bench_variants.py {weights}"}
        row = replace(row, case={**row.case, "variant": name}, provenance={**row.provenance, **command})
        bench.append(out, row)


if __name__ == "__main__":
    weights, out, *one = sys.argv[1:]
    if one:
        measure(one[0], weights, Path(out))
    else:
        for name in VARIANTS:
            subprocess.run([sys.executable, __file__, weights, out, name], check=True)
