"""`soap demo`: attack and purify bundled digits, print one table and write one page."""

import shlex
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from soap import data, zoo
from soap._files import atomic
from soap.cli.console import Console, command, table
from soap.cli.options import option
from soap.defence import Defence
from soap.errors import FileError
from soap.evaluation import PAPER, SuiteReport, evaluate, evaluate_transfer
from soap.evaluation.showcase import decoding, make_showcase
from soap.purifiers import SOAP
from soap.report import UPPER_BOUND, percent, under_attack
from soap.report.result_json import report_json
from soap.report.run_words import knowing_words
from soap.shapes import Tensor

ADAPTIVE_LIMIT = 200
"""Digits attacked with --adaptive at most: each costs hundreds of purifications."""

DATA = "mnist-mini"
ATTACKS = ("none", "fgsm", "pgd")
SHOWN_ATTACK = "pgd"


@command("demo", example="soap demo --out soap-demo.html")
def demo_command(
    console: Console,
    model: Annotated[
        str | None,
        option(
            "NAME",
            "A bundled model, or the path of a .safetensors file.",
            default="mnist-cnn-dr, with --adaptive mnist-fcn-dr",
        ),
    ] = None,
    out: Annotated[Path, option("FILE", "Path of the page.")] = Path("soap-demo.html"),
    limit: Annotated[int, option("N", "Number of digits.", min=10)] = 1000,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive",
            help=f"Also attack the first {ADAPTIVE_LIMIT} digits with knowledge of the purifier: takes minutes.",
        ),
    ] = False,
) -> None:
    """Attack bundled MNIST digits, purify them, print one table, and write a page with pictures.

    The attacks (FGSM and PGD) have the paper's settings and do not know the purifier. Those of --adaptive do: they are
    the quick suite of `soap evaluate`. The page is one HTML file.
    """
    from soap.report.demo_page import render_demo  # imported here because matplotlib is slow to import

    began = time.monotonic()
    if out.is_dir():
        raise FileError(f"{out}: it is a folder, expected a file, e.g. {out / 'soap-demo.html'}.")
    atomic.check_writable(out.parent)
    model = model or ("mnist-fcn-dr" if adaptive else "mnist-cnn-dr")
    network = zoo.load(model, device=console.device)
    decoding(network)  # raises before the work if the model has no decoder
    digits = data.load(DATA).take(limit).to(console.device)
    options: dict[str, Any] = {"batch_size": console.batch_size, "seed": console.seed}
    purifier = SOAP(network)
    attacks, attacked = {name: PAPER[DATA][name] for name in ATTACKS}, dict[str, Tensor]()
    report = None
    with console.progress() as watch:
        rows = evaluate_transfer(network, digits, attacks, [purifier], attacked_images=attacked, watch=watch, **options)
        shown = make_showcase(
            network, digits, attacked[SHOWN_ATTACK], purifier, batch_size=console.batch_size, watch=watch
        )
        if adaptive:
            eps = PAPER[DATA][SHOWN_ATTACK].eps  # type: ignore[attr-defined]
            target, few = Defence(network, purifier), digits.take(min(ADAPTIVE_LIMIT, limit))
            with TemporaryDirectory() as folder:
                made = evaluate(target, few, suite="quick", eps=eps, out=Path(folder) / "run", watch=watch, **options)
            report = made if isinstance(made, SuiteReport) else None
    again = ["soap", "demo", "--model", model, "--limit", str(limit), "--batch-size", str(console.batch_size)]
    again += ["--adaptive"] if adaptive else []
    seconds = time.monotonic() - began
    page = render_demo(rows, shown, attack=SHOWN_ATTACK, command=shlex.join(again), seconds=seconds, knowing=report)
    atomic.write_text(out, page)

    view = table("attack", "network alone, %", "purified first, %", "seconds: attack + purify")
    for line in under_attack(rows):
        view.add_row(line.title, percent(line.bare), percent(line.purified), line.seconds)
    view.title = f"{network.name}, {len(digits):,} digits: accuracy with 95 % intervals"
    notes = [Text(UPPER_BOUND), *map(Text, knowing_words(report) if report else ())]
    content = {
        "rows": [row.as_json() for row in rows],
        **({"adaptive": report_json(report)} if report else {}),
        "note": UPPER_BOUND,
        "page": out.absolute(),
        "seconds": round(time.monotonic() - began, 1),
    }
    console.result(content, Group(view, *notes, Text(f"The page: {out.absolute()}")))
