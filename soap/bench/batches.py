"""Benchmarks on one batch: purification against Algorithm 2, attacks against Algorithm 1 and foolbox."""

import importlib
import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from soap._runtime import devices
from soap.attacks import PGD, CarliniWagner, DeepFool
from soap.auxiliary import JointModel
from soap.balls import row_norms
from soap.bench import reference
from soap.bench.inputs import BenchModel, BenchSetup, bench_images, predicted_labels
from soap.bench.measures import (
    Meter,
    PassCount,
    counting_logits,
    counting_losses,
    gradient_operations,
    interleaved,
    with_peak_memory,
)
from soap.bench.results import FOOLBOX, FP32, OURS, PLAIN, BenchRow, bench_row, path_metrics
from soap.errors import InputError, unknown
from soap.evaluation import PAPER
from soap.purifiers import SOAP
from soap.recipes.trained_model import paper_data_set
from soap.shapes import Float, Tensor

CUDA_WARM_UP_RUNS = 2
"""Untimed runs on a GPU: the first loads kernels and may record a graph, the second replays it."""

MAX_WARM_UP_S = 5.0
"""After this time one run is enough to warm up."""

PIXEL_TOLERANCE = 1e-6
"""Pixels this close are equal: sums of steps and multiples of a step differ in their last bits."""

RADIUS_TOLERANCE = 1e-6
"""Radii this close (relative) are equal."""

ImagesAndRadii = tuple[Tensor, Tensor]
"""Purified images and the radius of each."""

Result = TypeVar("Result", Tensor, ImagesAndRadii)
Prepare = Callable[[JointModel], Callable[[], Result]]
"""Makes one run over the batch for a model; what a path keeps between runs is created here."""

BenchAttack = PGD | DeepFool | CarliniWagner

ATTACK_NAMES = {"pgd": "pgd", "deepfool": "df", "cw": "cw"}
"""The attacks that can be measured, with their names in `PAPER`."""


def compare_paths(
    setup: BenchSetup,
    bench: BenchModel,
    paths: Mapping[str, Prepare[Result]],
    *,
    repeats: int,
    counting: Callable[[JointModel, Meter], JointModel],
    agreement: Callable[[Result, Result], Mapping[str, float]],
    operations: Callable[[Sequence[PassCount]], float],
    case: Mapping[str, float | str],
    **facts: Any,
) -> BenchRow:
    """Run each path on a batch: once for memory and passes, once for its result, `repeats` times for time.

    counting: makes a model that counts its passes. agreement: compares our result with another. operations:
    the fewest that the algorithm needs, given the passes of the paths. facts: further fields of the row.
    """
    device, images = setup.device, int(case["batch_size"])
    passes: dict[str, PassCount] = {}
    peaks: dict[str, int | None] = {}
    for number, (name, prepare) in enumerate(paths.items()):
        setup.watch("counting", number, len(paths))
        meter = Meter(device)
        run = prepare(counting(bench.model, meter))
        _, peaks[name] = with_peak_memory(run, device)
        if device.type == "cuda":  # the first run may have recorded a graph; the second only replays it
            meter.reset()
            run()
        passes[name] = meter.passes(images)
        del run
    runs = {name: prepare(bench.model) for name, prepare in paths.items()}
    results: dict[str, Result] = {}
    for name, run in runs.items():
        began = time.monotonic()
        for _ in range(CUDA_WARM_UP_RUNS if device.type == "cuda" else 1):
            results[name] = run()
            if time.monotonic() - began > MAX_WARM_UP_S:
                break
    seconds = interleaved(runs, repeats=repeats, device=device, watch=setup.watch)
    return bench_row(
        model=bench.model.name,
        weights=bench.weights,
        case=case,
        paths=path_metrics(seconds, images, passes, peaks),
        agreement={name: agreement(results[OURS], result) for name, result in results.items() if name != OURS},
        operations=operations([count for count in passes.values() if count.forward]),
        rate=setup.rate,
        device=device,
        notes=[],
        **facts,
    )


# --- Purification ---------------------------------------------------------------------------------------------------


def bench_purify(
    setup: BenchSetup,
    bench: BenchModel,
    *,
    batch_size: int,
    repeats: int,
    steps: int | None = None,
    radii: int | None = None,
    precision: str = "fp32",
) -> BenchRow:
    """Purify one batch by min-aux; `steps` (T) and the number of radii are the model's unless given.

    The radii cover the model's range in equal steps. With precision "bf16" both paths use bf16, and ours in fp32 is a
    third path.
    """
    model, (x, source) = bench.model, bench_images(setup, bench, batch_size)
    settings = SOAP(model, steps=steps, precision=precision)
    if radii is not None:
        largest = max(settings.grid)
        grid = tuple(largest * k / (radii - 1) for k in range(radii))
        settings = SOAP(model, steps=steps, grid=grid, precision=precision)
    gamma, T, grid = settings.step_size, settings.steps, settings.grid

    def ours(model: JointModel, precision: str = precision) -> Callable[[], ImagesAndRadii]:
        purifier = SOAP(model, steps=T, grid=grid, precision=precision)

        def run() -> ImagesAndRadii:
            out = purifier(x)
            return out.x, out.eps

        return run

    def plain(model: JointModel) -> Callable[[], ImagesAndRadii]:
        def run() -> ImagesAndRadii:
            with devices.autocast(setup.device, precision):
                return reference.purify_min_aux(model, x, grid, gamma=gamma, T=T)

        return run

    paths = {OURS: ours, PLAIN: plain}
    if precision != "fp32":
        paths[FP32] = lambda model: ours(model, "fp32")
    return compare_paths(
        setup,
        bench,
        paths,
        repeats=repeats,
        counting=counting_losses,
        agreement=partial(purifier_agreement, model),
        operations=lambda passes: purify_operations(model, x, grid, gamma=gamma, T=T),
        what="purify",
        inputs=source,
        settings=repr(settings),
        case={"batch_size": batch_size, "steps": T, "grid": len(grid), "precision": precision},
    )


