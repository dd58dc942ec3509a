"""`soap evaluate --suite`: run a suite of adaptive attacks; print the headline, protocols and checks."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import rich.table
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from soap import hub
from soap._files import atomic
from soap.cli.console import EXIT_INTERRUPTED, Console, stop_on_signal, table
from soap.cli.options import AttackOptions, DefenceOptions, ImageOptions, ModelOptions, completion, option
from soap.errors import InputError
from soap.evaluation.checks import FAIL, WARN
from soap.evaluation.plan import protocols
from soap.evaluation.protocols import DEFAULT_EFFORT, PROTOCOLS, QUICK_EFFORT, SUITES, Threat, default_effort
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.shards import AttackedShard
from soap.evaluation.suite import SuiteReport, evaluate
from soap.evaluation.summary import ProtocolResult, Summary
from soap.evaluation.summary_builder import read_summary
from soap.evaluation.verdict import DASH, PASSED, RobustnessVerdict, headline
from soap.recipes.own_network import own_attack
from soap.recipes.purifiers import SOAP_NAME
from soap.recipes.run_request import RunRequest
from soap.report.result_json import protocol_json, report_json
from soap.report.run_text import accuracy_text, protocol_lines, run_notes, threat_text

EXIT_NOT_PASSED = 3
"""Exit code of `--require passed` for any other verdict."""

DEFAULT_LIMIT = 1000
"""Images without --limit: the 95 % interval is about three points wide."""


SUITE_PANEL = "Options of --suite"


def _option(metavar: str, help: str, **settings: Any) -> Any:
    return option(metavar, help, rich_help_panel=SUITE_PANEL, **settings)


def _default(name: str) -> str:
    """The default of both efforts: '1000, quick 100'."""
    full, quick = (getattr(effort, name) for effort in (DEFAULT_EFFORT, QUICK_EFFORT))
    return f"{full}, quick {quick}"


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """--suite, and the options that need it."""

    suite: Annotated[
        str | None,
        option(
            "NAME",
            f"Use attacks that know the purifier, and check the result: {', '.join(SUITES)}, or one protocol: "
            f"{', '.join(PROTOCOLS)}. Takes --eps, --steps ({DEFAULT_EFFORT.steps}, of quick {QUICK_EFFORT.steps}) and "
            "the options below.",
            default="transfer only",
            autocompletion=completion(lambda: (*SUITES, *PROTOCOLS)),
        ),
    ] = None
    norm: Annotated[str | None, _option("NAME", "linf, l2 or l1.", default="linf")] = None
    queries: Annotated[
        int | None, _option("N", "Queries of black-box attacks.", default=_default("queries"), min=1)
    ] = None
    restarts: Annotated[
        int | None, _option("N", "Restarts of the adaptive attacks.", default=_default("restarts"), min=1)
    ] = None
    draws: Annotated[
        int | None,
        _option(
            "N",
            "Draws of a random defence over which the adaptive attacks average in the end.",
            default=f"{max(DEFAULT_EFFORT.draws)}, quick {max(QUICK_EFFORT.draws)}",
            min=1,
        ),
    ] = None
    out: Annotated[
        Path | None, _option("RUN", "Folder of the run, its images and its report.", default="runs/MODEL-SUITE")
    ] = None
    shard: Annotated[
        str | None,
        _option(
            "I/N",
            "Attack only part I (0 to N - 1) of N of the images; `soap merge` merges the parts.",
            default="all",
        ),
    ] = None
    headline: Annotated[
        bool | None,
        typer.Option(
            "--headline",
            help="With --suite full: attack each image only until an attack of any protocol breaks it: the same worst "
            "case in less time, without results for single protocols.",
            rich_help_panel=SUITE_PANEL,
        ),
    ] = None
    extra_attack: Annotated[
        list[str] | None,
        _option(
            "PACKAGE:NAME",
            "Run this attack, too: a class or function that makes a soap.attacks.Attack of eps=RADIUS; imported from "
            "the current folder, or e.g. soap.attacks:BitFlips; repeat for more.",
        ),
    ] = None
    require: Annotated[str | None, _option("passed", "Exit code 3 unless the verdict is CHECKS PASSED.")] = None


def run_suite(
    console: Console,
    model: ModelOptions,
    options: SuiteOptions,
    images: ImageOptions,
    defence: DefenceOptions,
    settings: AttackOptions,
) -> None:
    """Run a suite and print its report."""
    suite = str(options.suite)
    shard = _check_options(options, defence)
    model = replace(model, model=hub.pinned(model.model))
    trained = model.open(console.device, defence.gradient)
    network, data = trained.model, images.load(trained)
    if images.limit is None:
        data = data.take(min(DEFAULT_LIMIT, len(data)))
    if settings.eps is None and options.norm in ("l2", "l1"):
        raise InputError(f"--norm {options.norm} has no radius in the paper's tables; give --eps, e.g. --eps 0.5.")
    eps = trained.radius(data.name) if settings.eps is None else settings.eps
    threat = Threat(eps=eps, norm=options.norm or "linf")
    purifier = defence.purifier[0] if defence.purifier else SOAP_NAME
    min_aux = "min-aux" if purifier == SOAP_NAME and (defence.purifier or network.purifiable) else None
    request = RunRequest(
        model=model.model,
        gradient=defence.gradient,
        eps_pfy=defence.eps_pfy[0] if defence.eps_pfy else min_aux,
        data=trained.data_name(images.data),
        split=images.split,
        limit=len(data),
        invert=images.invert,
        command="",
        purifier=purifier,
        prior=defence.prior,
        seed=console.seed,
        purifier_options=tuple(defence.purifier_option or ()),
    )
    name = network.name if purifier == SOAP_NAME else f"{network.name}-{purifier}"
    mode = "-headline" if options.headline else ""
    folder = options.out or Path("runs") / f"{name}-{suite}{mode}" / ("" if shard is None else str(shard[0]))
    atomic.check_writable(folder)
    effort = default_effort(suite).changed(
        steps=settings.steps, queries=options.queries, restarts=options.restarts, draws=options.draws
    )
    numbers: dict[str, Any] = {
        "steps": effort.steps,
        "queries": effort.queries,
        "restarts": effort.restarts,
        "draws": max(effort.draws),
        "batch_size": console.batch_size,
        "seed": console.seed,
    }
    stated = {**numbers, "shard": options.shard, "module": model.module, "headline": options.headline}
    names = options.extra_attack or ()
    extra = [own_attack(name, threat.eps) for name in names]
    note = {**asdict(request), "command": _full_command(request, suite, threat, stated, folder, names)}
    target = request.defence(console.device, model.module)
    if request.bare:
        console.info(f"{network.name} has no auxiliary task to purify with: the bare classifier is attacked.")
    with stop_on_signal() as stop, console.progress() as show:
        report = evaluate(
            target,
            data,
            suite=suite,
            eps=threat.eps,
            norm=threat.norm,
            extra_attacks=extra,
            shard=shard,
            headline=bool(options.headline),
            out=folder,
            note=note,
            watch=show,
            stop=stop,
            **numbers,
        )
    if isinstance(report, AttackedShard):
        _print_shard(console, report)
        return
    if not isinstance(report, SuiteReport):
        _print_stopped(console, folder, read_summary(RunFolder(folder), data, unfinished=True))
        raise typer.Exit(EXIT_INTERRUPTED)
    console.result({**report_json(report), "finished": True, "run": folder}, _view(report))
    console.info(f"The run is in {folder}; `soap report {shlex.quote(str(folder))}` makes a page of it.")
    if options.require is not None and report.verdict.name != PASSED:
        raise typer.Exit(EXIT_NOT_PASSED)


def _check_options(options: SuiteOptions, defence: DefenceOptions) -> tuple[int, int] | None:
    """The parsed --shard; raises for bad options before anything is read."""
    protocols(str(options.suite))  # raises for an unknown name
    if options.headline and options.suite != "full":
        raise InputError(f"--headline is a mode of --suite full, got --suite {options.suite}; omit --headline.")
    if options.require not in (None, "passed"):
        raise InputError(f"--require is {options.require!r}, expected passed; omit it to accept any verdict.")
    for name, given in (("--eps-pfy", defence.eps_pfy), ("--purifier", defence.purifier)):
        if given and len(given) > 1:
            raise InputError(f"--suite evaluates one defence, got {len(given)} of {name}; give one of them.")
    if options.shard is None:
        return None
    if options.require is not None:
        raise InputError("--require excludes --shard: a shard has no verdict; give it when you finish the merged run.")
    index, _, count = options.shard.partition("/")
    if not (index.isdecimal() and count.isdecimal()):
        raise InputError(f"--shard is {options.shard!r}, expected I/N with I from 0 to N - 1, e.g. 0/4.")
    return int(index), int(count)


def _full_command(
    request: RunRequest, suite: str, threat: Threat, numbers: dict[str, Any], out: Path, extra: Sequence[str]
) -> str:
    """The whole command with its defaults."""
    given: dict[str, object] = {
        "--suite": suite,
        "--data": request.data,
        "--split": request.split,
        "--limit": request.limit,
        "--invert": request.invert or None,
        "--purifier": None if request.purifier == SOAP_NAME else request.purifier,
        "--prior": request.prior,
        "--eps-pfy": request.eps_pfy,
        "--gradient": request.gradient,
        "--eps": repr(threat.eps),
        "--norm": threat.norm,
        **{"--" + name.replace("_", "-"): value for name, value in numbers.items()},
        "--out": out,
    }
    pairs = ((name,) if value is True else (name, value) for name, value in given.items() if value is not None)
    parts = [str(part) for pair in pairs for part in pair]
    parts += [part for name in extra for part in ("--extra-attack", name)]
    parts += [part for setting in request.purifier_options for part in ("--purifier-option", setting)]
    return shlex.join(["soap", "evaluate", request.model, *parts])


def _print_shard(console: Console, part: AttackedShard) -> None:
    """Print what a finished shard holds, and what to do next."""
    first, last, folder = part.images[0], part.images[-1], part.folder.path
    content = {"finished": True, "run": folder, "shard": [part.index, part.count], "images": [first, last]}
    console.result(content, f"Shard {part.index} of {part.count}, images {first:,} to {last:,}, is in {folder}.")
    console.info("When all shards are finished: `soap merge SHARDS... --out RUN`.")


def _print_stopped(console: Console, folder: Path, summary: Summary) -> None:
    """Print the finished protocols and how to resume."""
    content = {"finished": False, "run": folder, "protocols": [protocol_json(line) for line in summary.protocols]}
    done = (summary.clean, *summary.protocols)
    view: RenderableType = _protocols(done) if summary.protocols else "no protocol is finished yet"
    console.result(content, view)
    console.info(f"Stopped. Finished work is kept in {folder}: run the same command again to resume.")


def _view(report: SuiteReport) -> Group:
    """The report as text and tables: headline, protocols, checks and warnings; dashes where a check failed."""
    summary, verdict = report.summary, report.verdict
    parts: list[RenderableType] = [Text(headline(summary, verdict), style="bold"), Text(threat_text(summary))]
    parts += [Text(words) for words in run_notes(report)]
    parts += [_protocols(protocol_lines(report), verdict), _checks(report)]
    parts += [Text(f"{one.state} {one.number}: {one.meaning}") for one in report.findings if one.state in (WARN, FAIL)]
    skipped = summary.plan["left_out"]
    if skipped:
        parts.append(Text("Skipped: " + "; ".join(f"{name} ({why})" for name, why in skipped.items()) + "."))
    return Group(*parts)


def _protocols(lines: Sequence[ProtocolResult], verdict: RobustnessVerdict | None = None) -> rich.table.Table:
    """A table row for each protocol. verdict: of a finished run."""
    view = table("protocol", "accuracy, %", "images", "seconds", right=("images", "seconds"))
    for line in lines:
        view.add_row(line.protocol, accuracy_text(line, verdict), f"{line.n:,}", f"{line.seconds:.1f}")
    return view


def _checks(report: SuiteReport) -> rich.table.Table:
    view = table("state", "check", "result", whole=("state",))
    for finding in report.findings:
        view.add_row(finding.state, f"{finding.number}. {finding.name}", report.verdict.measured(finding) or DASH)
    return view
