"""`soap evaluate --suite`: run a suite of adaptive attacks; print the headline, protocols and checks."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import rich.table
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from soap import data as library
from soap import zoo
from soap._files import atomic
from soap._runtime import distributed, interrupts
from soap.cli.console import EXIT_INTERRUPTED, Console
from soap.cli.options import AttackOptions, DefenceOptions, ImageOptions, completion, default
from soap.cli.tables import table
from soap.errors import InputError
from soap.evaluation.checks import FAIL, WARN
from soap.evaluation.plan import PROTOCOLS, SUITES, Threat, protocols
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.suite import (
    DEFAULT_QUERIES,
    DEFAULT_STEPS,
    QUICK_STEPS,
    SuiteReport,
    default_steps,
    evaluate_suite,
)
from soap.evaluation.summary import ProtocolResult, Summary, read_summary
from soap.evaluation.verdict import NOTHING, TRUSTED, headline
from soap.recipes.attacks import paper_radius
from soap.recipes.purifiers import SOAP_NAME
from soap.recipes.recipe import class_names
from soap.recipes.run_request import RunRequest
from soap.report.row_text import defence_text
from soap.report.run_words import alone, gain, right, shown_lines, threat_words
from soap.results import defence_from_json

EXIT_NOT_TRUSTED = 3
"""Exit code of `--require trusted` for any other verdict."""

DEFAULT_LIMIT = 1000
"""Images without --limit: the 95 % interval is about three points wide."""


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """Options of --suite."""

    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            metavar="NAME",
            help=f"Use attacks that know the purifier, and check the result: {', '.join(SUITES)}, or one protocol: "
            f"{', '.join(PROTOCOLS)}. Takes --eps, --norm, --steps ({DEFAULT_STEPS}, of quick {QUICK_STEPS}), "
            f"--queries, --out and --require. {default('transfer only')}",
            autocompletion=completion(lambda: (*SUITES, *PROTOCOLS)),
        ),
    ] = None
    norm: Annotated[
        str | None, typer.Option("--norm", metavar="NAME", help=f"With --suite: linf or l2. {default('linf')}")
    ] = None
    queries: Annotated[
        int | None,
        typer.Option(
            "--queries", metavar="N", min=1, help=f"With --suite: queries of black-box attacks. {default('1000')}"
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="RUN",
            help=f"With --suite: folder of the run, its images and its report. {default('runs/MODEL-SUITE')}",
        ),
    ] = None
    require: Annotated[
        str | None,
        typer.Option(
            "--require", metavar="trusted", help="With --suite: exit code 3 unless the verdict is TRUSTED BOUND."
        ),
    ] = None


def run_suite(
    console: Console,
    model: str,
    options: SuiteOptions,
    images: ImageOptions,
    defence: DefenceOptions,
    settings: AttackOptions,
) -> None:
    """Run a suite and print its report."""
    suite = str(options.suite)
    _check_options(options, defence)
    network = zoo.load(model, device=console.device, gradient=defence.gradient)
    recipe = zoo.recipe(model)
    data = library.load(images.data or recipe.data, images.split, root=images.data_root)
    data = data.numbered_by(class_names(recipe, network.classes))
    data = data.take(min(DEFAULT_LIMIT, len(data)) if images.limit is None else images.limit).to(console.device)
    if settings.eps is None and options.norm == "l2":
        raise InputError("--norm l2 has no radius in the paper's tables; give --eps, e.g. --eps 0.5.")
    eps = paper_radius(data.name, recipe, network) if settings.eps is None else settings.eps
    threat = Threat(eps=eps, norm=options.norm or "linf")
    purifier = defence.purifier[0] if defence.purifier else SOAP_NAME
    min_aux = "min-aux" if purifier == SOAP_NAME and (defence.purifier or network.purifiable) else None
    request = RunRequest(
        model=model,
        gradient=defence.gradient,
        eps_pfy=defence.eps_pfy[0] if defence.eps_pfy else min_aux,
        data=images.data or recipe.data,
        split=images.split,
        limit=len(data),
        command="",
        purifier=purifier,
        prior=defence.prior,
        seed=console.seed,
    )
    name = network.name if purifier == SOAP_NAME else f"{network.name}-{purifier}"
    folder = options.out or Path("runs") / f"{name}-{suite}"
    atomic.check_writable(folder)
    numbers = {
        "steps": default_steps(suite) if settings.steps is None else settings.steps,
        "queries": DEFAULT_QUERIES if options.queries is None else options.queries,
        "batch": console.batch,
        "seed": console.seed,
    }
    note = {**asdict(request), "command": _full_command(request, suite, threat, numbers, folder)}
    target = request.defence(console.device)
    if request.bare:
        console.info(f"{network.name} has no auxiliary task to purify with: the bare classifier is attacked.")
    with interrupts.stop_on_signal() as stop, console.progress() as show:
        report = evaluate_suite(
            target, data, threat, suite=suite, out=folder, note=note, watch=show, stop=stop, **numbers
        )
    if report is None:
        _print_stopped(console, folder, read_summary(RunFolder(folder), data, unfinished=True))
        raise typer.Exit(EXIT_INTERRUPTED)
    console.result({**report_content(report), "finished": True, "run": folder}, _view(report))
    console.info(f"The run is in {folder}; `soap report {shlex.quote(str(folder))}` makes a page of it.")
    if options.require is not None and report.verdict.name != TRUSTED:
        raise typer.Exit(EXIT_NOT_TRUSTED)


def _check_options(options: SuiteOptions, defence: DefenceOptions) -> None:
    """Raise for bad options before anything is read."""
    if distributed.processes().is_distributed:
        raise InputError(
            f"--suite runs in one process, got {distributed.processes().world_size}; start it without a launcher."
        )
    protocols(str(options.suite))  # raises for an unknown name
    if options.require not in (None, "trusted"):
        raise InputError(f"--require is {options.require!r}, expected trusted; omit it to accept any verdict.")
    for option, given in (("--eps-pfy", defence.eps_pfy), ("--purifier", defence.purifier)):
        if given and len(given) > 1:
            raise InputError(f"--suite evaluates one defence, got {len(given)} of {option}; give one of them.")


def _full_command(request: RunRequest, suite: str, threat: Threat, numbers: dict[str, int], out: Path) -> str:
    """The whole command with its defaults."""
    given: dict[str, object] = {
        "--suite": suite,
        "--data": request.data,
        "--split": request.split,
        "--limit": request.limit,
        "--purifier": None if request.purifier == SOAP_NAME else request.purifier,
        "--prior": request.prior,
        "--eps-pfy": request.eps_pfy,
        "--gradient": request.gradient,
        "--eps": repr(threat.eps),
        "--norm": threat.norm,
        **{f"--{name}": value for name, value in numbers.items()},
        "--out": out,
    }
    parts = [str(part) for pair in given.items() if pair[1] is not None for part in pair]
    return shlex.join(["soap", "evaluate", request.model, *parts])


def _print_stopped(console: Console, folder: Path, summary: Summary) -> None:
    """Print the finished protocols and how to resume."""
    content = {"finished": False, "run": folder, "protocols": [_line(line) for line in summary.protocols]}
    done = (summary.clean, *summary.protocols)
    view: RenderableType = _protocols(summary, done) if summary.protocols else "no protocol is finished yet"
    console.result(content, view)
    console.info(f"Stopped. Finished work is kept in {folder}: run the same command again to resume.")


def report_content(report: SuiteReport) -> dict[str, Any]:
    """The report as JSON."""
    summary = report.summary
    return {
        "model": summary.plan["target"]["name"],
        "defence": defence_text(defence_from_json(summary.plan["target"]["defence"])),
        "threat": summary.plan["threat"],
        "suite": summary.plan["suite"],
        "verdict": {"name": report.verdict.name, "reasons": list(report.verdict.reasons)},
        "headline": None if report.verdict.name == NOTHING else _line(summary.worst),
        "clean": _line(summary.clean),
        "protocols": [_line(line) for line in summary.protocols],
        "checks": [asdict(one) for one in report.findings],
        "left_out": dict(summary.plan["left_out"]),
        "rows": [row.as_json() for row in report.rows],
    }


def _line(line: ProtocolResult) -> dict[str, Any]:
    return {
        "protocol": line.protocol,
        "n": line.n,
        "correct": line.correct,
        "accuracy": line.accuracy,
        "interval": list(line.interval),
        "bare": None if line.bare is None else float(line.bare.mean()),
        "gain": None if line.gain is None else list(line.gain),
        "seconds": round(line.seconds, 3),
    }


def _view(report: SuiteReport) -> Group:
    """The report as text and tables: headline, protocols, checks and warnings."""
    summary, verdict = report.summary, report.verdict
    parts: list[RenderableType] = [Text(headline(summary, verdict), style="bold"), Text(threat_words(summary))]
    parts += [_protocols(summary, shown_lines(report)), _checks(report)]
    parts += [Text(f"{one.state} {one.number}: {one.meaning}") for one in report.findings if one.state in (WARN, FAIL)]
    skipped = summary.plan["left_out"]
    if skipped:
        parts.append(Text("Skipped: " + "; ".join(f"{name} ({why})" for name, why in skipped.items()) + "."))
    return Group(*parts)


def _protocols(summary: Summary, lines: Sequence[ProtocolResult]) -> rich.table.Table:
    """A table row for each protocol; the bare classifier is evaluated on the same points."""
    purifies = summary.plan["purifies"]
    others = ("bare on the same points, %", "gain, points") if purifies else ()
    view = table("protocol", "accuracy, %", *others, "seconds", right=("seconds",))
    for line in lines:
        cells = (alone(line), gain(line)) if purifies else ()
        view.add_row(line.protocol, right(line), *cells, f"{line.seconds:.1f}")
    return view


def _checks(report: SuiteReport) -> rich.table.Table:
    view = table("state", "check", "result", whole=("state",))
    for finding in report.findings:
        view.add_row(finding.state, f"{finding.number}. {finding.name}", finding.measured)
    return view
