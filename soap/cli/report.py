"""`soap report`: the HTML page of a run of the adaptive suite."""

from pathlib import Path
from typing import Annotated

import typer

from soap._files import atomic
from soap._files.atomic import check_writable
from soap.cli.console import Console, command
from soap.cli.options import DataName, DataRoot
from soap.cli.verify import RunName
from soap.errors import FileError
from soap.evaluation.run_folder import open_run
from soap.evaluation.suite import read_report
from soap.recipes.run_request import read_request


def report_command(
    console: Console,
    run: RunName,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File of the page. [dim]\\[default: report.html in the run][/dim]"),
    ] = None,
    data: DataName = None,
    data_root: DataRoot = None,
) -> None:
    """Write one HTML page of a run: verdict, accuracies, plots, checks, images that broke it, provenance.

    It needs the run's folder and its data set, not the model. The page makes no network requests.
    """
    from soap.report.run_page import render_run  # here, because importing matplotlib takes long

    page = out or run / "report.html"
    if page.is_dir():
        raise FileError(f"{page}: it is a folder, expected a file; name one, e.g. {page / 'report.html'}.")
    folder = open_run(run)
    wanted = read_request(folder, data=data)
    check_writable(page.parent)
    images = wanted.images(data_root, folder.plan()["classes"])
    found = read_report(run, images)
    atomic.write_text(page, render_run(found, images, command=wanted.command))
    content = {"run": run, "page": page.absolute(), "verdict": found.verdict.name}
    console.result(content, f"The page: {page.absolute()}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "report", example="soap report runs/mnist-fcn-dr-quick --out report.html")(report_command)
