"""Purifier settings for a model and a user's data: gamma, T and the grid of radii.

The model is attacked, then clean and attacked images are purified with every step size, number of steps and radius. The
loss of the attacked images against the radius is the paper's Figure 3: it falls until the attack is undone, then stays
almost constant. Its elbow determines the largest radius; accuracy on clean and attacked images determines gamma and T.
Use training images, so that the test images stay unseen.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch

from soap import validate
from soap._files import atomic
from soap._runtime.isolation import isolated
from soap._runtime.progress import progress_bar
from soap.attacks import PGD
from soap.auxiliary import JointModel, Purification
from soap.data import Dataset
from soap.data.dataset import fingerprint
from soap.descent import UNIT
from soap.errors import InputError
from soap.evaluation.provenance import gather
from soap.evaluation.transfer import Watch
from soap.purifiers.grid import descend_grid
from soap.purifiers.soap import is_minimal
from soap.shapes import Float, Tensor

GAMMAS = (1 / 4, 1 / 3, 1 / 2)
"""Step sizes to try, as shares of the attack's radius; the paper uses 1/3 (digits) and 1/2 (colour images)."""
STEPS = (5, 10)
RADII = tuple(k / 4 for k in range(13))
"""Radii to try, as multiples of the attack's radius."""
LARGEST_PER_ELBOW = 2.0
"""The largest radius of the chosen grid, in elbows: some images are attacked further than the mean."""
DECIMALS = 6
"""Decimals of radii and step sizes; a smaller difference has no effect."""
FLAT_SHARE = 1e-9
"""Share of the whole decrease of a curve below which a difference is rounding."""

