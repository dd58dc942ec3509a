"""`soap report`: a run of the adaptive suite as an HTML page, or in another format."""

from pathlib import Path
from typing import Annotated

import typer

from soap._files import atomic
from soap._files.atomic import check_writable
from soap.cli.console import Console, command
from soap.cli.options import DataName, DataRoot, default
from soap.cli.verify import RunName
from soap.errors import FileError, unknown
from soap.evaluation.exports import SUFFIXES
from soap.evaluation.run_folder import open_run
from soap.evaluation.suite import read_report
from soap.recipes.run_request import read_request

HTML = "html"
FORMATS = (HTML, *SUFFIXES)


def report_command(
    console: Console,
    run: RunName,
    format: Annotated[
        str, typer.Option("--format", metavar="NAME", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")
    ] = HTML,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help=f"File to write. {default('report.html, report.tex, ... in RUN')}"),
    ] = None,
    data: DataName = None,
    data_root: DataRoot = None,
) -> None:
    """Write one HTML page of a run: verdict, accuracies, plots, checks, images that broke it, provenance.

    With --format, a LaTeX table, the result rows as CSV or JSON, or the fields of RobustBench's model_info. It needs
    the run's folder and its data set, not the model. The page makes no network requests.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    file = out or run / f"report{'.html' if format == HTML else SUFFIXES[format]}"
    if file.is_dir():
        raise FileError(f"{file}: it is a folder, expected a file; name one, e.g. {file / file.name}.")
    folder = open_run(run)
    wanted = read_request(folder, data=data)
    check_writable(file.parent)
    images = wanted.images(data_root, folder.plan()["classes"])
    found = read_report(run, images)
    if format == HTML:
        from soap.report.run_page import render_run  # here, because importing matplotlib takes long

        atomic.write_text(file, render_run(found, images, command=wanted.command))
    else:
        found.save(file, format=format)
    name = "page" if format == HTML else "file"
    content = {"run": run, name: file.absolute(), "verdict": found.verdict.name}
    console.result(content, f"The {name}: {file.absolute()}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "report", example="soap report runs/mnist-fcn-dr-quick --out report.html")(report_command)
