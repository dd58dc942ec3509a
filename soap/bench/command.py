"""`soap bench`: how fast purification, attacks and training are, against the plain way and against the floor."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from soap import bench, recipes, zoo
from soap._runtime import devices
from soap.bench import growth
from soap.bench.attack import NAMES, bench_attack, settings
from soap.bench.compare import Watch
from soap.bench.purify import bench_purify
from soap.bench.row import OURS, BenchRow
from soap.bench.subject import training_recipe
from soap.bench.train import LEAST, bench_train
from soap.cli.bench_view import title, view
from soap.cli.options import DataRoot
from soap.cli.outputs import check_folder
from soap.cli.shell import Shell, command
from soap.recipes import Recipe


def _model(help: str) -> Any:
    """The option that names what to measure with."""
    return typer.Option(
        "--model",
        metavar="NAME",
        help=help,
        autocompletion=lambda incomplete: [
            name for name in sorted({*zoo.names(), *recipes.names()}) if name.startswith(incomplete)
        ],
    )


Model = Annotated[
    str,
    _model(
        "A bundled model, the path of a .safetensors file, or a recipe, which gets random weights: a pass costs the "
        "same."
    ),
]
Models = Annotated[
    list[str] | None,
    _model("A recipe, or a .safetensors file for its own; repeat for more. [dim]\\[default: mnist-cnn-dr][/dim]"),
]
Batches = Annotated[
    list[int] | None,
    typer.Option("--batch", metavar="N", min=1, help="Images in a batch; repeat for more. [dim]\\[default: 128][/dim]"),
]
Repeats = Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Timed runs of each path, in turns.")]
Precision = Annotated[str, typer.Option("--precision", metavar="NAME", help="fp32, or bf16 for speed on a GPU.")]
Results = Annotated[Path | None, typer.Option("--results", metavar="FILE", help="Append the rows to this JSONL file.")]

Measure = Callable[[Watch], BenchRow]


def purify(
    shell: Shell,
    model: Model = "mnist-cnn-dr",
    batch: Batches = None,
    repeats: Repeats = 5,
    grow: Annotated[
        bool,
        typer.Option(
            "--grow", help="Also smaller batches, and at each --batch other grid sizes and numbers of steps T."
        ),
    ] = False,
    precision: Precision = "fp32",
    results: Results = None,
    data_root: DataRoot = None,
) -> None:
    """Measure purification by min-aux against Algorithm 2 as the paper prints it, one eps after another.

    Both run in turns in this process on the same images. Their results are compared, the passes of each are counted,
    and the floor is what the arithmetic and the memory traffic must take at the rates of this device.
    """
    subject = bench.load_subject(model, shell.device, shell.seed)
    subject.model.auxiliary  # noqa: B018  # a model without a task is refused before any work
    own, sizes = subject.model.purification, batch or [128]
    cases: list[growth.Case] = []
    for most in sizes:
        if grow and own is not None:
            cases += growth.sweep(own, most)
        else:
            cases.append(growth.Case(batch=most))
    rates = _rates(shell, precision, results)

    def measure(case: growth.Case) -> Measure:
        return lambda watch: bench_purify(
            subject,
            rates,
            batch=case.batch,
            steps=case.steps,
            grid=case.grid,
            precision=precision,
            device=shell.device,
            repeats=repeats,
            seed=shell.seed,
            root=data_root,
            watch=watch,
        )

    _report(shell, map(measure, cases), results)


def attack(
    shell: Shell,
    model: Model = "mnist-cnn-dr",
    attack: Annotated[
        str,
        typer.Option(
            "--attack",
            metavar="NAME",
            help="pgd, deepfool or cw, with the paper's settings.",
            autocompletion=lambda incomplete: [name for name in NAMES if name.startswith(incomplete)],
        ),
    ] = "pgd",
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Steps, instead of the paper's.")
    ] = None,
    batch: Batches = None,
    repeats: Repeats = 5,
    results: Results = None,
    data_root: DataRoot = None,
) -> None:
    """Measure an attack against the plain way, and against foolbox where it is installed.

    The plain way is Algorithm 1 for pgd and one image at a time for deepfool; cw is measured against foolbox alone. The
    labels are the model's own answers, so that every image has to be fooled.
    """
    subject = bench.load_subject(model, shell.device, shell.seed)
    method = settings(attack, subject, steps)
    rates = _rates(shell, "fp32", results)

    def measure(size: int) -> Measure:
        return lambda watch: bench_attack(
            subject,
            method,
            rates,
            batch=size,
            device=shell.device,
            repeats=repeats,
            seed=shell.seed,
            root=data_root,
            watch=watch,
        )

    _report(shell, map(measure, batch or [128]), results)


def train(
    shell: Shell,
    model: Models = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Time our loop only: no ordinary one beside it, no passes counted.")
    ] = False,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", min=1, help="Timed epochs of each loop, after one to warm up.")
    ] = 1,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=LEAST, help="Time N steps and scale them to an epoch."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", min=1, help="Batch size. [dim]\\[default: the recipe's][/dim]"),
    ] = None,
    precision: Precision = "fp32",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile in our loop.")] = False,
    results: Results = None,
    data_root: DataRoot = None,
) -> None:
    """Measure an epoch of training, a row for each recipe, against an ordinary loop that reads its loss at every step.

    Where the recipe's data set is not there, noise of the same size takes its place.
    """
    chosen = [recipes.revised(training_recipe(name), seed=shell.seed) for name in model or ["mnist-cnn-dr"]]
    rates = _rates(shell, precision, results)

    def measure(recipe: Recipe) -> Measure:
        return lambda watch: bench_train(
            recipe,
            rates,
            device=shell.device,
            epochs=epochs,
            alone=alone,
            batch=batch,
            steps=steps,
            precision=precision,
            compiled=compiled,
            root=data_root,
            watch=watch,
        )

    _report(shell, map(measure, chosen), results)


def _rates(shell: Shell, precision: str, results: Path | None) -> bench.Rates:
    """What the device can do; before that, whether the precision can be had and the rows be kept."""
    devices.autocast(shell.device, precision)
    if results is not None:
        check_folder(results.parent)
        if results.exists():
            bench.read(results)
    return bench.measure_rates(shell.device, precision)


def _report(shell: Shell, cases: Iterable[Measure], results: Path | None) -> None:
    """Measure case by case, keep every row as it comes, and show them all."""
    rows: list[BenchRow] = []
    with shell.progress() as show:
        for case in cases:
            row = case(show)
            rows.append(row)
            if results is not None:
                bench.append(results, row)
            ours = row.paths[OURS]
            shell.say(f"{title(row)}: {ours.images_per_second:,.0f} images/s", level=1)
    shell.result({"rows": [row.as_json() for row in rows]}, Group(*map(view, rows)))
    if results is not None:
        shell.say(f"Rows are in {results}.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Measure speed: our path against a plain one and against the floor.", no_args_is_help=True)
    command(group, "bench purify", example="soap bench purify --model mnist-cnn-dr --batch 1 --batch 128")(purify)
    command(group, "bench attack", example="soap bench attack --attack deepfool --batch 100")(attack)
    command(group, "bench train", example="soap bench train --model cifar10-resnet18-lc --steps 20")(train)
    app.add_typer(group, name="bench")
