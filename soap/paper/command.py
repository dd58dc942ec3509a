"""`soap reproduce`: the paper's tables, figures and claims beside our numbers; --run measures what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from soap import recipes, validate
from soap._files.atomic import check_writable
from soap._runtime import devices
from soap.cli.console import EXIT_INTERRUPTED, Console, command, stop_on_signal
from soap.cli.options import DataRoot, completion, option
from soap.errors import InputError, unknown
from soap.paper import command_views as views
from soap.paper.claims import claims_about
from soap.paper.command_views import CLAIMS_NAME
from soap.paper.comparison import Comparison, Entry, compare_all
from soap.paper.figure_data import FIGURES, TABLE_KINDS, FigureData, PaperFigure
from soap.paper.job_runner import JobRunner, bundled_weights, run_jobs
from soap.paper.jobs import ATTACK_PASSES, Job, plan_figure, plan_jobs
from soap.paper.judging import judge, judge_all
from soap.paper.markdown import claims_markdown, sweep_markdown, table_markdown
from soap.paper.rows import committed_rows, committed_timings, results_folder, without_duplicates
from soap.paper.tables import TABLES, CellQuery, PaperTable, TextTable
from soap.results import CombinedStore, Row, Store

NAMES = (*TABLES, *FIGURES, CLAIMS_NAME)


def _recipe_names() -> list[str]:
    """Recipes of classifiers and of generative models."""
    return [*recipes.names(), *recipes.generative.names()]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What --run trains and measures."""

    run: Annotated[
        bool, typer.Option("--run", help="Train and measure what is missing; can be stopped and resumed.")
    ] = False
    results: Annotated[Path, option("FILE", "JSONL file of further rows; --run appends to it.")] = Path(
        "runs/reproduce.jsonl"
    )
    runs: Annotated[Path, option("DIR", "Folder for trainings of --run.")] = Path("runs")
    epochs: Annotated[int | None, option("N", "Largest number of epochs of a training.", min=1)] = None
    trainings: Annotated[int, option("N", "Trainings of each recipe, with seeds from --seed on.", min=1)] = 1
    limit: Annotated[
        list[str] | None, option("[ATTACK=]N", "Measure the first N images only, e.g. cw=1000; repeat for more.")
    ] = None
    precision: Annotated[str, option("NAME", "Precision of training: fp32, or bf16 for a GPU.")] = "fp32"
    compiled: Annotated[bool, typer.Option("--compile", help="Train with torch.compile.")] = False
    data_root: DataRoot = None


@command("reproduce", example="soap reproduce table-1")
def reproduce(
    console: Console,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="e.g. table-2, figure-3 or claims; without it, a list.",
            autocompletion=completion(lambda: NAMES),
        ),
    ] = None,
    only: Annotated[
        str, option("RECIPE", "Recipes whose name starts with this.", autocompletion=completion(_recipe_names))
    ] = "",
    out: Annotated[Path, option("DIR", "Folder for a drawn figure.")] = Path("figures"),
    *,
    options: RunOptions,
) -> None:
    """Show the paper's tables with our numbers beside the printed ones, draw its figures, judge its claims.

    Without a name: the list of all, with what is done, what is missing and what it would cost. Our numbers come from
    the committed result rows and from --results. Nothing is computed without --run, which trains models without
    weights and measures empty cells, cheap attacks first. Every row is saved at once: after Ctrl-C the same command
    resumes. In a pipe or a file the output is Markdown.
    """
    validate.choice("precision", options.precision, devices.PRECISIONS)
    limits = _limits(options.limit or [])
    tables = _chosen_tables(name, only)
    if name == CLAIMS_NAME and (options.run or only):
        raise InputError("claims are judged by all rows; leave out --only, and use --run with tables and figures.")
    checkout = results_folder()
    data = _data(options, options.runs / "figures" if checkout is None else checkout / "figures", committed_rows())
    finished = True
    if options.run:
        finished = _run(console, name, only, compare_all(tables, data.rows, only), data, options, limits)
        data = _data(options, data.folder, data.rows)
    content, text = _result(name, only, compare_all(tables, data.rows, only), data, out)
    console.result({**content, "finished": finished}, views.on_terminal(text))
    if not finished:
        console.info("Stopped. Finished work is saved: run the same command again to resume.")
        raise typer.Exit(EXIT_INTERRUPTED)


def _limits(texts: Sequence[str]) -> dict[str, int]:
    """Number of images by attack: {"cw": 1000} from ["cw=1000"]; ["1000"] is for all attacks."""
    limits: dict[str, int] = {}
    for text in texts:
        attack, _, count = text.rpartition("=")
        if not count.isdecimal() or int(count) < 1:
            raise InputError(f"--limit is {text!r}; expected a number of images, or ATTACK=NUMBER such as cw=1000.")
        if attack and attack not in ATTACK_PASSES:
            raise unknown("attack", attack, ATTACK_PASSES)
        limits |= {attack: int(count)} if attack else {one: int(count) for one in ATTACK_PASSES if one not in limits}
    return limits


