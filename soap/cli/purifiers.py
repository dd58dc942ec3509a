"""Purifiers that need no classifier, by name: each uses a generative model, the prior."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from soap import zoo
from soap.cli import outputs, pictures, sheet, subject
from soap.cli.shell import Shell
from soap.cli.tables import table
from soap.errors import InputError, unknown
from soap.recipes import generative
from soap.recipes.generative import GenerativeRecipe, Purify


class Way(NamedTuple):
    """The kind of prior that a purifier uses, the one that is used unless another is named, and whether it draws."""

    kind: str
    prior: str
    draws: bool


WAYS = {
    "defense-gan": Way(kind="wgan", prior="defense-gan-mnist", draws=True),
    "pixeldefend": Way(kind="pixelcnn", prior="pixeldefend-cifar10", draws=False),
}


def way_of(recipe: GenerativeRecipe) -> str:
    """The name of the purifier that uses a recipe's model."""
    return next(name for name, way in WAYS.items() if way.kind == recipe.kind)


def load(shell: Shell, name: str, prior: str | None, settings: Mapping[str, Any]) -> tuple[nn.Module, Purify]:
    """The prior, on the command's device, and the purifier called `name`; `settings` are other than the prior's own."""
    if name not in WAYS:
        raise unknown("purifier", name, WAYS)
    if isinstance(settings.get("eps"), str):
        raise InputError(f"--eps-pfy {settings['eps']} is a choice of SOAP's; with --with {name} leave it out.")
    way = WAYS[name]
    chosen = prior or way.prior
    recipe = zoo.prior_recipe(chosen)
    if recipe.kind != way.kind:
        raise InputError(f"{chosen} is a {recipe.kind}, but {name} uses a {way.kind}; try --with {way_of(recipe)}.")
    model = zoo.load_prior(chosen, device=shell.device)
    seed = {"seed": shell.seed} if way.draws else {}
    return model, generative.purifier(recipe, model, **seed, **settings)


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
    model, purifier = load(shell, name, prior, settings)
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
