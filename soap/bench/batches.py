"""Benchmarks on one batch: purification against Algorithm 2, attacks against Algorithm 1 and foolbox."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from soap._runtime import devices
from soap.attacks import PGD, CarliniWagner, DeepFool
from soap.auxiliary import JointModel
from soap.balls import row_norms
from soap.bench import reference
from soap.bench.inputs import BenchModel, BenchSetup, bench_images, predicted_labels
from soap.bench.measures import interleaved, with_peak_memory
from soap.bench.results import FOOLBOX, FP32, OURS, PLAIN, BenchRow, bench_row, path_metrics
from soap.errors import InputError, unknown
from soap.evaluation import PAPER
from soap.purifiers import SOAP
from soap.recipes.trained_model import paper_data_set
from soap.shapes import Float, Tensor

PIXEL_TOLERANCE = 1e-6
"""Pixels this close are equal: sums of steps and multiples of a step differ in their last bits."""

ImagesAndRadii = tuple[Tensor, Tensor]
"""Purified images and the radius of each."""

Result = TypeVar("Result", Tensor, ImagesAndRadii)
BenchAttack = PGD | DeepFool | CarliniWagner

ATTACK_NAMES = {"pgd": "pgd", "deepfool": "df", "cw": "cw"}
"""The attacks that can be measured, with their names in `PAPER`."""


def compare_paths(
    setup: BenchSetup,
    bench: BenchModel,
    paths: Mapping[str, Callable[[], Result]],
    *,
    repeats: int,
    agreement: Callable[[Result, Result], Mapping[str, float]],
    case: Mapping[str, float | str],
    **facts: Any,
) -> BenchRow:
    """Run each path on a batch: once for memory and to warm up (twice on a GPU), and `repeats` times for time.

    agreement: compares our result with another. facts: further fields of the row.
    """
    device = setup.device
    peaks: dict[str, int | None] = {}
    results: dict[str, Result] = {}
    for name, run in paths.items():
        results[name], peaks[name] = with_peak_memory(run, device)
        if device.type == "cuda":  # the first run loads kernels and may record a graph; the second replays it
            results[name] = run()
    seconds = interleaved(paths, repeats=repeats, device=device, watch=setup.watch)
    return bench_row(
        model=bench.model.name,
        weights=bench.weights,
        case=case,
        paths=path_metrics(seconds, int(case["batch_size"]), peaks),
        agreement={name: agreement(results[OURS], result) for name, result in results.items() if name != OURS},
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

    def ours(precision: str) -> Callable[[], ImagesAndRadii]:
        purifier = SOAP(model, steps=T, grid=grid, precision=precision)

        def run() -> ImagesAndRadii:
            out = purifier(x)
            return out.x, out.eps

        return run

    def plain() -> ImagesAndRadii:
        with devices.autocast(setup.device, precision):
            return reference.purify_min_aux(model, x, grid, gamma=gamma, T=T)

    paths = {OURS: ours(precision), PLAIN: plain}
    if precision != "fp32":
        paths[FP32] = ours("fp32")
    return compare_paths(
        setup,
        bench,
        paths,
        repeats=repeats,
        agreement=partial(purifier_agreement, model),
        what="purify",
        inputs=source,
        settings=repr(settings),
        case={"batch_size": batch_size, "steps": T, "grid": len(grid), "precision": precision},
    )


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
    model = bench.model
    paths: dict[str, Callable[[], Tensor]] = {OURS: partial(attack, model, x, y)}
    if isinstance(attack, PGD):
        paths[PLAIN] = partial(reference.pgd, model, x, y, eps=attack.eps, gamma=attack.step_size, T=attack.steps)
    if foolbox_installed():
        paths[FOOLBOX] = foolbox_attack(attack, model, x, y)
    if len(paths) == 1:
        raise InputError(
            f"{type(attack).__name__} is measured against foolbox, which is not installed; install foolbox==3.3.4."
        )
    return compare_paths(
        setup,
        bench,
        paths,
        repeats=repeats,
        agreement=partial(attack_agreement, model, x, y),
        what="attack",
        inputs=f"{source}; labels are the model's own predictions",
        settings=repr(attack),
        case={"batch_size": batch_size, "attack": type(attack).__name__, "steps": attack.steps, "precision": "fp32"},
    )


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