def needed_points(grid: Sequence[float], *, gamma: float, T: int) -> tuple[list[int], int]:
    """The number of distinct points that need a gradient at each of the T steps, and of those that need a final loss.

    After t steps a radius eps has an effect only if eps < t * gamma; all larger radii share one point. The loss at
    eps = 0 comes with the first gradient.
    """
    positive = [radius for radius in grid if radius > 0]
    if not positive:
        return [], 1

    def points(t: int) -> int:
        reach = t * gamma * (1 - RADIUS_TOLERANCE)
        projected = {radius for radius in positive if radius < reach}
        return len(projected) + any(radius >= reach for radius in positive)

    return [1, *(points(t) for t in range(1, T))], points(T)


def purify_operations(model: JointModel, x: Tensor, grid: Sequence[float], *, gamma: float, T: int) -> float:
    """The operations that the whole grid needs for the batch `x`: T steps, and a final loss."""
    gradients, losses = needed_points(grid, gamma=gamma, T=T)
    forward, backward = gradient_operations(lambda point: model.auxiliary.loss(model, point), model, x)
    return len(x) * ((sum(gradients) + losses) * forward + sum(gradients) * backward)


def purifier_agreement(model: JointModel, ours: ImagesAndRadii, theirs: ImagesAndRadii) -> dict[str, float]:
    """Shares of equal pixels, radii and labels of (images, eps) from two purifiers."""
    return {
        "pixels": same_pixels(ours[0], theirs[0]),
        "eps": _share((ours[1] - theirs[1]).abs() <= PIXEL_TOLERANCE),
        "labels": _share(predicted_labels(model, ours[0]) == predicted_labels(model, theirs[0])),
    }


# --- Attacks --------------------------------------------------------------------------------------------------------


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
    setup: BenchSetup, bench: BenchModel, attack: BenchAttack, *, batch_size: int, repeats: int
) -> BenchRow:
    """Attack one batch; the labels are the model's predictions, so that every image is correctly classified before."""
    x, source = bench_images(setup, bench, batch_size)
    y = predicted_labels(bench.model, x)
    paths: dict[str, Prepare[Tensor]] = {OURS: lambda model: partial(attack, model, x, y)}
    if isinstance(attack, PGD):
        pgd = partial(reference.pgd, eps=attack.eps, gamma=attack.step_size, T=attack.steps)
        paths[PLAIN] = lambda model: partial(pgd, model, x, y)
    if foolbox_installed():
        paths[FOOLBOX] = lambda model: foolbox_attack(attack, model, x, y)
    if len(paths) == 1:
        raise InputError(
            f"{type(attack).__name__} is measured against foolbox, which is not installed; install foolbox==3.3.4."
        )
    return compare_paths(
        setup,
        bench,
        paths,
        repeats=repeats,
        counting=counting_logits,
        agreement=partial(attack_agreement, bench.model, x, y),
        operations=partial(attack_operations, attack, bench.model, x),
        what="attack",
        inputs=f"{source}; labels are the model's own predictions",
        settings=repr(attack),
        case={"batch_size": batch_size, "attack": type(attack).__name__, "steps": attack.steps, "precision": "fp32"},
    )


def attack_operations(attack: BenchAttack, model: JointModel, x: Tensor, counted: Sequence[PassCount]) -> float:
    """The operations of one gradient per step for PGD; for others, of the fewest passes that any path needed."""
    forward, backward = gradient_operations(model, model, x)
    if isinstance(attack, PGD):
        return len(x) * attack.steps * (forward + backward)
    forwards, backwards = min(passes.forward for passes in counted), min(passes.backward for passes in counted)
    return len(x) * (forwards * forward + backwards * backward)


def attack_agreement(
    model: JointModel, x: Float[Tensor, "batch *shape"], y: Tensor, ours: Tensor, theirs: Tensor
) -> dict[str, float]:
    """Shares of equal pixels and labels of two attacks; the success rate and mean L2 norm of each."""
    our_labels, their_labels = predicted_labels(model, ours), predicted_labels(model, theirs)
    return {
        "pixels": same_pixels(ours, theirs),
        "labels": _share(our_labels == their_labels),
        "fooled_ours": _share(our_labels != y),
        "fooled_theirs": _share(their_labels != y),
        "mean_l2_ours": float(row_norms(ours - x).mean()),
        "mean_l2_theirs": float(row_norms(theirs - x).mean()),
    }


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


def same_pixels(one: Float[Tensor, "batch *shape"], two: Float[Tensor, "batch *shape"]) -> float:
    """Share of values that differ by at most `PIXEL_TOLERANCE` (and the rounding of that bound itself)."""
    return _share((one - two).abs() <= PIXEL_TOLERANCE * (1 + 1e-3))


def _share(true: Tensor) -> float:
    return float(true.double().mean())
