"""Choose the purifier settings of a user's model: gamma (step size), T (steps) and the grid of radii.

The model is attacked, then clean and attacked images are purified with every step size, number of steps and radius.
The loss of attacked images against the radius is the paper's Figure 3: it falls until the attack is undone, and hardly
changes after that. The elbow of the curve gives the largest radius that is needed; accuracy on both kinds of images
decides on gamma and T. Use training images, so that the test images stay unseen.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from soap import validate
from soap._files import atomic
from soap._runtime.isolation import isolated
from soap.attacks import PGD
from soap.auxiliary import JointModel, Purification
from soap.data import Dataset
from soap.data.dataset import fingerprint
from soap.descent import UNIT
from soap.errors import InputError
from soap.evaluation.elbows import elbow
from soap.evaluation.provenance import gather
from soap.evaluation.transfer import Watch
from soap.purifiers.grid import GridDescent, descend_grid
from soap.purifiers.soap import is_minimal
from soap.shapes import Float, Int, Tensor

GAMMAS = (1 / 4, 1 / 3, 1 / 2)
"""Step sizes to try, as shares of the attack's radius; the paper uses 1/3 (digits) and 1/2 (colour images)."""
STEPS = (5, 10)
RADII = tuple(k / 4 for k in range(13))
"""Radii to try, as multiples of the attack's radius."""
GRID_END_IN_ELBOWS = 2.0
"""Largest radius of the chosen grid, in elbows: some images need more than the mean."""
DECIMALS = 6
"""Decimals of radii and step sizes, so that files stay readable; the error is below a thousandth of a grey level."""

SCHEMA = "soap-tune/1"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The result of one gamma and T. clean, attacked: mean auxiliary loss at every radius, [radii] each.

    elbow: where `attacked` bends. grid: the radii up to twice the elbow. clean_accuracy, attacked_accuracy: in [0, 1],
    each image purified with the radius of that grid that has the lowest loss (min-aux).
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
        """The objective: the mean of both accuracies."""
        return (self.clean_accuracy + self.attacked_accuracy) / 2


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Everything that was tried on `n` images, in input units; `radii` are those of the curves.

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
        """Write everything as JSON, the chosen settings first."""
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
    batch: int = 100,
    seed: int = 0,
    watch: Watch = lambda what, done, total: None,
) -> Tuning:
    """Try every gamma (a share of `eps`) with every T on images of `data` under PGD of radius `eps`.

    limit: number of images, drawn at random by `seed`, because a data set may be sorted by class; None for all. The
    model is not changed: assign `model.purification = tune(...).purification` to use the result. The attack is that of
    the transfer protocol, 20 steps on the bare classifier, and the settings are chosen on the same images, so the
    accuracies are upper bounds.
    """
    validate.positive("eps", eps)
    validate.at_least("batch", batch, 1)
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

    def loss(x: Tensor) -> Tensor:
        return task.loss(model, x)

    found: dict[tuple[float, int], list[tuple[_GridResult, _GridResult]]] = {pair: [] for pair in pairs}
    for first in range(0, len(data), batch):
        x, y = data.x[first : first + batch], data.y[first : first + batch]
        both = (x, attack(model, x, y))
        for place, (gamma, number) in enumerate(pairs):
            with isolated(model), torch.no_grad():
                one, two = (
                    _GridResult.of(
                        model, descend_grid(loss, part, radii, step_size=gamma, steps=number, bounds=UNIT), y
                    )
                    for part in both
                )
            found[gamma, number].append((one, two))
            watch("gamma and T", first * len(pairs) + (place + 1) * len(x), len(data) * len(pairs))
    candidates = tuple(
        _candidate(
            *pair,
            radii,
            _GridResult.joined([clean for clean, _ in parts]),
            _GridResult.joined([two for _, two in parts]),
        )
        for pair, parts in found.items()
    )
    clean, attacked = (_GridResult.joined([part[k] for part in found[pairs[0]]]) for k in (0, 1))
    return Tuning(
        model=model.name,
        data=data.name,
        n=len(data),
        attack=repr(attack),
        eps_adv=eps,
        radii=radii,
        bare_clean=clean.accuracy(1),
        bare_attacked=attacked.accuracy(1),
        candidates=candidates,
        provenance=asdict(replace(gather(model, data, seed=seed, batch=batch), images=chosen)),
    )


def _drawn(data: Dataset, limit: int | None, seed: int) -> tuple[Dataset, str]:
    """`limit` images drawn by `seed`, in their order, and a text that names them; all images where there are fewer."""
    if limit is None or limit >= len(data):
        return data, f"all of {data.split}"
    validate.at_least("limit", limit, 1)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    rows = order[:limit].sort().values.to(data.x.device)
    x, y = data.x[rows], data.y[rows]
    some = replace(data, x=x, y=y, sha256=fingerprint(x.cpu().numpy(), y.cpu().numpy()))
    return some, f"{limit} of {data.split}, drawn by seed {seed}"


@dataclass(frozen=True)
class _GridResult:
    """Auxiliary loss of some images at every radius, and whether they are classified correctly."""

    losses: Float[Tensor, "k n"]
    correct: Tensor

    @classmethod
    def of(cls, model: JointModel, walk: GridDescent, y: Int[Tensor, "n"]) -> "_GridResult":
        labels = model(walk.points.flatten(0, 1)).argmax(1).reshape(walk.losses.shape)
        return cls(walk.losses.double().cpu(), (labels == y).cpu())

    @classmethod
    def joined(cls, parts: Sequence["_GridResult"]) -> "_GridResult":
        return cls(torch.cat([part.losses for part in parts], 1), torch.cat([part.correct for part in parts], 1))

    def accuracy(self, among: int) -> float:
        """Accuracy where every image uses the radius of lowest loss among the smallest `among`, as `SOAP` does."""
        losses = self.losses[:among]
        choice = is_minimal(losses).to(torch.uint8).argmax(0)
        return float(self.correct[choice, torch.arange(losses.shape[1])].double().mean())


def _candidate(
    gamma: float, steps: int, radii: tuple[float, ...], clean: _GridResult, attacked: _GridResult
) -> Candidate:
    curve = attacked.losses.mean(1).tolist()
    bend = elbow(radii, curve)
    grid = tuple(radius for radius in radii if radius <= GRID_END_IN_ELBOWS * bend * (1 + 1e-9))
    return Candidate(
        step_size=gamma,
        steps=steps,
        clean=tuple(clean.losses.mean(1).tolist()),
        attacked=tuple(curve),
        elbow=bend,
        grid=grid,
        clean_accuracy=clean.accuracy(len(grid)),
        attacked_accuracy=attacked.accuracy(len(grid)),
    )
