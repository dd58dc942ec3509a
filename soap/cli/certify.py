"""`soap certify`: a lower bound on accuracy under every attack of a radius."""

from typing import Annotated

from rich.console import Group
from rich.text import Text

from soap.cli.console import Console, accuracy, command, table
from soap.cli.options import ImageOptions, ModelOptions, RowsOptions, number, option
from soap.evaluation.certificates import certify

CERTIFICATE_NOTE = "A lower bound: no Linf attack within eps lowers the certified accuracy."


@command("certify", example="soap certify mnist-cnn-certified --limit 1000")
def certify_command(
    console: Console,
    *,
    model: ModelOptions,
    images: ImageOptions,
    eps: Annotated[float | None, option("X", "Linf radius.", default="that of the paper", parser=number)] = None,
    rows: RowsOptions,
) -> None:
    """Bound the accuracy under every Linf attack of a radius from below, by interval bounds.

    For convolutional and fully connected networks without a purifier, or with purification by binarity. Networks that
    were not trained for it have a bound near zero.
    """
    trained = model.open(console.device)
    data = images.load(trained)
    radius = trained.radius(data.name) if eps is None else eps
    rows.check()
    with console.progress() as show:
        found = certify(trained.model, data, eps=radius, batch_size=console.batch_size, watch=show)
    rows.append(found.rows)
    view = table("", "accuracy, %", right=("accuracy, %",))
    view.add_row("clean", accuracy(found.clean))
    view.add_row(f"certified, eps {radius:.4g}", accuracy(found.certified))
    content = {"model": trained.model.name, "eps": radius, "rows": [row.as_json() for row in found.rows]}
    console.result({**content, "note": CERTIFICATE_NOTE}, Group(view, Text(CERTIFICATE_NOTE)))
