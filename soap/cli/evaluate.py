"""`soap evaluate`: accuracy under attack, of the bare classifier and with purification."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import rich.table
import torch
import typer
from rich.console import Group
from rich.text import Text

from soap._files import atomic
from soap._runtime import distributed
from soap._runtime.isolation import preserved_random_state
from soap.cli.console import EXIT_INTERRUPTED, Console, accuracy, command, percent, stop_on_signal, table
from soap.cli.options import AttackOptions, DefenceOptions, ImageOptions, ModelOptions, attack_names, option
from soap.cli.suite import SuiteOptions, run_suite
from soap.errors import InputError
from soap.evaluation import evaluate_transfer
from soap.evaluation.transfer import wrapper_rows
from soap.purifiers.purifier import ClassifierWrapper
from soap.recipes.purifiers import SOAP_NAME, parse_radius, purifier_by_name
from soap.report import UPPER_BOUND
from soap.report.row_text import eps_text
from soap.results import Row, Store
from soap.shapes import Tensor
from soap.specs import BARE, DefenceSpec


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """Options without --suite."""

    attack: Annotated[
        list[str] | None,
        option(
            "NAME",
            "none (clean images), fgsm, pgd, cw or df, with the paper's settings; repeat for more.",
            default="none, fgsm, pgd",
            autocompletion=attack_names,
        ),
    ] = None
    results: Annotated[
        Path | None, option("FILE", "JSONL file to append the results to.", default="runs/results.jsonl")
    ] = None
    save_adversarial: Annotated[Path | None, option("DIR", "Save the attacked images as .npz files.")] = None


@command("evaluate", example="soap evaluate mnist-cnn-dr --data mnist-mini --limit 500 --attack pgd", shared=True)
def evaluate_command(
    console: Console,
    model: ModelOptions,
    suite: SuiteOptions,
    images: ImageOptions,
    measured: TransferOptions,
    defence: DefenceOptions,
    settings: AttackOptions,
) -> None:
    """Measure accuracy under attack, of the bare classifier and with the purifier.

    Without --suite, by the transfer protocol of the paper's tables: attack the bare classifier, then purify. Each
    result is a row of --results with its provenance, and is not measured twice. Ctrl-C stops after the current batch
    and keeps the finished rows; a second one stops at once. Under `accelerate launch -m` or `torchrun -m` several
    processes share the batches and produce the same rows.

    With --suite, by attacks that know the purifier, and the worst of them for each image; 22 checks test the result and
    a verdict states how far it can be trusted. `soap report` makes a page of the run, `soap verify` scores it again.
    """
    _check_combinations(suite, measured, defence, settings)
    if suite.suite is not None:
        run_suite(console, model, suite, images, defence, settings)
        return
    results = measured.results or Path("runs/results.jsonl")
    trained = model.open(console.device, defence.gradient)
    network = trained.model
    names = defence.purifier or ([SOAP_NAME] if defence.eps_pfy or network.purifiable else [])
    radii = [parse_radius(text) for text in defence.eps_pfy] if defence.eps_pfy else [None]
    made = [
        purifier_by_name(network, name, eps, prior=defence.prior, seed=console.seed, settings=defence.settings())
        for name in names
        for eps in radii
    ]
    wrappers = [one for one in made if isinstance(one, ClassifierWrapper)]
    purifiers = [one for one in made if not isinstance(one, ClassifierWrapper)]
    data = images.load(trained)
    attacks = trained.attacks(
        measured.attack or ["none", "fgsm", "pgd"],
        data_name=data.name,
        seed=console.seed,
        settings=settings.settings(),
    )
    atomic.check_writable(results.parent)
    if measured.save_adversarial is not None:
        atomic.check_writable(measured.save_adversarial)
    if (similar := trained.paper_data(data.name)) != data.name:
        console.info(f"Attacks on {data.name} have the paper's settings for {similar}.", level=1)
    if not made:
        console.info(f"{network.name} has no auxiliary task to purify with: only the bare classifier is evaluated.")
    console.info(f"{network.name} on {len(data):,} images of {data.name}/{images.split}, {console.device}.", level=1)
    for name, method in attacks.items():
        console.info(f"{name}: {method}", level=1)
    with stop_on_signal() as stop:
        with console.progress() as show, preserved_random_state():
            torch.manual_seed(console.seed)  # random purifiers draw from the global generator
            attacked: dict[str, Tensor] | None = {} if wrappers else None
            rows = evaluate_transfer(
                network,
                data,
                attacks,
                purifiers,
                store=Store(results),
                batch_size=console.batch_size,
                seed=console.seed,
                save_adversarial=measured.save_adversarial,
                attacked_images=attacked,
                watch=show,
                stop=stop,
            )
            rows += wrapper_rows(
                rows, wrappers, data, attacked or {}, store=Store(results), batch_size=console.batch_size
            )
        finished = not distributed.processes().any(stop())
    content = {
        "model": network.name,
        "protocol": "transfer",
        "note": UPPER_BOUND,
        "finished": finished,
        "results": results,
        "rows": [row.as_json() for row in rows],
    }
    view, purified = _view(rows), any(row.defence.purifies for row in rows)
    console.result(content, Group(view, Text(UPPER_BOUND)) if purified else view)
    console.info(f"The rows are in {results}.")
    if not finished:
        console.info("Stopped. Finished rows are kept: run the same command again to continue.")
        raise typer.Exit(EXIT_INTERRUPTED)


def _check_combinations(
    suite: SuiteOptions, measured: TransferOptions, defence: DefenceOptions, settings: AttackOptions
) -> None:
    """Raise for options that exclude each other."""
    if suite.suite is None:
        only, needs = {key: value for key, value in asdict(suite).items() if key != "suite"}, "needs --suite; add it"
    else:
        only, needs = {**asdict(measured), "step_size": settings.step_size}, "excludes --suite; remove one of them"
    for name, value in only.items():
        if value is not None:
            raise InputError(f"--{name.replace('_', '-')} {needs}.")
    if defence.purifier_option and (defence.purifier is None or len(defence.purifier) > 1):
        raise InputError("--purifier-option belongs to one --purifier; give exactly one.")
    if defence.prior is not None and not defence.purifier:
        raise InputError("--prior is the generative model of --purifier; add --purifier, or omit --prior.")


def _view(rows: Sequence[Row]) -> rich.table.Table:
    """A line for each attack, a column for each defence; a dash if there is no result yet."""
    by_place = {(row.attack.name, row.defence): row for row in rows}
    attacks = list(dict.fromkeys(row.attack.name for row in rows))
    defences = list(dict.fromkeys(row.defence for row in rows if row.defence.purifies))
    rates = {row.attack.name: row.measures["success"] for row in rows if "success" in row.measures}
    purified = [f"{_purifier_title(defence)} ({eps_text(defence)}), %" for defence in defences]
    found = ["found in radius"] if rates else []
    view = table("attack", "bare, %", *purified, *found, "n", "seconds", right=("n", "seconds", *found))
    for attack in attacks:
        line = [by_place.get((attack, defence)) for defence in (BARE, *defences)]
        measured = [row for row in line if row is not None]
        rate = [percent(rates[attack]) if attack in rates else "-"] if rates else []
        seconds = sum(row.seconds for row in measured)
        view.add_row(attack, *map(accuracy, line), *rate, f"{measured[0].n:,}", f"{seconds:.1f}")
    return view


def _purifier_title(defence: DefenceSpec) -> str:
    """The heading of a defence's column: "purified" for SOAP, the purifier's name for others."""
    return "purified" if defence.name == "SOAP" else defence.name
