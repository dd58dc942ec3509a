"""Attacks: ours against the algorithm as it is printed, and against foolbox where it is installed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from soap._runtime.isolation import frozen
from soap.attacks import PGD, Attack, CarliniWagner, DeepFool
from soap.auxiliary import JointModel
from soap.bench import foolbox_attacks, plain_deepfool, plain_walks
from soap.bench.agreement import attacked_alike
from soap.bench.compare import Prepare, Run, Watch, compare
from soap.bench.counting import Passes, counting_logits
from soap.bench.floor import Rates, Work, cost_of, floor
from soap.bench.row import FOOLBOX, OURS, PLAIN, BenchRow, provenance
from soap.bench.subject import Subject, images, predicted
from soap.errors import InputError, unknown
from soap.evaluation import PAPER
from soap.shapes import Tensor

NAMES = {"pgd": "pgd", "deepfool": "df", "cw": "cw"}
"""Attacks that can be measured, and what the paper's settings are filed under."""


def settings(name: str, subject: Subject, steps: int | None = None) -> PGD | DeepFool | CarliniWagner:
    """The paper's settings for the model's data set, L2 attacks unbounded; `steps` instead of its steps."""
    if name not in NAMES:
        raise unknown("attack", name, NAMES)
    colour = subject.model.input_shape[0] > 1
    attack = PAPER.get(subject.recipe.data, PAPER["cifar10" if colour else "mnist"])[NAMES[name]]
    if isinstance(attack, CarliniWagner | DeepFool):
        attack = replace(attack, radius=None)
    if not isinstance(attack, PGD | CarliniWagner | DeepFool):
        raise TypeError(f"no plain counterpart of {attack!r}")
    return attack if steps is None else replace(attack, steps=steps)


def bench_attack(
    subject: Subject,
    attack: PGD | DeepFool | CarliniWagner,
    rates: Rates,
    *,
    batch: int,
    device: torch.device,
    repeats: int,
    seed: int = 0,
    root: Path | None = None,
    watch: Watch = lambda what, done, total: None,
) -> BenchRow:
    """Attack one batch of images that the model takes for what it says, so that every one has to be fooled."""
    model, given = subject.model, images(subject, batch, device, seed=seed, root=root)
    y = predicted(model, given.x)
    done = compare(
        _paths(attack, given.x, y), model, counting_logits, images=batch, device=device, repeats=repeats, watch=watch
    )
    least = floor(least_work(attack, model, given.x, [path.passes for path in done.paths.values()]), rates)
    others = {name: result for name, result in done.results.items() if name != OURS}
    return BenchRow(
        what="attack",
        model=model.name,
        weights=subject.weights,
        inputs=f"{given.source}; labels are the model's own answers",
        settings=repr(attack),
        case={"batch": batch, "attack": type(attack).__name__, "steps": attack.steps, "precision": "fp32"},
        paths=done.paths,
        agreement={name: attacked_alike(model, given.x, y, done.results[OURS], two) for name, two in others.items()},
        floor=least,
        share=least.seconds / done.paths[OURS].seconds.median,
        notes=subject.notes,
        provenance=provenance(device),
    )


def _paths(attack: PGD | DeepFool | CarliniWagner, x: Tensor, y: Tensor) -> Mapping[str, Prepare[Tensor]]:
    def ours(model: JointModel) -> Run[Tensor]:
        return lambda: attack(model, x, y)

    def theirs(model: JointModel) -> Run[Tensor]:
        return foolbox_attacks.foolbox_run(attack, model, x, y)

    def plain(model: JointModel) -> Run[Tensor]:
        if isinstance(attack, PGD):
            return lambda: plain_walks.pgd(model, x, y, eps=attack.eps, gamma=attack.step_size, T=attack.steps)
        if isinstance(attack, DeepFool):
            return lambda: plain_deepfool.deepfool(model, x, y, attack)
        raise TypeError(f"no plain path for {attack!r}")

    paths: dict[str, Prepare[Tensor]] = {OURS: ours}
    if not isinstance(attack, CarliniWagner):
        paths[PLAIN] = plain
    if foolbox_attacks.installed():
        paths[FOOLBOX] = theirs
    if len(paths) == 1:
        raise InputError("cw is measured against foolbox, which is not installed; install foolbox==3.3.4.")
    return paths


def least_work(attack: Attack, model: JointModel, x: Tensor, counted: Sequence[Passes | None]) -> Work:
    """PGD: one gradient a step. Attacks whose length depends on the images: the fewest passes that any path took."""
    with frozen(model):
        cost = cost_of(model, model, x[:2].clone().requires_grad_())
    rows = len(x)
    if isinstance(attack, PGD):
        return cost.forwards(rows * attack.steps, attack.steps) + cost.backwards(rows * attack.steps, attack.steps)
    forward = min(passes.forward for passes in counted if passes is not None)
    backward = min(passes.backward for passes in counted if passes is not None)
    # How many batches they came in is not counted: weights are left out.
    return cost.forwards(rows * forward, 0) + cost.backwards(rows * backward, 0)
