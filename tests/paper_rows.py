"""Result rows that fill cells of the paper's tables, with figures of our own choosing."""

from collections.abc import Iterator
from functools import cache

import pytest
from migrate_rows import training_of

from soap import recipes
from soap.paper.tables import CellQuery
from soap.results import Provenance, Row


def row_for(
    wanted: CellQuery,
    correct: int,
    *,
    n: int | None = None,
    weights: str = "a",
    training: str | None = None,
    date: str = "2026-01-02T03:04:05+00:00",
    **others: object,
) -> Row:
    """A row that measured `wanted`: `correct` of `n` images, on weights known by a letter; others: fields."""
    n = wanted.n if n is None else n
    text = f"{wanted.epochs} epochs, seed 0, fp32" if training is None else training
    provenance = Provenance(
        weights_sha256=weights * 64, data_sha256="d" * 64, images=f"0..{n - 1} of test", seed=0, batch_size=500,
        version="9", commit="c0ffee", torch="2", python="3", device="a machine", date=date, training=training_of(text),
    )  # fmt: skip
    fields = {
        "protocol": wanted.protocol, "model": wanted.recipe, "data": recipes.read(wanted.recipe).data,
        "attack": wanted.settings, "defence": wanted.defence,
    }  # fmt: skip
    return Row(**{**fields, **others}, n=n, correct=correct, seconds=1.0, provenance=provenance)


@pytest.fixture(autouse=True, scope="module")
def recipes_read_once() -> Iterator[None]:
    """Parse each recipe once a module: tables and figures read the recipe of every cell again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "read", cache(recipes.read))
        yield
