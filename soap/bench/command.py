"""`soap bench`: measure the speed of purification, attacks and training against a reference and the floor."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from soap import bench, recipes, zoo
from soap._files import atomic
from soap._runtime import devices
from soap.bench.attacks import ATTACK_NAMES, attack_settings, bench_attack
from soap.bench.inputs import training_recipe
from soap.bench.purification import PurifyCase, bench_purify, sweep_cases
from soap.bench.results import OURS, BenchRow
from soap.bench.timing import Watch
from soap.bench.training import MIN_STEPS, bench_train
from soap.cli.console import Console, command
from soap.cli.options import DataRoot, Precision, completion, default
from soap.cli.tables import percent, size, table

SHARES = ("pixels", "eps", "labels", "fooled_ours", "fooled_theirs")
"""Measures of agreement that are shown in per cent."""

Measure = Callable[..., BenchRow]
"""A benchmark that still takes `rates` and `watch`."""


def _model_option(help: str) -> Any:
    names = completion(lambda: sorted({*zoo.names(), *recipes.names()}))
    return typer.Option("--model", metavar="NAME", help=help, autocompletion=names)


ModelOption = Annotated[
    str,
    _model_option(
        "A bundled model, the path of a .safetensors file, or a recipe, which gets random weights: a pass costs the "
        "same."
    ),
]
Batches = Annotated[
    list[int] | None,
    typer.Option("--batch", metavar="N", min=1, help=f"Images in a batch; repeat for more. {default('128')}"),
]
Repeats = Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Timed runs of each path, alternately.")]


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where data are read and results are stored."""

    results: Annotated[
        Path | None, typer.Option("--results", metavar="FILE", help="Append the rows to this JSONL file.")
    ] = None
    data_root: DataRoot = None


def purify(
    console: Console,
    *,
    model: ModelOption = "mnist-cnn-dr",
    batch: Batches = None,
    repeats: Repeats = 5,
    grow: Annotated[
        bool,
        typer.Option("--grow", help="Also measure smaller batches, and at each --batch other grid sizes and steps T."),
    ] = False,
    precision: Precision = "fp32",
    storage: ResultOptions,
) -> None:
    """Measure purification by min-aux against Algorithm 2 as the paper prints it, one eps after another.

    Both run alternately in this process on the same images. Their results are compared, the passes of each are counted,
    and the floor is the time that arithmetic and memory traffic need at the rates of this device.
    """
    loaded = bench.load_bench_model(model, console.device, console.seed)
    loaded.model.auxiliary  # noqa: B018  # raises before the work if the model has no task
    own, cases = loaded.model.purification, list[PurifyCase]()
    for count in batch or [128]:
        cases += sweep_cases(own, count) if grow and own is not None else [PurifyCase(batch=count)]
    shared = {"repeats": repeats, "precision": precision, "root": storage.data_root}
    run = partial(bench_purify, loaded, device=console.device, seed=console.seed, **shared)  # type: ignore[arg-type]
    runs = [partial(run, batch=case.batch, steps=case.steps, grid=case.grid) for case in cases]
    _measure(console, runs, precision, storage.results)


def attack(
    console: Console,
    *,
    model: ModelOption = "mnist-cnn-dr",
    attack: Annotated[
        str,
        typer.Option(
            "--attack",
            metavar="NAME",
            help="pgd, deepfool or cw, with the paper's settings.",
            autocompletion=completion(lambda: ATTACK_NAMES),
        ),
    ] = "pgd",
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Steps, instead of the paper's.")
    ] = None,
    batch: Batches = None,
    repeats: Repeats = 5,
    storage: ResultOptions,
) -> None:
    """Measure an attack against a plain reference, and against foolbox if it is installed.

    The reference is Algorithm 1 for pgd and one image at a time for deepfool; cw is measured against foolbox only. The
    labels are the model's predictions, so that every image is correctly classified before the attack.
    """
    loaded = bench.load_bench_model(model, console.device, console.seed)
    method = attack_settings(attack, loaded, steps)
    run = partial(bench_attack, loaded, method, device=console.device, repeats=repeats, seed=console.seed)
    runs = [partial(run, batch=count, root=storage.data_root) for count in batch or [128]]
    _measure(console, runs, "fp32", storage.results)