SCHEMA = "soap-tune/1"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The result of one gamma and T. clean, attacked: mean auxiliary loss at every radius, [radii] each.

    elbow: of `attacked`. grid: the radii up to twice the elbow. clean_accuracy, attacked_accuracy: in [0, 1], each
    image purified with the radius of that grid that has the lowest loss (min-aux).
    """

    step_size: float
    steps: int
    clean: tuple[float, ...]
    attacked: tuple[float, ...]
    elbow: float
    grid: tuple[float, ...]
    clean_accuracy: float
    attacked_accuracy: float

    @property
    def score(self) -> float:
        """The mean of both accuracies, which is maximised."""
        return (self.clean_accuracy + self.attacked_accuracy) / 2


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """All candidates on `n` images, in input units; `radii` are those of the curves.

    bare_clean, bare_attacked: accuracy without purification, in [0, 1].
    """

    model: str
    data: str
    n: int
    attack: str
    eps_adv: float
    radii: tuple[float, ...]
    bare_clean: float
    bare_attacked: float
    candidates: tuple[Candidate, ...]
    provenance: dict[str, Any] = field(repr=False)

    @property
    def best(self) -> Candidate:
        """The candidate of highest score; ties go to fewer steps, then to a smaller gamma."""
        return max(self.candidates, key=lambda one: (one.score, -one.steps, -one.step_size))

    @property
    def purification(self) -> Purification:
        """The settings to give to the model."""
        best = self.best
        return Purification(step_size=best.step_size, steps=best.steps, grid=best.grid)

    @property
    def helps(self) -> bool:
        """Whether purification scores higher than no purification."""
        return self.best.score > (self.bare_clean + self.bare_attacked) / 2

    def save(self, path: Path) -> None:
        """Write everything as JSON, the choice first."""
        chosen = {**asdict(self.purification), "elbow": self.best.elbow}
        content = {"schema": SCHEMA, "chosen": chosen, "helps": self.helps, **asdict(self)}
        atomic.write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def tune(
    model: JointModel,
    data: Dataset,
    eps: float,
    *,
    gammas: Sequence[float] = GAMMAS,
    steps: Sequence[int] = STEPS,
    limit: int | None = None,
    batch_size: int = 100,
    seed: int = 0,
    progress: bool = True,
    watch: Watch | None = None,
) -> Tuning:
    """Try every gamma (a share of `eps`) with every T on images of `data` under PGD of radius `eps`.

    limit: number of images, drawn by `seed` because a user's data may be ordered by class; None for all. The model is
    not changed: assign `model.purification = tune(...).purification` to use the choice. The attack is that of the
    transfer protocol, 20 steps on the bare classifier, and the choice is made on the same images, so the accuracies are
    upper bounds. progress: show a bar in terminals and notebooks, unless `watch` is given.
    """
    validate.positive("eps", eps)
    validate.radius(eps)
    validate.at_least("batch_size", batch_size, 1)
    for gamma in gammas:
        validate.positive("gamma", gamma)
    for number in steps:
        validate.at_least("steps (T)", number, 1)
    if not gammas or not steps:
        raise InputError(f"gammas are {tuple(gammas)} and steps {tuple(steps)}: expected at least one of each.")
    data, chosen = _drawn(data, limit, seed)
    task = model.auxiliary
    attack = PGD(eps=eps, step_size=eps / 4, steps=20, seed=seed)
    pairs = [(round(gamma * eps, DECIMALS), number) for gamma in gammas for number in steps]
    radii = tuple(round(share * eps, DECIMALS) for share in RADII)
    batches = [*zip(torch.split(data.x, batch_size), torch.split(data.y, batch_size), strict=True)]
    x_adv = torch.cat([attack(model, x, y) for x, y in batches])

    def by_radius(images: Tensor, gamma: float, number: int) -> tuple[Tensor, Tensor]:
        """Auxiliary losses, and whether the images are correctly classified, [radii, n] each."""
        losses, correct = [], []
        with isolated(model), torch.no_grad():
            for x, y in zip(torch.split(images, batch_size), torch.split(data.y, batch_size), strict=True):
                found = descend_grid(
                    lambda point: task.loss(model, point), x, radii, step_size=gamma, steps=number, bounds=UNIT
                )
                labels = model(found.points.flatten(0, 1)).argmax(1).reshape(found.losses.shape)
                losses.append(found.losses.double().cpu())
                correct.append((labels == y).cpu())
        return torch.cat(losses, 1), torch.cat(correct, 1)

    candidates = []
    with progress_bar(progress and watch is None) as show:
        for place, (gamma, number) in enumerate(pairs, 1):
            clean, attacked = by_radius(data.x, gamma, number), by_radius(x_adv, gamma, number)
            curve = attacked[0].mean(1).tolist()
            bend = elbow(radii, curve)
            grid = tuple(radius for radius in radii if radius <= LARGEST_PER_ELBOW * bend * (1 + 1e-9))
            made = Candidate(
                step_size=gamma,
                steps=number,
                clean=tuple(clean[0].mean(1).tolist()),
                attacked=tuple(curve),
                elbow=bend,
                grid=grid,
                clean_accuracy=_accuracy(*clean, len(grid)),
                attacked_accuracy=_accuracy(*attacked, len(grid)),
            )
            candidates.append(made)
            if place == 1:  # radius 0 leaves the images as they are
                bare_clean, bare_attacked = _accuracy(*clean, 1), _accuracy(*attacked, 1)
            (watch or show)("gamma and T", place * len(data), len(pairs) * len(data))
    return Tuning(
        model=model.name,
        data=data.name,
        n=len(data),
        attack=repr(attack),
        eps_adv=eps,
        radii=radii,
        bare_clean=bare_clean,
        bare_attacked=bare_attacked,
        candidates=tuple(candidates),
        provenance=asdict(replace(gather(model, data, seed=seed, batch_size=batch_size), images=chosen)),
    )


def elbow(x: Sequence[float], y: Sequence[float]) -> float:
    """The x at which the curve y(x) is furthest below its chord (Satopää et al. 2011), the smallest of several.

    x ascends. Where the curve rises again, its lowest value so far is used. The chord connects the first point with the
    last. Distances to it are vertical; with both axes scaled to [0, 1] their order is that of perpendicular distances.
    A curve that never falls has its elbow at the first x. A curve that is nowhere below its chord has it at the first x
    of its lowest value.
    """
    if len(x) != len(y) or len(x) < 2:
        raise InputError(f"got {len(x)} radii and {len(y)} losses; expected equal numbers, at least two.")
    if any(after <= before for before, after in pairwise(x)):
        raise InputError(f"got radii {tuple(x)}; expected ascending order.")
    lowest = list(accumulate(y, min))
    fall = lowest[0] - lowest[-1]
    if not fall > 0:
        return x[0]
    width = x[-1] - x[0]
    below = [(lowest[0] - low) / fall - (at - x[0]) / width for at, low in zip(x, lowest, strict=True)]
    most = max(below)
    if most <= FLAT_SHARE:
        return x[lowest.index(lowest[-1])]
    return next(at for at, depth in zip(x, below, strict=True) if depth >= most - FLAT_SHARE)


def _drawn(data: Dataset, limit: int | None, seed: int) -> tuple[Dataset, str]:
    """`limit` examples drawn by `seed`, in their order, and a text that names them; all where there are no more."""
    if limit is None or limit >= len(data):
        return data, f"all of {data.split}"
    validate.at_least("limit", limit, 1)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    rows = order[:limit].sort().values.to(data.x.device)
    x, y = data.x[rows], data.y[rows]
    some = replace(data, x=x, y=y, sha256=fingerprint(x.cpu().numpy(), y.cpu().numpy()))
    return some, f"{limit} of {data.split}, drawn by seed {seed}"


def _accuracy(losses: Float[Tensor, "k n"], correct: Tensor, count: int) -> float:
    """Accuracy where every image takes the first of the smallest `count` radii whose loss is lowest, as `SOAP` does."""
    choice = is_minimal(losses[:count]).to(torch.uint8).argmax(0)
    return float(correct[choice, torch.arange(losses.shape[1])].double().mean())
