"""`soap cite`: a BibTeX entry of a run of the adaptive suite."""

from soap.cli.console import Console, command
from soap.cli.options import DataOptions, RunName
from soap.recipes.run_request import report_of


@command("cite", example="soap cite runs/mnist-fcn-dr-full")
def cite_command(console: Console, *, run: RunName, images: DataOptions) -> None:
    """Print a BibTeX entry of a run: model, worst case with interval and images, verdict, version, commit, date.

    Checks and verdict are computed again from the run's folder and its images. Where a check failed, the entry states
    no accuracy. `soap report --format bibtex` writes the same entry to a file.
    """
    report, _ = report_of(run, data=images.data, root=images.data_root)
    entry = report.to_bibtex()
    console.result({"run": run, "bibtex": entry, "verdict": report.verdict.name}, entry.rstrip())
