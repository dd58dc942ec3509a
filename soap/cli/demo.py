"""`soap demo`: bundled digits attacked and purified, as one table and one page."""

import shlex
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from soap import data, zoo
from soap._files import atomic
from soap.cli.outputs import check_folder
from soap.cli.shell import Shell, command
from soap.cli.suite import report_content
from soap.cli.tables import table
from soap.errors import FileError
from soap.evaluation import PAPER, transfer
from soap.evaluation.adaptive import Target, Threat, evaluate
from soap.evaluation.showcase import decoding, make_showcase
from soap.purifiers import SOAP
from soap.report import UPPER_BOUND, percent, under_attack
from soap.report.run_words import knowing_words

KNOWING = 200
"""Digits that the attackers of --adaptive get at most: each costs hundreds of purifications."""

DATA = "mnist-mini"
ATTACKS = ("none", "fgsm", "pgd")
SHOWN = "pgd"


def demo(
    shell: Shell,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="A bundled model, or the path of a .safetensors file. "
            "[dim]\\[default: mnist-cnn-dr, with --adaptive mnist-fcn-dr][/dim]",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the page.")] = Path(
        "soap-demo.html"
    ),
    limit: Annotated[int, typer.Option("--limit", min=10, metavar="N", help="How many digits.")] = 1000,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive", help=f"Attack the first {KNOWING} digits also as one who knows the purifier: takes minutes."
        ),
    ] = False,
) -> None:
    """Attack bundled MNIST digits, purify them, print one table, and write a page that shows what happened.

    The attacks (FGSM and PGD) have the paper's settings and do not know the purifier; those of --adaptive do: it is
    the quick suite of `soap evaluate`. The page is one HTML file.
    """
    from soap.report.demo_page import render_demo  # here, because importing matplotlib takes long

    began = time.monotonic()
    if out.is_dir():
        raise FileError(f"{out}: it is a folder, want a file; name one, e.g. {out / 'soap-demo.html'}.")
    check_folder(out.parent)
    model = model or ("mnist-fcn-dr" if adaptive else "mnist-cnn-dr")
    network = zoo.load(model, device=shell.device)
    decoding(network)  # a model without a decoder is refused before the work, not after it
    digits = data.load(DATA).take(limit).to(shell.device)
    purifier = SOAP(network)
    attacks = {name: PAPER[DATA][name] for name in ATTACKS}
    with TemporaryDirectory() as folder, shell.progress() as watch:
        rows = transfer(
            network,
            digits,
            attacks,
            [purifier],
            batch=shell.batch,
            seed=shell.seed,
            save_adversarial=Path(folder),
            watch=watch,
        )
        x_adv = data.load(Path(folder) / f"{network.name}-{SHOWN}.npz").x.to(shell.device)
        show = make_showcase(network, digits, x_adv, purifier, batch=shell.batch, watch=watch)
        knowing = None
        if adaptive:
            knowing = evaluate(
                Target.of_model(network, purifier),
                digits.take(min(KNOWING, limit)),
                Threat(eps=PAPER[DATA][SHOWN].eps),  # type: ignore[attr-defined]
                suite="quick",
                out=Path(folder) / "run",
                batch=shell.batch,
                seed=shell.seed,
                watch=watch,
            )
    again = ["soap", "demo", "--model", model, "--limit", str(limit), "--batch", str(shell.batch)]
    again += ["--adaptive"] if adaptive else []
    seconds = time.monotonic() - began
    page = render_demo(rows, show, attack=SHOWN, command=shlex.join(again), seconds=seconds, knowing=knowing)
    atomic.write_text(out, page)

    view = table("attack", "network alone, %", "purified first, %", "seconds: attack + purify")
    for line in under_attack(rows):
        view.add_row(line.title, percent(line.bare), percent(line.purified), line.seconds)
    view.title = f"{network.name}, {len(digits):,} digits: right answers with 95 % intervals"
    said = [Text(UPPER_BOUND), *map(Text, knowing_words(knowing) if knowing else ())]
    content = {
        "rows": [row.as_json() for row in rows],
        **({"adaptive": report_content(knowing)} if knowing else {}),
        "note": UPPER_BOUND,
        "page": out.absolute(),
        "seconds": round(time.monotonic() - began, 1),
    }
    shell.result(content, Group(view, *said, Text(f"The page: {out.absolute()}")))


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "demo", example="soap demo --out soap-demo.html")(demo)
