"""Recipes small enough to train in a test, cells of them, and rows that fill cells."""

from pathlib import Path

import paper_rows
import pytest
import torch

from soap import recipes
from soap.paper.job_runner import JobRunner, run_jobs
from soap.paper.jobs import plan_jobs
from soap.paper.tables import CellQuery
from soap.recipes import generative
from soap.results import CombinedStore, Row

DENOISER = """
name = "tiny-dr"
data = "mnist-mini"
[model]
architecture = "fcn"
dropout = 0.0
[auxiliary]
task = "reconstruction"
decoder = "dense"
alpha = 100.0
noise = 0.5
[training]
epochs = 2
lr = 0.01
batch = 2000
[purifier]
step_size = 0.1
steps = 2
grid = [0.0, 0.1, 0.2]
"""
CONSISTENT = DENOISER.replace("tiny-dr", "tiny-lc").replace(
    'task = "reconstruction"\ndecoder = "dense"\nalpha = 100.0\nnoise = 0.5',
    'task = "consistency"\nalpha = 1.0\nnoise = 0.1',
)
BARE = DENOISER[: DENOISER.index("[auxiliary]")].replace("tiny-dr", "tiny-no-def")
BARE += DENOISER[DENOISER.index("[training]") : DENOISER.index("[purifier]")]
OWN = {
    "tiny-dr": DENOISER,
    "tiny-lc": CONSISTENT,
    "tiny-no-def": BARE,
    "tiny-mnist": DENOISER.replace("tiny-dr", "tiny-mnist").replace("mnist-mini", "mnist"),
}

PRIOR = """
name = "tiny-prior"
data = "mnist-mini"
[model]
kind = "wgan"
latent = 4
width = 2
[training]
epochs = 2
lr = 1e-3
batch = 100
[purifier]
steps = 3
starts = 2
"""
PRIORS = {
    "tiny-prior": PRIOR,
    "tiny-prior-mnist": PRIOR.replace("tiny-prior", "tiny-prior-mnist").replace("mnist-mini", "mnist"),
}


@pytest.fixture
def own_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny recipes by name, beside the paper's."""
    read = recipes.read
    monkeypatch.setattr(
        recipes, "read", lambda name: recipes.parse(OWN[name], name) if str(name) in OWN else read(name)
    )
    own_names = recipes.names
    monkeypatch.setattr(recipes, "names", lambda: [*own_names(), *OWN])
    read_prior, names = generative.read, generative.names
    monkeypatch.setattr(generative, "names", lambda: [*names(), *PRIORS])
    monkeypatch.setattr(
        generative, "read", lambda name: generative.parse(PRIORS[name], name) if name in PRIORS else read_prior(name)
    )
    monkeypatch.setenv("SOAP_COMMIT", "test")  # spares asking git for every row


def cells(*attacks: str, recipe: str = "tiny-dr", choices: tuple[str, ...] = ("none", "min-aux"), n: int = 30):
    return [CellQuery(recipe=recipe, attack=attack, eps_pfy=each, n=n) for attack in attacks for each in choices]


def nowhere(recipe: str, seed: int) -> Path | None:
    return None


def row_for(cell: CellQuery, **changed) -> Row:
    """A row that fills the cell."""
    return paper_rows.row_for(cell, 1, **{"measures": {"success": 0.5}, **changed})


def go(folder, wanted, *, rows=(), results=None, **options):
    """Fill the cells on the CPU; rows and weights go to `folder`."""
    plan = {name: options.pop(name) for name in ("epochs", "seeds", "limit") if name in options}
    watch = {name: options.pop(name) for name in ("show", "announce") if name in options}
    store = CombinedStore(results or folder / "rows.jsonl", list(rows))
    given = {"runs": folder / "runs", "figures": folder, "device": torch.device("cpu"), "batch_size": 10, **options}
    runner = JobRunner(store=store, **given)
    return run_jobs(plan_jobs(wanted, store.read(), weights=runner.weights, **plan), runner, **watch)
