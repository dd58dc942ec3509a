"""`soap reproduce`: the paper's tables, figures and claims beside our numbers; --run measures what is missing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from soap import recipes, validate
from soap._files.atomic import check_writable
from soap._runtime import devices
from soap.cli.console import EXIT_INTERRUPTED, Console, command, stop_on_signal
from soap.cli.options import DataRoot
from soap.errors import InputError, unknown
from soap.paper import command_views as views
from soap.paper.claims import claims_about
from soap.paper.command_views import CLAIMS_NAME
from soap.paper.comparison import Comparison, Entry, compare_all
from soap.paper.figure_data import FIGURES, FigureData, PaperFigure
from soap.paper.job_runner import JobProgress, JobRunner, bundled_weights, run_jobs
from soap.paper.jobs import ATTACK_PASSES, Job, plan_figure, plan_jobs
from soap.paper.judging import judge, judge_all
from soap.paper.rows import committed_rows, committed_timings, results_folder, without_duplicates
from soap.paper.tables import TABLES, PaperTable, TextTable
from soap.results import CombinedStore, Store

ANY_ATTACK = ""
"""Key of a limit that applies to every attack."""


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in (*TABLES, *FIGURES, CLAIMS_NAME) if name.startswith(incomplete)]


def _complete_recipe(incomplete: str) -> list[str]:
    return [name for name in _recipe_names() if name.startswith(incomplete)]


@command("reproduce", example="soap reproduce table-1")
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

    Without a name: the list of all, with what is done, what is missing and what it would cost. Our numbers come from
    the committed result rows and from --results. Nothing is computed without --run, which trains models without
    weights and measures empty cells, cheap attacks first. Every row is saved at once: after Ctrl-C the same command
    resumes.
    """
    validate.choice("precision", precision, devices.PRECISIONS)
    limits = _limits(limit or [])
    tables = _chosen_tables(name, only)
    if name == CLAIMS_NAME and (run or only):
        raise InputError("claims are judged by all rows; leave out --only, and use --run with tables and figures.")
    rows = without_duplicates([*committed_rows(), *Store(results).read()])
    data = FigureData(folder=_figure_folder(runs), rows=rows, timings=committed_timings())
    finished = True
    if run:
        for folder in (results.parent, runs, data.folder):
            check_writable(folder)
        with stop_on_signal() as stop:
            runner = JobRunner(
                store=CombinedStore(results, rows),
                runs=runs,
                figures=data.folder,
                device=console.device,
                data_root=data_root,
                batch_size=console.batch_size,
                seed=console.seed,
                precision=precision,
                compiled=compiled,
                stop=stop,
            )
            if name in FIGURES:
                inputs = [
                    source
                    for source in FIGURES[name].inputs
                    if source.kind != "timing" and source.model.startswith(only) and source.missing(data)
                ]
                jobs = plan_figure(inputs, weights=runner.weights, epochs=epochs, limit=limits.get(ANY_ATTACK))
            else:
                jobs = plan_jobs(
                    _queries(compare_all(tables, rows, only)),
                    rows,
                    weights=runner.weights,
                    epochs=epochs,
                    seeds=range(console.seed, console.seed + trainings),
                    limit={one: n for one in ATTACK_PASSES if (n := limits.get(one, limits.get(ANY_ATTACK)))},
                )
            finished = _run_jobs(console, jobs, runner)
        rows = without_duplicates([*rows, *Store(results).read()])
        data = FigureData(folder=data.folder, rows=rows, timings=data.timings)
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


def _queries(entries: Sequence[Entry]) -> list[Any]:
    """The queries of all cells, each once."""
    cells = [found.cell for entry in entries if isinstance(entry, Comparison) for found in entry.cells.values()]
    return list(dict.fromkeys(cell.query for cell in cells if cell.query is not None))


def _result(
    name: str | None, only: str, entries: Sequence[Entry], data: FigureData, out: Path
) -> tuple[dict[str, Any], RenderableType]:
    """A table, a figure, the claims, or the list of all, as JSON and for a terminal."""
    if name in FIGURES:
        return _drawn(FIGURES[name], data, out)
    if name == CLAIMS_NAME:
        judged = judge_all(entries, data)
        return views.claims_json(judged), views.claims_view(judged)
    if name is not None:
        return views.table_json(entries[0]), views.table_view(entries[0])
    chosen = [f for f in FIGURES.values() if not only or any(one.model.startswith(only) for one in f.inputs)]
    states = [views.figure_state(figure, data) for figure in chosen]
    jobs = [plan_jobs(_queries([entry]), data.rows, weights=bundled_weights) for entry in entries]
    listed = [views.table_state(entry, own) for entry, own in zip(entries, jobs, strict=True)]
    content: dict[str, Any] = {"tables": listed, "figures": states}
    shown = [views.tables_view(entries, jobs), views.figures_view(states)]
    if not only:
        judged = judge_all(entries, data)
        content["claims"] = views.claim_counts(judged)
        shown.append(views.claims_line(judged))
    return content, Group(*shown)


def _drawn(figure: PaperFigure, data: FigureData, out: Path) -> tuple[dict[str, Any], RenderableType]:
    """Draw the figure into `out`; its description as JSON and for a terminal."""
    from soap.paper.figures import draw  # here, because importing matplotlib takes long

    check_writable(out)
    paths = draw(figure.name, data, out)
    entries = compare_all(TABLES.values(), data.rows)
    judged = [judge(claim, entries, data) for claim in claims_about(figure.name)]
    return views.figure_view(views.figure_state(figure, data), judged, paths)


def _run_jobs(console: Console, jobs: Sequence[Job], runner: JobRunner) -> bool:
    """Run the jobs; whether all were reached."""
    announced: set[int] = set()
    with console.progress() as show:

        def watch(progress: JobProgress) -> None:
            show(progress.what, progress.done, progress.total, str(progress))
            if progress.number not in announced:
                announced.add(progress.number)
                console.info(str(progress))

        done = run_jobs(jobs, runner, watch=watch)
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
