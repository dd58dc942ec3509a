"""`soap bench`: measure the speed of purification and attacks against a reference, and of training."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from soap import bench, recipes, zoo
from soap._files import atomic
from soap._runtime import devices
from soap.bench.batches import ATTACK_NAMES, attack_settings, bench_attack, bench_purify
from soap.bench.inputs import BenchSetup, load_bench_model
from soap.bench.measures import measure_rate
from soap.bench.results import OURS, BenchRow, case_text
from soap.bench.suite import bench_suite
from soap.bench.training import bench_train
from soap.cli.console import Console, command, percent, registered, size, table
from soap.cli.options import DataRoot, ModelName, Precision, completion, option

group = typer.Typer(help="Measure speed: ours against a plain reference and against the floor.", no_args_is_help=True)
registered.add_typer(group, name="bench")

SHARES = ("pixels", "eps", "labels", "fooled_ours", "fooled_theirs")
"""Measures of agreement that are shown in per cent."""

COLUMNS = ("images/s", "median s", "quartiles s", "mean s", "time / ours", "forward", "backward", "peak memory")


def _model_option(help: str, default: str | None = None) -> Any:
    names = completion(lambda: sorted({*zoo.names(), *recipes.names()}))
    return option("NAME", help, default=default, autocompletion=names)


ModelOption = Annotated[
    str, _model_option("A bundled model, the path of a .safetensors file, or a recipe, which gets random weights.")
]
Batches = Annotated[
    list[int] | None,
    option("N", "Images in a batch; repeat for more.", default="128", min=1),
]
Repeats = Annotated[int, typer.Option(metavar="N", min=1, help="Timed runs of each path, alternately.")]


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where data are read and results are stored."""

    results: Annotated[Path | None, typer.Option(metavar="FILE", help="Append the rows to this JSONL file.")] = None
    data_root: DataRoot = None


@command("bench purify", example="soap bench purify --model mnist-cnn-dr --batch-size 1 --batch-size 128", app=group)
def purify(
    console: Console,
    *,
    model: ModelOption = "mnist-cnn-dr",
    batch_size: Batches = None,
    steps: Annotated[
        list[int] | None, typer.Option(metavar="N", min=1, help="Steps T, instead of the model's; repeat.")
    ] = None,
    radii: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=2, help="Radii of the grid, instead of the model's; repeat."),
    ] = None,
    repeats: Repeats = 5,
    precision: Precision = "fp32",
    storage: ResultOptions,
) -> None:
    """Measure purification by min-aux against Algorithm 2 as the paper prints it, one eps after another.

    Both run alternately in this process on the same images. Their results are compared, the passes of each are counted,
    and the floor is the time that the arithmetic needs at the highest rate of this device.
    """
    loaded = load_bench_model(model, console.device, console.seed)
    loaded.model.auxiliary  # noqa: B018  # raises before the work if the model has no task
    own: list[int | None] = [None]
    runs = [
        partial(bench_purify, bench=loaded, batch_size=b, steps=t, radii=n, repeats=repeats, precision=precision)
        for b, t, n in product(batch_size or [128], steps or own, radii or own)
    ]
    _measure(console, runs, precision, storage)


@command("bench attack", example="soap bench attack --attack deepfool --batch-size 100", app=group)
def attack(
    console: Console,
    *,
    model: ModelOption = "mnist-cnn-dr",
    attack: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="pgd, deepfool or cw, with the paper's settings.",
            autocompletion=completion(lambda: ATTACK_NAMES),
        ),
    ] = "pgd",
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Steps, instead of the paper's.")] = None,
    batch_size: Batches = None,
    repeats: Repeats = 5,
    storage: ResultOptions,
) -> None:
    """Measure an attack against foolbox if it is installed, and pgd against Algorithm 1 as the paper prints it.

    The labels are the model's predictions, so that every image is correctly classified before the attack.
    """
    loaded = load_bench_model(model, console.device, console.seed)
    method = attack_settings(attack, loaded, steps)
    runs = [
        partial(bench_attack, bench=loaded, attack=method, batch_size=n, repeats=repeats) for n in batch_size or [128]
    ]
    _measure(console, runs, "fp32", storage)


