"""docs/scale.md: training on several GPUs, estimated from the GPU rows of results/bench-*.jsonl.

Constants that no row has: link speeds from data sheets, and the network and data set of the estimate. All other
numbers are measured, counted on the models, or computed from these.
"""

from collections.abc import Sequence
from pathlib import Path

from soap import recipes
from soap.bench.performance_page import BenchJson, commands, committed_rows
from soap.report import markdown_table, with_section

LINKS = {"NVLink 4, 900 GB/s both ways": 450e9, "InfiniBand NDR, 400 Gb/s": 50e9, "Ethernet, 25 Gb/s": 25e9 / 8}
"""Bytes a second in one direction, for each GPU."""

GPU_COUNTS = (8, 64)
IMAGENET_IMAGES, SIDE, EPOCHS = 1_281_167, 224, 90
IMAGES_PER_GPU_STEP = 64

RESNET50_OPERATIONS, RESNET50_VALUES, RESNET50_PARAMETERS = 8_178_368_512, 21_779_432, 25_557_032
"""ResNet-50 at SIDE x SIDE with 1000 classes: operations of a forward pass, values that its layers read and write, and
parameters; the stride is in the middle convolution, as in torchvision."""

PASSES_BY_TRAINING = {
    "classifier alone": 1,
    "label consistency": 2,
    "rotation": 4,
    "PGD adversarial training, 7 steps": 8,
}
"""Forward and backward passes of a training image; a step of an attack counts as one."""


def gpu_rows(folder: Path) -> list[BenchJson]:
    """Rows of `folder`/bench-*.jsonl from a GPU; of several for the same case, the latest."""
    return [row for row in committed_rows("bench", folder) if not row["provenance"]["device"].startswith("cpu")]


def trainings(rows: Sequence[BenchJson]) -> list[BenchJson]:
    """Rows of training with a plain loop beside it; the last of every model and case."""
    keys = ("compiled", "precision", "batch")
    rows = [row for row in rows if row["what"] == "train" and "plain" in row["paths"]]
    return list({(row["model"], *map(row["case"].get, keys)): row for row in rows}.values())


def exchanged(parameters: int, world: int) -> float:
    """Bytes that a GPU sends in a step: a ring all-reduce sends 2 (n - 1) / n of all gradients, 4 bytes each."""
    return 2 * (world - 1) / world * 4 * parameters


def operations(row: BenchJson) -> float:
    """Floating-point operations of one training image."""
    return float(row["floor"]["operations"] / (row["case"]["epoch_steps"] * row["case"]["batch"]))


def rate(row: BenchJson, of: str = "operations") -> float:
    """Achieved floating-point operations or bytes a second, counted as in the floor of `soap bench`."""
    return float(row["floor"][of] / row["paths"]["ours"]["seconds"]["median"])


def measured(rows: Sequence[BenchJson]) -> str:
    """Measurements on one GPU: recorded steps, and the plain loop that several processes use."""
    head = ("model", "precision", "compiled", "batch", "GFLOP an image", "images/s, recorded steps", "TFLOP/s",
            "images/s, plain loop")  # fmt: skip
    lines = [
        (
            f"`{row['model']}`",
            row["case"]["precision"],
            {"true": "yes", "false": "no"}[row["case"]["compiled"]],
            f"{row['case']['batch']:g}",
            f"{operations(row) / 1e9:.3g}",
            f"{row['paths']['ours']['images_per_second']:,.0f}",
            f"{rate(row) / 1e12:.3g}",
            f"{row['paths']['plain']['images_per_second']:,.0f}",
        )
        for row in trainings(rows)
    ]
    return f"{markdown_table(head, lines)}\n\n" + "\n".join(commands(trainings(rows), device=True))


def exchange(rows: Sequence[BenchJson]) -> str:
    """Time that the exchange of gradients adds to a step, and the remaining speed; the batch is that of one GPU."""
    head = ("model", "GPUs", "sent a step, MB", *(f"{name}: ms a step, speed kept" for name in LINKS))
    lines = []
    for row in {row["model"]: row for row in trainings(rows)}.values():
        model = recipes.build(recipes.read(row["model"]))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        step = row["case"]["batch"] / row["paths"]["ours"]["images_per_second"]
        for world in GPU_COUNTS:
            sent = exchanged(parameters, world)
            cells = (f"{sent / link * 1e3:.2g}, {step / (step + sent / link):.0%}" for link in LINKS.values())
            lines.append((f"`{row['model']}`", str(world), f"{sent / 1e6:.3g}", *cells))
    return markdown_table(head, lines)


def imagenet(rows: Sequence[BenchJson]) -> str:
    """Estimate for ResNet-50 on ImageNet: its operations and bytes at the highest measured rates."""
    computing, moving = max(rows, key=rate), max(rows, key=lambda row: rate(row, "bytes"))
    work = 3 * RESNET50_OPERATIONS  # the backward pass has twice the operations of the forward pass
    traffic = 2 * 4 * RESNET50_VALUES  # and the same traffic
    seconds, world = work / rate(computing) + traffic / rate(moving, "bytes"), GPU_COUNTS[-1]
    sent = exchanged(RESNET50_PARAMETERS, world)
    text = (
        f"ResNet-50 at {SIDE} x {SIDE} has {RESNET50_PARAMETERS / 1e6:.1f} million parameters; an image takes "
        f"{work / 1e9:.3g} GFLOP in training, forward and back, and moves {traffic / 1e6:.3g} MB between layers. The "
        f"operations are taken at the {rate(computing) / 1e12:.3g} TFLOP/s of {_named(computing)}, the bytes at the "
        f"{rate(moving, 'bytes') / 1e9:.3g} GB/s of {_named(moving)}, counted alike, and the times added up. "
        f"{world} GPUs, {IMAGES_PER_GPU_STEP} images each a step, {IMAGENET_IMAGES:,} images, {EPOCHS} "
        f"epochs; {sent / 1e6:.3g} MB sent a step."
    )
    times = (f"{name}: an epoch; {EPOCHS} epochs; GPU-hours" for name in LINKS)
    lines = []
    for name, views in PASSES_BY_TRAINING.items():
        alone = 1 / (views * seconds)
        cells = []
        for link in LINKS.values():
            epoch = IMAGENET_IMAGES / (world * IMAGES_PER_GPU_STEP) * (IMAGES_PER_GPU_STEP / alone + sent / link)
            cells.append(f"{_duration(epoch)}; {_duration(EPOCHS * epoch)}; {EPOCHS * epoch * world / 3600:,.0f}")
        lines.append((name, f"{alone:,.0f}", *cells))
    return f"{text}\n\n{markdown_table(('training (estimates)', 'images/s and GPU', *times), lines)}"


def rendered(document: str, rows: Sequence[BenchJson]) -> str:
    """The page with its numbers rendered from the rows."""
    for name, render in {"measured": measured, "exchange": exchange, "imagenet": imagenet}.items():
        document = with_section(document, name, render(rows))
    return document


def _named(row: BenchJson) -> str:
    case = row["case"]
    how = f"{row['what']}, batch {case['batch']:g}, {case['precision']}, {row['provenance']['device']}"
    return f"`{row['model']}` ({how})"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
