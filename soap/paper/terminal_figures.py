"""Figures of the paper on the command line: what is at hand for each, gathering what is not, drawing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from soap import bench, paper, zoo
from soap.cli.outputs import check_folder
from soap.cli.paper_claims import as_json, findings, verdict
from soap.cli.paper_views import compared
from soap.cli.shell import Shell
from soap.cli.tables import table
from soap.evaluation.gathered import Material
from soap.paper.figures import FIGURES, PaperFigure
from soap.paper.rows import merged, results_folder
from soap.paper.verdicts import judge
from soap.paper.workshop import WEIGHTS, run_folder
from soap.report.verdicts import subject
from soap.results import Ledger, Row, Store


@dataclass(frozen=True, kw_only=True)
class Studio:
    """Where figures are made. rows: all that are known. results, runs: further rows, and trained weights.

    Gathered images and curves lie in `results/figures` of a source checkout, else beside the runs.
    """

    shell: Shell
    rows: Sequence[Row]
    results: Path
    runs: Path
    data_root: Path | None

    @property
    def folder(self) -> Path:
        """Where what was gathered lies."""
        checkout = results_folder()
        return self.runs / "figures" if checkout is None else checkout / "figures"

    @property
    def material(self) -> Material:
        """What figures are drawn from."""
        checkout = results_folder()
        files = [] if checkout is None else sorted(checkout.glob("bench-*.jsonl"))
        timings = [row for path in files for row in bench.read(path)]
        return Material(folder=self.folder, rows=merged([*self.rows, *Store(self.results).read()]), timings=timings)

    def gather(self, figure: PaperFigure, *, only: str, limit: int | None, stop: Callable[[], bool]) -> None:
        """Make what is missing from the weights at hand: the bundled ones, else those in the folder of runs."""
        check_folder(self.results.parent)
        check_folder(self.folder)
        places = {name: self._weights(name) for name in figure.models if name.startswith(only)}
        for name in (name for name, path in places.items() if path is None):
            self.shell.say(f"No weights of {name}: train them with `soap reproduce --run --only {name}`.")
        models = {name: zoo.load(path, device=self.shell.device) for name, path in places.items() if path is not None}
        with self.shell.progress() as show:
            made = figure.gather(
                models,
                folder=self.folder,
                store=Ledger(self.results, self.rows),
                data_root=self.data_root,
                limit=limit,
                batch=self.shell.batch,
                seed=self.shell.seed,
                watch=show,
                stop=stop,
            )
        for words in made:
            self.shell.say(f"Made: {words}.")

    def _weights(self, name: str) -> Path | None:
        own = run_folder(self.runs, name, 0) / WEIGHTS
        return zoo.weights_path(name) if name in zoo.names() else own if own.exists() else None

    def state(self, figure: PaperFigure) -> dict[str, Any]:
        """What there is of the figure, for machines."""
        missing = figure.missing(self.material)
        pieces = len(figure.pieces)
        claims = [f"{claim.text} ({claim.place})" for claim in figure.claims]
        words = {"name": figure.name, "title": figure.title, "caption": figure.caption, "claims": claims}
        return {**words, "wanted": pieces, "done": pieces - len(missing), "missing": missing}

    def drawn(self, figure: PaperFigure, out: Path) -> tuple[dict[str, Any], RenderableType]:
        """Draw it into the folder `out`; what there is to say, for machines and for people."""
        from soap.report.paper_figures import draw  # not above: matplotlib takes its time

        check_folder(out)
        paths = draw(figure.name, self.material, out)
        state = self.state(figure)
        material = self.material
        known = findings(compared(paper.TABLES.values(), material.rows), material)
        judged = [judge(claim, known) for claim in figure.claims]
        parts: list[RenderableType] = [Text(f"{subject(figure.name)}: {figure.title}", "bold"), Text(figure.caption)]
        parts += [Text("What the paper says of it:")] if judged else []
        for claim, one in zip(state["claims"], judged, strict=True):
            parts += [Text(f"- {claim}"), *([] if one is None else [Padding(verdict(one), (0, 0, 0, 4), expand=False)])]
        parts += [Text(f"Missing: {words}") for words in state["missing"]]
        verdicts = [as_json(one) for one in judged if one is not None]
        return {**state, "verdicts": verdicts, "files": paths}, Group(*parts, *(Text(str(path)) for path in paths))


def chosen(only: str) -> list[PaperFigure]:
    """All figures; with `only`, those with a piece of such a model."""
    return [figure for figure in FIGURES.values() if not only or any(name.startswith(only) for name in figure.models)]


def figures_table(states: Sequence[dict[str, Any]]) -> RenderableType:
    """A line for each figure."""
    made = table("name", "title", "pieces done", "missing", right=("pieces done",), whole=("name",))
    for state in states:
        done = f"{state['done']} of {state['wanted']}" if state["wanted"] else "from the code"
        first, *others = state["missing"] or [""]
        more = f" (and {len(others)} more)" if others else ""
        made.add_row(state["name"], state["title"], done, first + more)
    return made
