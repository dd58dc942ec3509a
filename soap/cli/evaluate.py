"""`soap evaluate`: how a model stands against attacks, bare and purified."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import rich.table
import typer
from rich.console import Group
from rich.text import Text

from soap import data as library
from soap import zoo
from soap._runtime import distributed, interrupts
from soap.cli.options import (
    AttackEps,
    AttackSteps,
    AttackStepSize,
    DataName,
    DataRoot,
    Gradient,
    ModelName,
    attack_names,
    chosen_attacks,
    paper_attacks,
)
from soap.cli.outputs import check_folder
from soap.cli.runs import purifier_of
from soap.cli.shell import INTERRUPTED, Shell, command
from soap.cli.suite import help_of_suites, run_suite, suite_names
from soap.cli.tables import class_names, figure, percent, table
from soap.errors import InputError
from soap.evaluation import evaluate_transfer
from soap.evaluation.suite import DEFAULT_STEPS, QUICK_STEPS
from soap.recipes.purifiers import NAMES, SOAP_NAME
from soap.report import UPPER_BOUND
from soap.report.row_text import eps_text
from soap.results import Row, Store
from soap.specs import BARE, DefenceSpec


def evaluate(
    shell: Shell,
    model: ModelName,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            metavar="NAME",
            help=f"Attack as one who knows the purifier, and check the figure: {help_of_suites()}. "
            f"Takes --eps, --norm, --steps ({DEFAULT_STEPS}, of quick {QUICK_STEPS}), --queries, --out and --require. "
            "[dim]\\[default: transfer alone][/dim]",
            autocompletion=suite_names,
        ),
    ] = None,
    data: DataName = None,
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="test or train.")] = "test",
    attack: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            metavar="NAME",
            help="none (clean images), fgsm, pgd, cw or df, with the paper's settings; repeat for more. "
            "[dim]\\[default: none, fgsm, pgd][/dim]",
            autocompletion=attack_names,
        ),
    ] = None,
    eps_pfy: Annotated[
        list[str] | None,
        typer.Option(
            "--eps-pfy",
            metavar="CHOICE",
            help="Radius of purification: min-aux (chosen for each image), min-aux-batch (one for each --batch, as the "
            "authors' code has it), oracle (with the true label: the paper's upper row, no defence), a number, or a "
            "fraction like 8/255; repeat for more. "
            "[dim]\\[default: min-aux][/dim]",
        ),
    ] = None,
    purifier: Annotated[
        list[str] | None,
        typer.Option(
            "--purifier",
            metavar="NAME",
            help=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}; repeat for more. "
            "[dim]\\[default: soap, where the model has an auxiliary task][/dim]",
            autocompletion=lambda incomplete: [name for name in NAMES if name.startswith(incomplete)],
        ),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            metavar="PATH",
            help="The generative model's .safetensors file, for --purifier defense-gan or pixeldefend. "
            "[dim]\\[default: the bundled one][/dim]",
        ),
    ] = None,
    gradient: Gradient = None,
    eps: AttackEps = None,
    step_size: AttackStepSize = None,
    steps: AttackSteps = None,
    norm: Annotated[
        str | None,
        typer.Option("--norm", metavar="NAME", help="With --suite: linf or l2. [dim]\\[default: linf][/dim]"),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(
            "--queries", metavar="N", min=1, help="With --suite: of its black-box attacks. [dim]\\[default: 1000][/dim]"
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="The first N images only. [dim]\\[default: all; with --suite 1000][/dim]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="RUN",
            help="With --suite: folder of the run, its images and its report. [dim]\\[default: runs/MODEL-SUITE][/dim]",
        ),
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(
            "--require", metavar="trusted", help="With --suite: exit code 3 unless the verdict is TRUSTED BOUND."
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help="Rows are appended to this JSONL file. [dim]\\[default: runs/results.jsonl][/dim]",
        ),
    ] = None,
    save_adversarial: Annotated[
        Path | None, typer.Option("--save-adversarial", metavar="DIR", help="Keep the attacked images, as .npz files.")
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Measure accuracy under attack, of the bare classifier and behind the purifier.

    Without --suite, by the protocol transfer, that of the paper's tables: attack the bare classifier, then purify.
    Every figure is a row of --results with its provenance, and is not measured twice. Ctrl-C stops after the batch
    under way and keeps the rows that are done; a second one stops at once. Under `accelerate launch -m` or
    `torchrun -m` several processes deal the batches out among them and come to the same rows.

    With --suite, by attackers who know the purifier, the worst of them image by image; 19 checks doubt the figure and
    a verdict says what it is worth. `soap report` makes a page of the run, `soap verify` scores it again.
    """
    own = {"--attack": attack, "--step-size": step_size, "--results": results, "--save-adversarial": save_adversarial}
    suites = {"--norm": norm, "--queries": queries, "--out": out, "--require": require}
    for name, value in (suites if suite is None else own).items():
        if value is not None:
            has, wants = ("no --suite", "add one") if suite is None else ("--suite", "leave out one of them")
            raise InputError(f"{name} does not go with {has}; {wants}.")
    if prior is not None and not purifier:
        raise InputError("--prior is the generative model of --purifier; add --purifier, or leave it out.")
    if suite is not None:
        run_suite(
            shell,
            model=model,
            data=data,
            split=split,
            eps_pfy=eps_pfy or [],
            gradient=gradient,
            purifier=purifier or [],
            prior=prior,
            suite=suite,
            eps=eps,
            norm=norm,
            steps=steps,
            queries=queries,
            limit=limit,
            out=out,
            require=require,
            data_root=data_root,
        )
        return
    results = results or Path("runs/results.jsonl")
    subject = zoo.load(model, device=shell.device, gradient=gradient)
    recipe = zoo.recipe(model)
    names = purifier or ([SOAP_NAME] if eps_pfy or subject.purifiable else [])
    choices: list[str | None] = [*eps_pfy] if eps_pfy else [None]
    purifiers = [
        purifier_of(subject, name, choice, prior=prior, seed=shell.seed) for name in names for choice in choices
    ]
    images = library.load(data or recipe.data, split, root=data_root)
    images = images.numbered_by(class_names(recipe, subject.classes)).take(limit).to(shell.device)
    attacks = chosen_attacks(
        paper_attacks(shell, images.name, recipe, subject),
        attack or ["none", "fgsm", "pgd"],
        seed=shell.seed,
        eps=eps,
        step_size=step_size,
        steps=steps,
    )
    check_folder(results.parent)
    if save_adversarial is not None:
        check_folder(save_adversarial)
    if not purifiers:
        shell.say(f"{subject.name} has no auxiliary task, so there is nothing to purify with: bare figures only.")
    shell.say(f"{subject.name} on {len(images):,} images of {images.name}/{split}, {shell.device}.", level=1)
    for name, method in attacks.items():
        shell.say(f"{name}: {method}", level=1)
    with interrupts.stoppable() as stop:
        with shell.progress() as show:
            rows = evaluate_transfer(
                subject,
                images,
                attacks,
                purifiers,
                store=Store(results),
                batch=shell.batch,
                seed=shell.seed,
                save_adversarial=save_adversarial,
                watch=show,
                stop=stop,
            )
        finished = not distributed.here().any(stop())
    view = _view(rows)
    content = {
        "model": subject.name,
        "protocol": "transfer",
        "note": UPPER_BOUND,
        "finished": finished,
        "results": results,
        "rows": [row.as_json() for row in rows],
    }
    purified = any(row.defence.purifies for row in rows)
    shell.result(content, Group(view, Text(UPPER_BOUND)) if purified else view)
    shell.say(f"Rows are in {results}.")
    if not finished:
        shell.say("Stopped. What is done is kept: run the same command again to go on.")
        raise typer.Exit(INTERRUPTED)