def train(
    console: Console,
    *,
    model: Annotated[
        list[str] | None,
        _model_option(
            f"A recipe, or a .safetensors file for the recipe inside; repeat for more. {default('mnist-cnn-dr')}"
        ),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Measure only our loop: no reference, and passes are not counted.")
    ] = False,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", min=1, help="Timed epochs of each loop, after one to warm up.")
    ] = 1,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=MIN_STEPS, help="Time N steps and scale them to an epoch."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", min=1, help=f"Batch size. {default('that of the recipe')}")
    ] = None,
    precision: Precision = "fp32",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile in our loop.")] = False,
    storage: ResultOptions,
) -> None:
    """Measure an epoch of training for each recipe, against a plain loop that reads its loss in every step.

    If the data set of a recipe is not present, noise of the same size replaces it.
    """
    chosen = [recipes.revised(training_recipe(name), seed=console.seed) for name in model or ["mnist-cnn-dr"]]
    run = partial(
        bench_train,
        device=console.device,
        epochs=epochs,
        alone=alone,
        batch=batch,
        steps=steps,
        precision=precision,
        compiled=compiled,
        root=storage.data_root,
    )
    _measure(console, [partial(run, recipe) for recipe in chosen], precision, storage.results)


def _measure(console: Console, runs: Iterable[Measure], precision: str, results: Path | None) -> None:
    """Measure the rates of the device and run each benchmark; store each row at once, and print all."""
    devices.autocast(console.device, precision)  # raises if the device lacks the precision
    if results is not None:
        atomic.check_writable(results.parent)
        if results.exists():
            bench.read(results)
    rates = bench.measure_rates(console.device, precision)
    rows: list[BenchRow] = []
    with console.progress() as show:
        watch: Watch = show
        for run in runs:
            row = run(rates=rates, watch=watch)
            rows.append(row)
            if results is not None:
                bench.append(results, row)
            console.info(f"{_title(row)}: {row.paths[OURS].images_per_second:,.0f} images/s", level=1)
    console.result({"rows": [row.as_json() for row in rows]}, Group(*map(_view, rows)))
    if results is not None:
        console.info(f"The rows are in {results}.")


def _view(row: BenchRow) -> RenderableType:
    """A title, a table of the paths, then agreement, floor and notes."""
    return Group(Text(_title(row)), _paths(row), Text("\n".join(_notes(row)) + "\n"))


def _title(row: BenchRow) -> str:
    case = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row.case.items())
    return f"{row.what} {row.model} (weights: {row.weights}) on {row.inputs}: {case}"


def _paths(row: BenchRow) -> RenderableType:
    """A line for each path; forward and backward are passes per image."""
    numbers = (
        "images/s", "median s", "quartiles s", "mean s", "fastest s", "time / ours", "forward", "backward",
        "peak memory",
    )  # fmt: skip
    view = table("path", *numbers, right=numbers)
    for name, path in row.paths.items():
        seconds, passes = path.seconds, path.passes
        view.add_row(
            name,
            f"{path.images_per_second:,.1f}",
            f"{seconds.median:.4g}",
            f"{seconds.lower_quartile:.4g}-{seconds.upper_quartile:.4g}",
            f"{seconds.mean:.4g} ± {seconds.deviation:.2g}",
            f"{seconds.fastest:.4g}",
            f"{path.ratio:.2f}",
            *(("not counted",) * 2 if passes is None else (f"{passes.forward:.4g}", f"{passes.backward:.4g}")),
            "not measured" if path.peak_bytes is None else size(path.peak_bytes),
        )
    return view


def _notes(row: BenchRow) -> list[str]:
    lines = []
    for name, measures in row.agreement.items():
        shares = ", ".join(
            f"{key.replace('_', ' ')} {percent(value) if key in SHARES else f'{value:.6g}'}"
            for key, value in measures.items()
        )
        lines.append(f"ours against {name}: {shares}")
    floor = row.floor
    lines.append(
        f"floor: {floor.seconds:.4g} s, set by {floor.bound} ({floor.operations:.3g} operations at "
        f"{floor.rates.operations:.3g}/s, {floor.bytes:.3g} bytes at {floor.rates.bytes:.3g}/s, both measured in this "
        f"run); ours reaches {percent(row.share)} of its speed"
    )
    return [*lines, *row.notes]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Measure speed: ours against a plain reference and against the floor.", no_args_is_help=True
    )
    command(group, "bench purify", example="soap bench purify --model mnist-cnn-dr --batch 1 --batch 128")(purify)
    command(group, "bench attack", example="soap bench attack --attack deepfool --batch 100")(attack)
    command(group, "bench train", example="soap bench train --model cifar10-resnet18-lc --steps 20")(train)
    app.add_typer(group, name="bench")
