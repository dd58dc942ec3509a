"""`soap demo`: attack and purify bundled digits, print one table and write one page."""

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

from rich.console import Group
from rich.text import Text

from soap import data, zoo
from soap._files import atomic
from soap.cli.console import Console, command, table
from soap.cli.options import option
from soap.errors import FileError
from soap.evaluation import PAPER, evaluate_transfer
from soap.evaluation.showcase import decoding, make_showcase
from soap.purifiers import SOAP
from soap.report import UPPER_BOUND, percent, under_attack
from soap.shapes import Tensor

DATA = "mnist-mini"
ATTACKS = ("none", "fgsm", "pgd")
SHOWN_ATTACK = "pgd"


@command("demo", example="soap demo --out soap-demo.html")
def demo_command(
    console: Console,
    model: Annotated[str, option("NAME", "A bundled model, or the path of a .safetensors file.")] = "mnist-cnn-dr",
    out: Annotated[Path, option("FILE", "Path of the page.")] = Path("soap-demo.html"),
    limit: Annotated[int, option("N", "Number of digits.", min=10)] = 1000,
) -> None:
    """Attack bundled MNIST digits, purify them, print one table, and write a page with pictures.

    The attacks (FGSM and PGD) have the paper's settings and do not know the purifier; those of
    `soap evaluate mnist-fcn-dr --data mnist-mini --suite quick` do. The page is one HTML file.
    """
    from soap.report.demo_page import render_demo  # imported here because matplotlib is slow to import

    began = time.monotonic()
    if out.is_dir():
        raise FileError(f"{out}: it is a folder, expected a file, e.g. {out / 'soap-demo.html'}.")
    atomic.check_writable(out.parent)
    network = zoo.load(model, device=console.device)
    decoding(network)  # raises before the work if the model has no decoder
    digits = data.load(DATA).take(limit).to(console.device)
    options: dict[str, Any] = {"batch_size": console.batch_size}
    purifier = SOAP(network)
    attacks, attacked = {name: PAPER[DATA][name] for name in ATTACKS}, dict[str, Tensor]()
    with console.progress() as watch:
        options |= {"watch": watch}
        rows = evaluate_transfer(
            network, digits, attacks, [purifier], attacked_images=attacked, seed=console.seed, **options
        )
        shown = make_showcase(network, digits, attacked[SHOWN_ATTACK], purifier, **options)
    again = ["soap", "demo", "--model", model, "--limit", str(limit), "--batch-size", str(console.batch_size)]
    seconds = time.monotonic() - began
    atomic.write_text(out, render_demo(rows, shown, attack=SHOWN_ATTACK, command=shlex.join(again), seconds=seconds))
    view = table("attack", "network alone, %", "purified first, %", "seconds: attack + purify")
    for line in under_attack(rows):
        view.add_row(line.title, percent(line.bare), percent(line.purified), line.seconds)
    view.title = f"{network.name}, {len(digits):,} digits: accuracy with 95 % intervals"
    content = {
        "rows": [row.as_json() for row in rows],
        "note": UPPER_BOUND,
        "page": out.absolute(),
        "seconds": round(time.monotonic() - began, 1),
    }
    console.result(content, Group(view, Text(UPPER_BOUND), Text(f"The page: {out.absolute()}")))
