"""Render the figures of docs/scale.md from the rows of `soap bench` in results/bench-*.jsonl that a GPU made.

    python tools/render_scale.py

What no row tells are the constants below: speeds of links by their data sheets, and the architecture and data set of
the estimate. Everything else is measured, counted on the models, or follows from these.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from soap import recipes
from soap.bench import read
from soap.report import markdown_table, with_section

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scale.md"

LINKS = {"NVLink 4, 900 GB/s both ways": 450e9, "InfiniBand NDR, 400 Gb/s": 50e9, "Ethernet, 25 Gb/s": 25e9 / 8}
"""Bytes a second, one way, that a GPU has for itself."""

WORLDS = (8, 64)
IMAGENET, SIDE, CLASSES, EPOCHS = 1_281_167, 224, 1000, 90
OWN_BATCH = 64  # images a GPU and step
VIEWS = {"classifier alone": 1, "label consistency": 2, "rotation": 4, "PGD adversarial training, 7 steps": 8}
"""Passes through the network, forward and back, that a training image takes; a step of an attack counts as one."""

Row = dict[str, Any]


class Size(NamedTuple):
    """Of a network: products and sums of a forward pass, values that its layers read and write in it; parameters."""

    operations: int
    values: int
    parameters: int


def committed_rows(folder: Path = ROOT / "results") -> list[Row]:
    """All that a GPU made; of two that measured the same, the later."""
    rows = [row for path in sorted(folder.glob("bench-*.jsonl")) for row in read(path)]
    rows = [row for row in rows if not row["provenance"]["device"].startswith("cpu")]
    keys = ("compiled", "precision", "batch", "grid", "steps", "attack")
    return list({(row["what"], row["model"], *map(row["case"].get, keys)): row for row in rows}.values())


def trainings(rows: Sequence[Row]) -> list[Row]:
    """The rows of training beside the plain loop, of every model and way of it the last."""
    keys = ("compiled", "precision", "batch")
    rows = [row for row in rows if row["what"] == "train" and "plain" in row["paths"]]
    return list({(row["model"], *map(row["case"].get, keys)): row for row in rows}.values())


def resnet50(side: int = SIDE, classes: int = CLASSES) -> Size:
    """ResNet-50 (He et al. 2016) with the stride in the middle convolution, as torchvision has it."""
    operations = values = parameters = 0

    def convolution(inputs: int, outputs: int, kernel: int, before: int, after: int) -> None:
        nonlocal operations, values, parameters
        operations += 2 * inputs * outputs * kernel**2 * after**2
        values += inputs * before**2 + outputs * after**2
        parameters += inputs * outputs * kernel**2 + 2 * outputs  # scale and shift of its batch norm

    convolution(3, 64, 7, side, side // 2)
    inputs, at = 64, side // 4
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            after = at // 2 if stage and not block else at
            convolution(inputs, width, 1, at, at)
            convolution(width, width, 3, at, after)
            convolution(width, 4 * width, 1, after, after)
            if not block:
                convolution(inputs, 4 * width, 1, at, after)
            inputs, at = 4 * width, after
    operations += 2 * inputs * classes
    return Size(operations, values + inputs + classes, parameters + (inputs + 1) * classes)


def exchanged(parameters: int, world: int) -> float:
    """Bytes that a GPU sends in a step: a ring passes 2 (n - 1) / n of all gradients, 4 bytes each."""
    return 2 * (world - 1) / world * 4 * parameters


def operations(row: Row) -> float:
    """Floating-point operations that one image takes in training."""
    return float(row["floor"]["operations"] / (row["case"]["epoch_steps"] * row["case"]["batch"]))


def rate(row: Row, of: str = "operations") -> float:
    """Floating-point operations a second that were reached, or bytes, counted as in the floor of `soap bench`."""
    return float(row["floor"][of] / row["paths"]["ours"]["seconds"]["median"])


def measured(rows: Sequence[Row]) -> str:
    """One GPU, as measured: recorded steps, and plain ones, which several processes take."""
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
    made = dict.fromkeys(
        f"- `{p['command']}`: {p['device']}, commit {p['commit'][:12]}, {p['date'][:10]}, torch {p['torch']}"
        for p in (row["provenance"] for row in trainings(rows))
    )
    return f"{markdown_table(head, lines)}\n\n" + "\n".join(made)


def exchange(rows: Sequence[Row]) -> str:
    """What the exchange of gradients adds to a step, and what is left of the speed; the batch is a GPU's own."""
    head = ("model", "GPUs", "sent a step, MB", *(f"{name}: ms a step, speed kept" for name in LINKS))
    lines = []
    for row in {row["model"]: row for row in trainings(rows)}.values():
        model = recipes.build(recipes.find(row["model"]))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        step = row["case"]["batch"] / row["paths"]["ours"]["images_per_second"]
        for world in WORLDS:
            sent = exchanged(parameters, world)
            cells = (f"{sent / link * 1e3:.2g}, {step / (step + sent / link):.0%}" for link in LINKS.values())
            lines.append((f"`{row['model']}`", str(world), f"{sent / 1e6:.3g}", *cells))
    return markdown_table(head, lines)


def imagenet(rows: Sequence[Row]) -> str:
    """The estimate: operations and bytes of another network, at the highest rates at which either was measured."""
    computing, moving = max(rows, key=rate), max(rows, key=lambda row: rate(row, "bytes"))
    size, world = resnet50(), WORLDS[-1]
    work, traffic = 3 * size.operations, 2 * 4 * size.values  # back is twice the work of forward, and the same traffic
    seconds = work / rate(computing) + traffic / rate(moving, "bytes")
    sent = exchanged(size.parameters, world)
    said = (
        f"ResNet-50 at {SIDE} x {SIDE} has {size.parameters / 1e6:.1f} million parameters; an image takes "
        f"{work / 1e9:.3g} GFLOP in training, forward and back, and moves {traffic / 1e6:.3g} MB between layers. The "
        f"operations are taken at the {rate(computing) / 1e12:.3g} TFLOP/s of {_named(computing)}, the bytes at the "
        f"{rate(moving, 'bytes') / 1e9:.3g} GB/s of {_named(moving)}, counted alike, and the times added up. "
        f"{world} GPUs, {OWN_BATCH} images each a step, {IMAGENET:,} images, {EPOCHS} epochs; {sent / 1e6:.3g} MB sent "
        "a step."
    )
    times = (f"{name}: an epoch; {EPOCHS} epochs; GPU-hours" for name in LINKS)
    head = ("training (estimates)", "images/s and GPU", *times)
    lines = []
    for name, views in VIEWS.items():
        alone = 1 / (views * seconds)
        cells = []
        for link in LINKS.values():
            epoch = IMAGENET / (world * OWN_BATCH) * (OWN_BATCH / alone + sent / link)
            cells.append(f"{_long(epoch)}; {_long(EPOCHS * epoch)}; {EPOCHS * epoch * world / 3600:,.0f}")
        lines.append((name, f"{alone:,.0f}", *cells))
    return f"{said}\n\n{markdown_table(head, lines)}"


def rendered(document: str, rows: Sequence[Row]) -> str:
    """The page with its figures as the rows have them."""
    for name, render in {"measured": measured, "exchange": exchange, "imagenet": imagenet}.items():
        document = with_section(document, name, render(rows))
    return document


def _named(row: Row) -> str:
    case = row["case"]
    how = f"{row['what']}, batch {case['batch']:g}, {case['precision']}, {row['provenance']['device']}"
    return f"`{row['model']}` ({how})"


def _long(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    found = committed_rows()
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(f"{len(found)} rows in {PAGE}")
