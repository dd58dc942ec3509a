"""`soap reproduce`: the paper's tables, figures and claims beside our numbers; --run measures what is missing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from soap import recipes, validate, zoo
from soap._files.atomic import check_writable
from soap._runtime import devices, interrupts
from soap.cli.console import EXIT_INTERRUPTED, Console, command
from soap.cli.options import DataRoot
from soap.errors import InputError, unknown
from soap.paper import command_views as views
from soap.paper.architectures import TextTable
from soap.paper.claims.checks import claims_about
from soap.paper.claims.judging import evidence_from, judge, judge_all
from soap.paper.command_views import CLAIMS_NAME
from soap.paper.comparison import Comparison, Entry, compare_all
from soap.paper.figure_data import FigureData
from soap.paper.figure_list import FIGURES, InputOptions, PaperFigure
from soap.paper.job_runner import WEIGHTS, JobProgress, JobRunner, run_folder, run_jobs
from soap.paper.jobs import ATTACK_PASSES
from soap.paper.rows import committed_rows, committed_timings, results_folder, without_duplicates
from soap.paper.tables import TABLES, PaperTable
from soap.results import Ledger, Store

ANY_ATTACK = ""
"""Key of a limit that applies to every attack."""


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in (*TABLES, *FIGURES, CLAIMS_NAME) if name.startswith(incomplete)]


def _complete_recipe(incomplete: str) -> list[str]:
    return [name for name in _recipe_names() if name.startswith(incomplete)]


def reproduce(
    console: Console,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="e.g. table-2, figure-3 or claims; without it, a list.",
            autocompletion=_complete_name,
        ),
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            "--only", metavar="RECIPE", help="Recipes whose name starts with this.", autocompletion=_complete_recipe
        ),
    ] = "",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for a drawn figure.")] = Path("figures"),
    run: Annotated[
        bool, typer.Option("--run", help="Train and measure what is missing; can be stopped and resumed.")
    ] = False,
    results: Annotated[
        Path, typer.Option("--results", metavar="FILE", help="JSONL file of further rows; --run appends to it.")
    ] = Path("runs/reproduce.jsonl"),
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder for trainings of --run.")] = Path("runs"),
    epochs: Annotated[
        int | None, typer.Option("--epochs", metavar="N", min=1, help="Largest number of epochs of a training.")
    ] = None,
    trainings: Annotated[
        int,
        typer.Option("--trainings", metavar="N", min=1, help="Trainings of each recipe, with seeds from --seed on."),
    ] = 1,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="[ATTACK=]N", help="Measure the first N images only, e.g. cw=1000."),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="Precision of training: fp32, or bf16 for a GPU.")
    ] = "fp32",
    compiled: Annotated[bool, typer.Option("--compile", help="Train with torch.compile.")] = False,
    data_root: DataRoot = None,
) -> None:
    """Show the paper's tables with our numbers beside the printed ones, draw its figures, judge its claims.

    Without a name: the list of all, with what is done and what is missing. Our numbers come from the committed result
    rows and from --results. Nothing is computed without --run, which trains models without weights and measures empty
    cells, cheap attacks first. Every row is saved at once: after Ctrl-C the same command resumes.
    """
    validate.choice("precision", precision, devices.PRECISIONS)
    limits = _limits(limit or [])
    tables = _chosen_tables(name, only)
    if name == CLAIMS_NAME and (run or only):
        raise InputError("claims are judged by all rows; leave out --only, and use --run with tables and figures.")
    rows = without_duplicates([*committed_rows(), *Store(results).read()])
    folder = _figure_folder(runs)
    finished = True
    if run:
        with interrupts.stop_on_signal() as stop:
            if name in FIGURES:
                check_writable(results.parent)
                check_writable(folder)
                options = InputOptions(
                    folder=folder,
                    store=Ledger(results, rows),
                    data_root=data_root,
                    limit=limits.get(ANY_ATTACK),
                    batch=console.batch,
                    seed=console.seed,
                    stop=stop,
                )
                _make_inputs(console, FIGURES[name], runs, only, options)
                finished = not stop()
            else:
                check_writable(results.parent)
                check_writable(runs)
                runner = JobRunner(
                    store=Ledger(results, rows),
                    runs=runs,
                    device=console.device,
                    data_root=data_root,
                    batch=console.batch,
                    precision=precision,
                    compiled=compiled,
                    stop=stop,
                )
                finished = _run_jobs(
                    console,
                    compare_all(tables, rows, only),
                    runner,
                    epochs=epochs,
                    seeds=range(console.seed, console.seed + trainings),
                    limit={attack: n for attack in ATTACK_PASSES if (n := limits.get(attack, limits.get(ANY_ATTACK)))},
                )
        rows = without_duplicates([*rows, *Store(results).read()])
    data = FigureData(folder=folder, rows=rows, timings=committed_timings())
    content, shown = _result(name, only, compare_all(tables, rows, only), data, out)
    console.result({**content, "finished": finished}, shown)
    if not finished:
        console.info("Stopped. Finished work is saved: run the same command again to resume.")
        raise typer.Exit(EXIT_INTERRUPTED)


def _chosen_tables(name: str | None, only: str) -> list[PaperTable | TextTable]:
    """The named table, or all for the list and the claims; with `only`, tables with a cell of such a recipe."""
    known = [*TABLES, *FIGURES, CLAIMS_NAME]
    if name is not None and name not in known:
        raise unknown("table or figure", name, known)
    if only and not any(recipe.startswith(only) for recipe in _recipe_names()):
        raise unknown("recipe", only, _recipe_names())
    tables = [entry for key, entry in TABLES.items() if name in (None, key, CLAIMS_NAME)]
    kept = [entry for entry in tables if not only or _has_recipe(entry, only)]
    if tables and not kept:
        raise InputError(f"{name} has no cell of a recipe that starts with {only!r}; leave out --only.")
    return kept


def _has_recipe(entry: PaperTable | TextTable, only: str) -> bool:
    return isinstance(entry, PaperTable) and any(
        recipe.startswith(only) for query in entry.queries for recipe in query.needs
    )


def _recipe_names() -> list[str]:
    """Recipes of classifiers and of generative models."""
    return [*recipes.names(), *recipes.generative.names()]


def _figure_folder(runs: Path) -> Path:
    """Folder of the figures' .npz files: `results/figures` of a source checkout, else a folder in `runs`."""
    checkout = results_folder()
    return runs / "figures" if checkout is None else checkout / "figures"