@command("bench train", example="soap bench train --model cifar10-resnet18-lc --steps 20", app=group)
def train(
    console: Console,
    *,
    model: Annotated[
        list[str] | None,
        _model_option("A recipe, or a .safetensors file for the recipe inside; repeat for more.", "mnist-cnn-dr"),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Measure only our loop: no reference, and passes are not counted.")
    ] = False,
    epochs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Timed epochs of each loop, after one to warm up.")
    ] = 1,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Time N steps and scale them to an epoch.")
    ] = None,
    batch_size: Annotated[int | None, option("N", "Batch size.", default="that of the recipe", min=1)] = None,
    precision: Precision = "fp32",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile in our loop.")] = False,
    storage: ResultOptions,
) -> None:
    """Measure an epoch of training for each recipe, against a plain loop that reads its loss in every step.

    If the data set of a recipe is not present, noise of the same size replaces it.
    """
    names = model or ["mnist-cnn-dr"]
    chosen = [zoo.recipe(name) if name.endswith(".safetensors") else recipes.read(name) for name in names]
    measure = partial(bench_train, epochs=epochs, alone=alone, batch_size=batch_size, steps=steps)
    runs = [
        partial(measure, recipe=recipes.revised(recipe, seed=console.seed), precision=precision, compiled=compiled)
        for recipe in chosen
    ]
    _measure(console, runs, precision, storage)


@command("bench suite", example="soap bench suite mnist-cnn-dr --limit 100", app=group)
def suite(
    console: Console,
    model: ModelName,
    *,
    data: Annotated[str | None, option("NAME", "Test images.", default="those of the model")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="The first N images.")] = 100,
    steps: Annotated[int | None, option("N", "Steps of the attacks.", default="those of the suite", min=1)] = None,
    queries: Annotated[
        int | None, option("N", "Queries of black-box attacks.", default="those of the suite", min=1)
    ] = None,
    storage: ResultOptions,
) -> None:
    """Measure `soap evaluate --suite full` with --headline (ours) and without (full), each once, checks included.

    The model has its purifier with min-aux, if it has an auxiliary task. The labels that agree are images that both
    worst cases break, or both do not.
    """
    run = partial(bench_suite, model=model, data=data, limit=limit, steps=steps, queries=queries)
    _measure(console, [run], "fp32", storage)


def _measure(
    console: Console, runs: Iterable[Callable[[BenchSetup], BenchRow]], precision: str, storage: ResultOptions
) -> None:
    """Measure the rate of the device and run each benchmark; store each row at once, and print all."""
    devices.autocast(console.device, precision)  # raises if the device lacks the precision
    if storage.results is not None:
        atomic.check_writable(storage.results.parent)
        if storage.results.exists():
            bench.read(storage.results)
    rate = measure_rate(console.device, precision)
    rows: list[BenchRow] = []
    with console.progress() as show:
        setup = BenchSetup(device=console.device, rate=rate, seed=console.seed, root=storage.data_root, watch=show)
        for run in runs:
            row = run(setup)
            rows.append(row)
            if storage.results is not None:
                bench.append(storage.results, row)
            console.info(f"{_title(row)}: {row['paths'][OURS]['images_per_second']:,.0f} images/s", level=1)
    console.result({"rows": rows}, Group(*map(_view, rows)))
    if storage.results is not None:
        console.info(f"The rows are in {storage.results}.")


def _title(row: BenchRow) -> str:
    return f"{row['what']} {row['model']} (weights: {row['weights']}) on {row['inputs']}: {case_text(row)}"


def _view(row: BenchRow) -> RenderableType:
    """A title, a table of the paths (forward and backward are passes per image), then agreement, floor and notes."""
    view = table("path", *COLUMNS, right=COLUMNS)
    for name, path in row["paths"].items():
        seconds, passes, peak = path["seconds"], path["passes"], path["peak_bytes"]
        view.add_row(
            name,
            f"{path['images_per_second']:,.1f}",
            f"{seconds['median']:.4g}",
            f"{seconds['lower_quartile']:.4g}-{seconds['upper_quartile']:.4g}",
            f"{seconds['mean']:.4g} ± {seconds['deviation']:.2g}",
            f"{path['ratio']:.2f}",
            *("not counted" if passes is None else f"{passes[way]:.4g}" for way in ("forward", "backward")),
            "not measured" if peak is None else size(peak),
        )
    lines = []
    for name, measures in row["agreement"].items():
        texts = {key: percent(value) if key in SHARES else f"{value:.6g}" for key, value in measures.items()}
        shares = ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in texts.items())
        lines.append(f"ours against {name}: {shares}")
    if "floor" in row:
        floor = row["floor"]
        lines.append(
            f"floor: {floor['seconds']:.4g} s, {floor['operations']:.3g} operations at the rate measured in this run, "
            f"{floor['rates']['operations']:.3g}/s; ours reaches {percent(row['share'])} of its speed"
        )
    return Group(Text(_title(row)), view, Text("\n".join([*lines, *row["notes"]]) + "\n"))
