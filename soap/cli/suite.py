"""`soap evaluate --suite`: the headline, its verdict, every protocol and every check."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich.table
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from soap import data as library
from soap import zoo
from soap._runtime import distributed, interrupts
from soap.cli.options import paper_attacks
from soap.cli.outputs import check_folder
from soap.cli.runs import Asked
from soap.cli.shell import INTERRUPTED, Shell
from soap.cli.tables import class_names, table
from soap.errors import InputError
from soap.evaluation.checks import FAIL, WARN
from soap.evaluation.plan import PROTOCOLS, SUITES, Threat, protocols
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.suite import DEFAULT_QUERIES, SuiteReport, default_steps, evaluate_suite
from soap.evaluation.summary import ProtocolResult, Summary, read_summary
from soap.evaluation.verdict import NOTHING, TRUSTED, headline
from soap.recipes.purifiers import SOAP_NAME
from soap.report.row_text import defence_text
from soap.report.run_words import alone, gain, right, shown_lines, threat_words
from soap.results import defence_from_json

NOT_TRUSTED = 3
"""Exit code of `--require trusted` for a verdict that is anything less."""

LIMIT = 1000
"""Images unless --limit says otherwise: an interval of about three points."""


def run_suite(
    shell: Shell,
    *,
    model: str,
    data: str | None,
    split: str,
    eps_pfy: Sequence[str],
    gradient: str | None,
    purifier: Sequence[str],
    prior: str | None,
    suite: str,
    eps: float | None,
    norm: str | None,
    steps: int | None,
    queries: int | None,
    limit: int | None,
    out: Path | None,
    require: str | None,
    data_root: Path | None,
) -> None:
    """Run a suite and show what came of it."""
    if distributed.here().many:
        raise InputError(
            f"--suite is the work of one process, got {distributed.here().world}; start it without a launcher."
        )
    protocols(suite)  # a name that is wrong is refused before anything is read
    if require not in (None, "trusted"):
        raise InputError(f"--require is {require!r}, want trusted; leave it out to accept any verdict.")
    for option, given in (("--eps-pfy", eps_pfy), ("--purifier", purifier)):
        if len(given) > 1:
            raise InputError(f"--suite evaluates one defence, got {len(given)} of {option}; give one of them.")
    name = purifier[0] if purifier else SOAP_NAME
    network, recipe = zoo.load(model, device=shell.device, gradient=gradient), zoo.recipe(model)
    images = library.load(data or recipe.data, split, root=data_root)
    images = images.numbered_by(class_names(recipe, network.classes))
    images = images.take(min(LIMIT, len(images)) if limit is None else limit).to(shell.device)
    if eps is None:
        if norm == "l2":
            raise InputError("--norm l2 has no radius in the paper's tables; give --eps, e.g. --eps 0.5.")
        eps = paper_attacks(shell, images.name, recipe, network)["pgd"].eps  # type: ignore[attr-defined]
    threat = Threat(eps=eps, norm=norm or "linf")
    called = network.name if name == SOAP_NAME else f"{network.name}-{name}"
    place = out or Path("runs") / f"{called}-{suite}"
    check_folder(place)
    asked = Asked(
        model=model,
        gradient=gradient,
        eps_pfy=eps_pfy[0]
        if eps_pfy
        else "min-aux"
        if name == SOAP_NAME and (purifier or network.purifiable)
        else None,
        data=data or recipe.data,
        split=split,
        limit=len(images),
        command="",
        purifier=name,
        prior=prior,
        seed=shell.seed,
    )
    options = {
        "steps": default_steps(suite) if steps is None else steps,
        "queries": DEFAULT_QUERIES if queries is None else queries,
        "batch": shell.batch,
        "seed": shell.seed,
    }
    command = _command(asked, suite, threat, options, place)
    defence = asked.defence(shell)
    if asked.bare:
        shell.say(f"{network.name} has no auxiliary task, so there is nothing to purify with: it is attacked as it is.")
    with interrupts.stoppable() as stop, shell.progress() as show:
        report = evaluate_suite(
            defence,
            images,
            threat,
            suite=suite,
            out=place,
            note={**asked.as_json(), "command": command},
            watch=show,
            stop=stop,
            **options,
        )
    if report is None:
        _stopped(shell, place, read_summary(RunFolder(place), images, unfinished=True))
    else:
        shell.result({**report_content(report), "finished": True, "run": place}, _view(report))
        shell.say(f"The run is in {place}; `soap report {shlex.quote(str(place))}` makes a page of it.")
        if require is not None and report.verdict.name != TRUSTED:
            raise typer.Exit(NOT_TRUSTED)


def help_of_suites() -> str:
    """What may follow --suite."""
    return f"{', '.join(SUITES)}, or one protocol: {', '.join(PROTOCOLS)}"


def suite_names(incomplete: str) -> list[str]:
    """Completion of --suite."""
    return [name for name in (*SUITES, *PROTOCOLS) if name.startswith(incomplete)]


def _command(asked: Asked, suite: str, threat: Threat, options: dict[str, int], out: Path) -> str:
    """The whole command, defaults spelled out."""
    given: dict[str, object] = {
        "--suite": suite,
        "--data": asked.data,
        "--split": asked.split,
        "--limit": asked.limit,
        **({} if asked.purifier == SOAP_NAME else {"--purifier": asked.purifier}),
        **({} if asked.prior is None else {"--prior": asked.prior}),
        **({} if asked.eps_pfy is None else {"--eps-pfy": asked.eps_pfy}),
        **({} if asked.gradient is None else {"--gradient": asked.gradient}),
        "--eps": repr(threat.eps),
        "--norm": threat.norm,
        **{f"--{name}": value for name, value in options.items()},
        "--out": out,
    }
    return shlex.join(["soap", "evaluate", asked.model, *(str(part) for pair in given.items() for part in pair)])


def _stopped(shell: Shell, place: Path, summary: Summary) -> None:
    """Show what is done, and how to go on."""
    content = {"finished": False, "run": place, "protocols": [_line(line) for line in summary.protocols]}
    done = (summary.clean, *summary.protocols)
    view: RenderableType = _protocols(summary, done) if summary.protocols else "no protocol is done yet"
    shell.result(content, view)
    shell.say(f"Stopped. What is done is kept in {place}: run the same command again to go on.")
    raise typer.Exit(INTERRUPTED)


def report_content(report: SuiteReport) -> dict[str, Any]:
    """The report for machines."""
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
        "bare": line.bare_accuracy,
        "gain": None if line.gain is None else list(line.gain),
        "seconds": round(line.seconds, 3),
    }


def _view(report: SuiteReport) -> Group:
    """The report for a person: what counts first."""
    summary, verdict = report.summary, report.verdict
    parts: list[RenderableType] = [Text(headline(summary, verdict), style="bold"), Text(threat_words(summary))]
    parts += [_protocols(summary, shown_lines(report)), _checks(report)]
    parts += [Text(f"{one.state} {one.number}: {one.meaning}") for one in report.findings if one.state in (WARN, FAIL)]
    whys = summary.plan["left_out"]
    if whys:
        parts.append(Text("Left out: " + "; ".join(f"{name} ({why})" for name, why in whys.items()) + "."))
    return Group(*parts)


def _protocols(summary: Summary, lines: Sequence[ProtocolResult]) -> rich.table.Table:
    """A line a protocol; the classifier alone is asked about the very same points."""
    apart = summary.plan["purifies"]
    others = ("bare on the same points, %", "gain, points") if apart else ()
    view = table("protocol", "right, %", *others, "seconds", right=("seconds",))
    for line in lines:
        cells = (alone(line), gain(line)) if apart else ()
        view.add_row(line.protocol, right(line), *cells, f"{line.seconds:.1f}")
    return view


def _checks(report: SuiteReport) -> rich.table.Table:
    view = table("state", "check", "measured", whole=("state",))
    for finding in report.findings:
        view.add_row(finding.state, f"{finding.number}. {finding.name}", finding.measured)
    return view
