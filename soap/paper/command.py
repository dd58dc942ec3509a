"""`soap reproduce`: tables, figures and claims of the paper, ours beside them; --run measures what is missing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from soap import paper, recipes, validate
from soap._runtime import devices, interrupts
from soap.cli import paper_claims
from soap.cli.options import DataRoot
from soap.cli.outputs import check_folder
from soap.cli.paper_figures import Studio, chosen, figures_table
from soap.cli.paper_views import as_json, compared, view
from soap.cli.shell import INTERRUPTED, Shell, command
from soap.cli.tables import table
from soap.errors import InputError, unknown
from soap.paper import jobs
from soap.paper.figures import FIGURES
from soap.paper.planning import PASSES
from soap.paper.rows import merged
from soap.paper.verdicts import judge_all
from soap.report.comparison import Comparison
from soap.report.comparison_words import Entry, missing
from soap.results import Row, Store


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in (*paper.TABLES, *FIGURES, paper_claims.NAME) if name.startswith(incomplete)]


def _complete_recipe(incomplete: str) -> list[str]:
    return [name for name in _recipes() if name.startswith(incomplete)]


def reproduce(
    shell: Shell,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="e.g. table-2 or figure-3, or claims; without it, a list.",
            autocompletion=_complete_name,
        ),
    ] = None,
    only: Annotated[
        str,
        typer.Option("--only", metavar="RECIPE", help="Recipes whose name starts so.", autocompletion=_complete_recipe),
    ] = "",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that a figure is drawn into.")] = Path(
        "figures"
    ),
    run: Annotated[bool, typer.Option("--run", help="Train and measure what is missing; can be stopped.")] = False,
    results: Annotated[
        Path, typer.Option("--results", metavar="FILE", help="JSONL file of further rows; --run appends to it.")
    ] = Path("runs/reproduce.jsonl"),
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder for what --run trains.")] = Path("runs"),
    epochs: Annotated[
        int | None, typer.Option("--epochs", metavar="N", min=1, help="--run trains for so many at most.")
    ] = None,
    trainings: Annotated[
        int, typer.Option("--trainings", metavar="N", min=1, help="--run wants so many of a recipe, from --seed on.")
    ] = 1,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="[ATTACK=]N", help="--run measures the first N images only, e.g. cw=1000."),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="--run trains in fp32, or bf16 for speed on a GPU.")
    ] = "fp32",
    compiled: Annotated[bool, typer.Option("--compile", help="--run trains with torch.compile.")] = False,
    data_root: DataRoot = None,
) -> None:
    """Show the paper's tables with ours beside the printed numbers, draw its figures, and tell which claims held.

    Without a name: what there is, what is done, what is missing. Ours come from the committed result rows and from
    --results; nothing is computed without --run, which trains what has no weights, measures cell by cell, cheap attacks
    first, and keeps every row at once: after Ctrl-C the same command goes on.
    """
    validate.choice("precision", precision, devices.PRECISIONS)
    limits = _limits(limit or [])
    tables = _tables(name, only)
    if name == paper_claims.NAME and (run or only):
        raise InputError("claims are judged by all rows there are: leave out --only, and --run the tables and figures.")
    rows = merged([*paper.committed_rows(), *Store(results).read()])
    studio = Studio(shell=shell, rows=rows, results=results, runs=runs, data_root=data_root)
    finished = True
    if run:
        with interrupts.stoppable() as stop:
            if name in FIGURES:
                studio.gather(FIGURES[name], only=only, limit=limits.get(ANY), stop=stop)
                finished = not stop()
            else:
                options = {
                    "epochs": epochs,
                    "seeds": range(shell.seed, shell.seed + trainings),
                    "limit": {attack: n for attack in PASSES if (n := limits.get(attack, limits.get(ANY)))},
                    "precision": precision,
                    "compiled": compiled,
                    "data_root": data_root,
                    "stop": stop,
                }
                finished = _run(shell, compared(tables, rows, only), rows, results, runs, options)
        rows = merged([*rows, *Store(results).read()])
    content, shown = _answer(name, only, compared(tables, rows, only), studio, out)
    shell.result({**content, "finished": finished}, shown)
    if not finished:
        shell.say("Stopped. What is done is kept: run the same command again to go on.")
        raise typer.Exit(INTERRUPTED)


def _tables(name: str | None, only: str) -> list[paper.Table | paper.Listing]:
    """The tables asked for, all of them for the claims; with `only`, those that have cells of such a recipe."""
    known = [*paper.TABLES, *FIGURES, paper_claims.NAME]
    if name is not None and name not in known:
        raise unknown("table or figure", name, known)
    if only and not any(recipe.startswith(only) for recipe in _recipes()):
        raise unknown("recipe", only, _recipes())
    tables = [entry for key, entry in paper.TABLES.items() if name in (None, key, paper_claims.NAME)]
    kept = [entry for entry in tables if not only or _has(entry, only)]
    if tables and not kept:
        raise InputError(f"{name} has no cell of a recipe that starts with {only!r}; leave out --only.")
    return kept


def _has(entry: paper.Table | paper.Listing, only: str) -> bool:
    return isinstance(entry, paper.Table) and any(
        recipe.startswith(only) for wanted in entry.wanted for recipe in wanted.needs
    )


def _recipes() -> list[str]:
    """Recipes of classifiers, and of the generative models that purify before them."""
    return [*recipes.names(), *recipes.generative.names()]


def _answer(
    name: str | None, only: str, entries: Sequence[Entry], studio: Studio, out: Path
) -> tuple[dict[str, Any], RenderableType]:
    """What is shown, for machines and for people: a table, a figure, the claims, or the list of all."""
    if name in FIGURES:
        return studio.drawn(FIGURES[name], out)
    if name == paper_claims.NAME:
        judged = judge_all(paper_claims.findings(entries, studio.material))
        return paper_claims.all_as_json(judged), paper_claims.view(judged)
    if name is not None:
        return as_json(entries[0]), view(entries[0])
    figures = [studio.state(figure) for figure in chosen(only)]
    content: dict[str, Any] = {"tables": [_state(entry) for entry in entries], "figures": figures}
    if only:
        return content, Group(_list(entries), figures_table(figures))
    judged = judge_all(paper_claims.findings(entries, studio.material))
    content["claims"] = paper_claims.count_json(judged)
    return content, Group(_list(entries), figures_table(figures), paper_claims.line(judged))


def _run(
    shell: Shell,
    entries: Sequence[Entry],
    rows: Sequence[Row],
    results: Path,
    runs: Path,
    options: Mapping[str, Any],
) -> bool:
    """Measure what is missing; whether all of it was reached."""
    check_folder(results.parent)
    check_folder(runs)
    cells = [shown.cell for entry in entries if isinstance(entry, Comparison) for shown in entry.cells.values()]
    wanted = list(dict.fromkeys(cell.wanted for cell in cells if isinstance(cell.wanted, paper.Wanted)))
    told: set[int] = set()
    with shell.progress() as show:

        def watch(progress: jobs.Progress) -> None:
            show(progress.what, progress.done, progress.total, str(progress))
            if progress.number not in told:
                told.add(progress.number)
                shell.say(str(progress))

        done = jobs.run(
            wanted,
            rows=rows,
            results=results,
            runs=runs,
            device=shell.device,
            batch=shell.batch,
            watch=watch,
            **options,
        )
    for skipped in done.skipped:
        shell.say(f"Skipped {skipped.job.title}: {skipped.reason}")
    shell.say(f"{done.done} of {done.jobs} jobs done, {len(done.rows)} new rows in {results}.")
    return done.finished


ANY = ""
"""The key of a limit that holds for every attack."""


def _limits(texts: Sequence[str]) -> dict[str, int]:
    """{"cw": 1000} from ["cw=1000"], {ANY: 1000} from ["1000"]."""
    limits = {}
    for text in texts:
        attack, _, count = text.rpartition("=")
        if not count.isdecimal() or int(count) < 1:
            raise InputError(f"--limit is {text!r}, want a number of images, for one attack e.g. cw=1000.")
        if attack and attack not in PASSES:
            raise unknown("attack", attack, PASSES)
        limits[attack] = int(count)
    return limits


def _state(entry: Entry) -> dict[str, Any]:
    content = as_json(entry)
    return {key: content.get(key) for key in ("name", "title", "wanted", "done", "missing")}


def _list(entries: Sequence[Entry]) -> RenderableType:
    made = table("name", "title", "cells done", "missing cells by recipe", right=("cells done",), whole=("name",))
    for entry in entries:
        if isinstance(entry, Comparison):
            made.add_row(entry.table.name, entry.table.title, f"{entry.done} of {entry.wanted}", missing(entry))
        else:
            made.add_row(entry.name, entry.title, "from the code", "")
    return made


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "reproduce", example="soap reproduce table-1")(reproduce)