def _chosen_tables(name: str | None, only: str) -> list[PaperTable | TextTable]:
    """The named table, or all for the list and the claims; with `only`, tables with a cell of such a recipe."""
    if name is not None and name not in NAMES:
        raise unknown("table or figure", name, NAMES)
    if only and not any(recipe.startswith(only) for recipe in _recipe_names()):
        raise unknown("recipe", only, _recipe_names())
    tables = [entry for key, entry in TABLES.items() if name in (None, key, CLAIMS_NAME)]
    kept = [entry for entry in tables if not only or any(recipe.startswith(only) for recipe in entry.recipes)]
    if tables and not kept:
        raise InputError(f"{name} has no cell of a recipe that starts with {only!r}; leave out --only.")
    return kept


def _data(options: RunOptions, folder: Path, rows: Sequence[Row]) -> FigureData:
    """These rows and those of --results, the timings, and the folder of the figures' records."""
    rows = without_duplicates([*rows, *Store(options.results).read()])
    return FigureData(folder=folder, rows=rows, timings=committed_timings())


def _queries(entries: Sequence[Entry]) -> list[CellQuery]:
    """The queries of all cells, each once."""
    cells = [found.cell for entry in entries if isinstance(entry, Comparison) for found in entry.cells.values()]
    return list(dict.fromkeys(cell.query for cell in cells if cell.query is not None))


def _run(
    console: Console,
    name: str | None,
    only: str,
    entries: Sequence[Entry],
    data: FigureData,
    options: RunOptions,
    limits: dict[str, int],
) -> bool:
    """Train and measure what the tables or the figure lack; False if it was stopped."""
    for folder in (options.results.parent, options.runs, data.folder):
        check_writable(folder)
    with stop_on_signal() as stop:
        runner = JobRunner(
            store=CombinedStore(options.results, list(data.rows)),
            runs=options.runs,
            figures=data.folder,
            device=console.device,
            data_root=options.data_root,
            batch_size=console.batch_size,
            seed=console.seed,
            precision=options.precision,
            compiled=options.compiled,
            stop=stop,
        )
        jobs: list[Job]
        if name in FIGURES:
            needed = [one for one in FIGURES[name].inputs if one.model.startswith(only) and one.missing(data)]
            jobs = plan_figure(needed, weights=runner.weights, epochs=options.epochs, limit=limits.get("none"))
        else:
            jobs = plan_jobs(
                _queries(entries),
                data.rows,
                weights=runner.weights,
                epochs=options.epochs,
                seeds=range(console.seed, console.seed + options.trainings),
                limit=limits,
            )
        with console.progress() as show:
            done = run_jobs(jobs, runner, show=show, announce=console.info)
    for job, reason in done.skipped.items():
        console.info(f"Skipped {job.title}: {reason}")
    console.info(f"{done.done} of {done.jobs} jobs done, {len(done.rows)} new rows in {options.results}.")
    return done.finished


def _result(
    name: str | None, only: str, entries: Sequence[Entry], data: FigureData, out: Path
) -> tuple[dict[str, Any], str]:
    """A table, a figure, the claims, or the list of all, as JSON and as Markdown."""
    if name in FIGURES:
        return _drawn(FIGURES[name], data, out)
    if name == CLAIMS_NAME:
        judged = judge_all(entries, data)
        return views.claims_json(judged), claims_markdown(judged)
    if name is not None:
        return views.table_json(entries[0]), table_markdown(entries[0])
    jobs = [plan_jobs(_queries([entry]), data.rows, weights=bundled_weights) for entry in entries]
    tables = [views.table_state(entry, own) for entry, own in zip(entries, jobs, strict=True)]
    figures = [
        views.figure_state(figure, data)
        for figure in FIGURES.values()
        if any(model.startswith(only) for model in figure.models)
    ]
    judged = [] if only else judge_all(entries, data)
    content: dict[str, Any] = {"tables": tables, "figures": figures}
    content |= {} if only else {"claims": views.claim_counts(judged)}
    return content, views.list_text(entries, tables, figures, judged)


def _drawn(figure: PaperFigure, data: FigureData, out: Path) -> tuple[dict[str, Any], str]:
    """Draw the figure into `out`, or show its rows as a table; its description as JSON and as Markdown."""
    paths, table = [], ""
    if figure.kind in TABLE_KINDS:
        table = sweep_markdown(figure, data)
    else:
        from soap.paper.figures import draw  # here, because importing matplotlib takes long

        check_writable(out)
        paths = draw(figure.name, data, out)
    entries = compare_all(TABLES.values(), data.rows)
    judged = [judge(claim, entries, data) for claim in claims_about(figure.name)]
    state = views.figure_state(figure, data)
    verdicts = [views.claim_json(one) for one in judged if one is not None]
    return {**state, "verdicts": verdicts, "files": paths}, views.figure_text(state, table, judged, paths)
