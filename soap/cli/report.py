"""`soap report`: a run of the adaptive suite as an HTML page, or in another format."""

from pathlib import Path
from typing import Annotated

from soap._files import atomic
from soap.cli.console import Console, command
from soap.cli.options import DataOptions, RunName, option
from soap.errors import FileError, unknown
from soap.evaluation.exports import SUFFIXES
from soap.evaluation.run_folder import open_run
from soap.recipes.run_request import read_request, report_of

HTML = "html"
FORMATS = (HTML, *SUFFIXES)


@command("report", example="soap report runs/mnist-fcn-dr-quick --out report.html")
def report_command(
    console: Console,
    *,
    run: RunName,
    format: Annotated[str, option("NAME", f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")] = HTML,
    out: Annotated[Path | None, option("FILE", "File to write.", default="report.html, report.tex, ... in RUN")] = None,
    images: DataOptions,
) -> None:
    """Write one HTML page of a run: verdict, accuracies, plots, checks, images that broke it, provenance.

    With --format, a LaTeX table, a BibTeX entry, the result rows as CSV or JSON, or the fields of RobustBench's
    model_info. It needs the run's folder and its data set, not the model. The page makes no network requests.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    file = out or run / f"report{'.html' if format == HTML else SUFFIXES[format]}"
    if file.is_dir():
        raise FileError(f"{file}: it is a folder, expected a file; name one, e.g. {file / file.name}.")
    folder = open_run(run)
    atomic.check_writable(file.parent)
    found, data = report_of(run, data=images.data, root=images.data_root)
    if format == HTML:
        from soap.report.run_page import render_run  # here, because importing matplotlib takes long

        atomic.write_text(file, render_run(found, data, command=read_request(folder).command))
    else:
        found.save(file, format=format)
    name = "page" if format == HTML else "file"
    content = {"run": run, name: file.absolute(), "verdict": found.verdict.name}
    console.result(content, f"The {name}: {file.absolute()}")
