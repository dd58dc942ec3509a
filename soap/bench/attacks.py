"""Benchmark of attacks: ours against the reference, and against foolbox where it is installed."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from soap._runtime.isolation import frozen
from soap.attacks import PGD, CarliniWagner, DeepFool
from soap.auxiliary import JointModel
from soap.bench import reference
from soap.bench.comparison import Prepare, attack_agreement, compare_paths
from soap.bench.counting import PassCount, counting_logits
from soap.bench.floor import Rates, Work, cost_of
from soap.bench.inputs import BenchModel, bench_images, predicted_labels
from soap.bench.results import FOOLBOX, OURS, PLAIN, BenchRow
from soap.bench.timing import Watch, silent
from soap.errors import InputError, unknown
from soap.evaluation import PAPER
from soap.recipes.attacks import paper_data_set
from soap.shapes import Tensor

BenchAttack = PGD | DeepFool | CarliniWagner

ATTACK_NAMES = {"pgd": "pgd", "deepfool": "df", "cw": "cw"}
"""The attacks that can be measured, with their names in `PAPER`."""


def attack_settings(name: str, bench: BenchModel, steps: int | None = None) -> BenchAttack:
    """The attack with the paper's settings for the model's data set, L2 attacks without a radius.

    steps: instead of the paper's.
    """
    if name not in ATTACK_NAMES:
        raise unknown("attack", name, ATTACK_NAMES)
    attack = PAPER[paper_data_set(bench.recipe.data, bench.recipe, bench.model)][ATTACK_NAMES[name]]
    if isinstance(attack, CarliniWagner | DeepFool):
        attack = replace(attack, radius=None)
    if not isinstance(attack, BenchAttack):
        raise TypeError(f"no reference for {attack!r}")
    return attack if steps is None else replace(attack, steps=steps)


def bench_attack(
    bench: BenchModel,
    attack: BenchAttack,
    rates: Rates,
    *,
    batch: int,
    device: torch.device,
    repeats: int,
    seed: int = 0,
    root: Path | None = None,
    watch: Watch = silent,
) -> BenchRow:
    """Attack one batch; the labels are the model's predictions, so that every image is correctly classified before."""
    x, source = bench_images(bench, batch, device, seed=seed, root=root)
    y = predicted_labels(bench.model, x)
    return compare_paths(
        "attack",
        bench,
        _paths(attack, x, y),
        inputs=f"{source}; labels are the model's own predictions",
        settings=attack,
        case={"batch": batch, "attack": type(attack).__name__, "steps": attack.steps, "precision": "fp32"},
        counting=counting_logits,
        agreement=partial(attack_agreement, bench.model, x, y),
        work=partial(least_work, attack, bench.model, x),
        rates=rates,
        device=device,
        repeats=repeats,
        watch=watch,
    )


def _paths(attack: BenchAttack, x: Tensor, y: Tensor) -> Mapping[str, Prepare[Tensor]]:
    paths: dict[str, Prepare[Tensor]] = {OURS: lambda model: lambda: attack(model, x, y)}
    if isinstance(attack, PGD):
        pgd = partial(reference.pgd, eps=attack.eps, gamma=attack.step_size, T=attack.steps)
        paths[PLAIN] = lambda model: lambda: pgd(model, x, y)
    elif isinstance(attack, DeepFool):
        paths[PLAIN] = lambda model: lambda: reference.deepfool(model, x, y, attack)
    if foolbox_installed():
        paths[FOOLBOX] = lambda model: foolbox_attack(attack, model, x, y)
    if len(paths) == 1:
        raise InputError("cw is measured against foolbox, which is not installed; install foolbox==3.3.4.")
    return paths


def least_work(attack: BenchAttack, model: JointModel, x: Tensor, counted: Sequence[PassCount]) -> Work:
    """The work of one gradient per step for PGD; for others, of the fewest passes that any path needed."""
    with frozen(model):
        cost = cost_of(model, model, x[:2].clone().requires_grad_())
    if isinstance(attack, PGD):
        return cost.gradients(len(x) * attack.steps, attack.steps)
    # The number of batches is not counted, so the bytes of the weights are left out.
    forward, backward = min(passes.forward for passes in counted), min(passes.backward for passes in counted)
    return cost.forwards(len(x) * forward, 0) + cost.backwards(len(x) * backward, 0)


def foolbox_installed() -> bool:
    """Whether foolbox can be imported."""
    return importlib.util.find_spec("foolbox") is not None


def foolbox_attack(attack: BenchAttack, model: JointModel, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """foolbox's version of an attack with equal settings, ready to run on a batch."""
    with warnings.catch_warnings():  # foolbox imports deprecated names of scipy
        warnings.simplefilter("ignore", DeprecationWarning)
        foolbox: Any = importlib.import_module("foolbox")
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
    options = {}
    match attack:
        case PGD():
            theirs = foolbox.attacks.LinfPGD(abs_stepsize=attack.step_size, steps=attack.steps, random_start=False)
            options = {"epsilon": attack.eps}
        case DeepFool():
            theirs = foolbox.attacks.L2DeepFoolAttack(
                steps=attack.steps, candidates=attack.candidates, overshoot=attack.overshoot, loss="logits"
            )
        case CarliniWagner():
            theirs = foolbox.attacks.L2CarliniWagnerAttack(
                binary_search_steps=attack.search_steps,
                steps=attack.steps,
                stepsize=attack.lr,
                confidence=attack.confidence,
                initial_const=attack.initial_c,
                abort_early=attack.abort_early,
            )
    return partial(theirs.run, wrapped, x, y, **options)
