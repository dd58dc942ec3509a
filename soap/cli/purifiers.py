"""`soap purify --with`: pictures purified by a generative model, the prior, without a classifier."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from soap import zoo
from soap.cli import outputs, pictures, sheet, subject
from soap.cli.shell import Shell
from soap.cli.tables import table
from soap.errors import InputError
from soap.recipes.purifiers import BY_CLASSIFIER, BY_PRIOR, SOAP_NAME, by_prior


def purify(
    shell: Shell,
    name: str,
    files: Sequence[Path],
    out: Path,
    *,
    prior: str | None,
    settings: Mapping[str, Any],
    resize: bool,
    force: bool,
) -> None:
    """Purify pictures without a classifier and show what changed."""
    if name in BY_CLASSIFIER:
        instead = (
            "leave out --with and name it" if name == SOAP_NAME else f"try `soap evaluate MODEL --purifier {name}`"
        )
        raise InputError(f"--with {name}: it asks a classifier; {instead}, or purify by {' or '.join(BY_PRIOR)}.")
    if str(files[0]) in zoo.names() and not files[0].exists():
        raise InputError(f"--with {name} asks no classifier, so {files[0]} is taken for a file; leave it out.")
    model, purifier = by_prior(name, settings, prior=prior, device=shell.device, seed=shell.seed)
    found = pictures.read(files, cast(pictures.TakesImages, model), resize=resize)
    outputs.check_places(found, out, force=force)
    x = torch.cat([picture.x for picture in found])
    done = subject.purified(shell, purifier, x)
    written = outputs.as_written(found, done.x)
    targets = outputs.write(found, written, out)
    sheet.draw(out / pictures.SHEET, x, written, [("input", "purified")] * len(x))
    view = table("picture", "largest change", "loss", "written to", right=("largest change",))
    images = []
    owners = [(one, target) for picture, target in zip(found, targets, strict=True) for one in picture.names]
    columns = (done.eps.tolist(), done.loss_before.tolist(), done.loss_after.tolist())
    for (one, target), eps, before, after in zip(owners, *columns, strict=True):
        view.add_row(one, f"{eps:.3g}", f"{before:.3g} -> {after:.3g}", str(target))
        images.append({"file": one, "output": target, "eps": eps, "loss_before": before, "loss_after": after})
    content = {"prior": model.name, "purifier": repr(purifier), "images": images, "sheet": out / pictures.SHEET}
    shell.result(content, view)
    shell.say(f"Side by side: {out / pictures.SHEET}")