def _result(
    name: str | None, only: str, entries: Sequence[Entry], data: FigureData, out: Path
) -> tuple[dict[str, Any], RenderableType]:
    """A table, a figure, the claims, or the list of all, as JSON and for a terminal."""
    if name in FIGURES:
        return _drawn(FIGURES[name], data, out)
    if name == CLAIMS_NAME:
        judged = judge_all(evidence_from(entries, data))
        return views.claims_json(judged), views.claims_view(judged)
    if name is not None:
        return views.table_json(entries[0]), views.table_view(entries[0])
    chosen = [f for f in FIGURES.values() if not only or any(model.startswith(only) for model in f.models)]
    states = [views.figure_state(figure, data) for figure in chosen]
    content: dict[str, Any] = {"tables": [views.table_state(entry) for entry in entries], "figures": states}
    if only:
        return content, Group(views.tables_view(entries), views.figures_view(states))
    judged = judge_all(evidence_from(entries, data))
    content["claims"] = views.claim_counts(judged)
    return content, Group(views.tables_view(entries), views.figures_view(states), views.claims_line(judged))


def _drawn(figure: PaperFigure, data: FigureData, out: Path) -> tuple[dict[str, Any], RenderableType]:
    """Draw the figure into `out`; its description as JSON and for a terminal."""
    from soap.paper.figures import draw  # here, because importing matplotlib takes long

    check_writable(out)
    paths = draw(figure.name, data, out)
    evidence = evidence_from(compare_all(TABLES.values(), data.rows), data)
    return views.figure_view(
        views.figure_state(figure, data), [judge(claim, evidence) for claim in claims_about(figure.name)], paths
    )


def _make_inputs(console: Console, figure: PaperFigure, runs: Path, only: str, options: InputOptions) -> None:
    """Make missing inputs of a figure from the bundled weights, else from those in the folder of runs."""
    weights = {name: _weights(name, runs) for name in figure.models if name.startswith(only)}
    for name in (name for name, path in weights.items() if path is None):
        console.info(f"No weights of {name}: train them with `soap reproduce --run --only {name}`.")
    models = {name: zoo.load(path, device=console.device) for name, path in weights.items() if path is not None}
    with console.progress() as show:
        made = figure.make_inputs(models, replace(options, watch=show))
    for words in made:
        console.info(f"Made: {words}.")


def _weights(name: str, runs: Path) -> Path | None:
    own = run_folder(runs, name, 0) / WEIGHTS
    return zoo.weights_path(name) if name in zoo.names() else own if own.exists() else None


def _run_jobs(console: Console, entries: Sequence[Entry], runner: JobRunner, **plan: Any) -> bool:
    """Measure empty cells; whether all jobs were reached. plan: options of `run_jobs`."""
    cells = [found.cell for entry in entries if isinstance(entry, Comparison) for found in entry.cells.values()]
    queries = list(dict.fromkeys(cell.query for cell in cells if cell.query is not None))
    announced: set[int] = set()
    with console.progress() as show:

        def watch(progress: JobProgress) -> None:
            show(progress.what, progress.done, progress.total, str(progress))
            if progress.number not in announced:
                announced.add(progress.number)
                console.info(str(progress))

        done = run_jobs(queries, runner, watch=watch, **plan)
    for job, reason in done.skipped.items():
        console.info(f"Skipped {job.title}: {reason}")
    console.info(f"{done.done} of {done.jobs} jobs done, {len(done.rows)} new rows in {runner.store.path}.")
    return done.finished


def _limits(texts: Sequence[str]) -> dict[str, int]:
    """{"cw": 1000} from ["cw=1000"], {ANY_ATTACK: 1000} from ["1000"]."""
    limits = {}
    for text in texts:
        attack, _, count = text.rpartition("=")
        if not count.isdecimal() or int(count) < 1:
            raise InputError(f"--limit is {text!r}; expected a number of images, or ATTACK=NUMBER such as cw=1000.")
        if attack and attack not in ATTACK_PASSES:
            raise unknown("attack", attack, ATTACK_PASSES)
        limits[attack] = int(count)
    return limits


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "reproduce", example="soap reproduce table-1")(reproduce)
