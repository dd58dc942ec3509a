"""`soap report`: the HTML page of a run of the adaptive suite."""

from pathlib import Path
from typing import Annotated

import typer

from soap._files import atomic
from soap.cli.options import DataName, DataRoot
from soap.cli.outputs import check_folder
from soap.cli.runs import asked
from soap.cli.shell import Shell, command
from soap.cli.verify import RunName
from soap.errors import FileError
from soap.evaluation.adaptive.evaluate import read
from soap.evaluation.adaptive.opened import opened


def report(
    shell: Shell,
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
        raise FileError(f"{page}: is a folder; expected a file, e.g. {page / 'report.html'}.")
    folder = opened(run)
    wanted = asked(folder, data=data)
    check_folder(page.parent)
    images = wanted.images(data_root, folder.plan()["classes"])
    found = read(run, images)
    atomic.write_text(page, render_run(found, images, command=wanted.command))
    content = {"run": run, "page": page.absolute(), "verdict": found.verdict.name}
    shell.result(content, f"The page: {page.absolute()}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "report", example="soap report runs/mnist-fcn-dr-quick --out report.html")(report)