def _view(rows: Sequence[Row]) -> rich.table.Table:
    """A line an attack, a column a defence; what was not measured yet is a dash."""
    by_place = {(row.attack.name, row.defence): row for row in rows}
    attacks = list(dict.fromkeys(row.attack.name for row in rows))
    defences = list(dict.fromkeys(row.defence for row in rows if row.defence.purifies))
    rates = {row.attack.name: row.measures["success"] for row in rows if "success" in row.measures}
    purified = [f"{_called(defence)} ({eps_text(defence)}), %" for defence in defences]
    found = ["found in radius"] if rates else []
    view = table("attack", "bare, %", *purified, *found, "n", "seconds", right=("n", "seconds", *found))
    for attack in attacks:
        line = [by_place.get((attack, defence)) for defence in (BARE, *defences)]
        measured = [row for row in line if row is not None]
        rate = [percent(rates[attack]) if attack in rates else "-"] if rates else []
        seconds = sum(row.seconds for row in measured)
        view.add_row(attack, *map(figure, line), *rate, f"{measured[0].n:,}", f"{seconds:.1f}")
    return view


def _called(defence: DefenceSpec) -> str:
    """The heading of a defence's column: "purified" for SOAP, the purifier's name for others."""
    return "purified" if defence.name == "SOAP" else defence.name


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "soap evaluate mnist-cnn-dr --data mnist-mini --limit 500 --attack pgd"
    command(app, "evaluate", example=example, shared=True)(evaluate)
