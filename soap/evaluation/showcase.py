"""Data of the demo's figures: examples with reconstructions, and auxiliary losses by step and by radius.

The paper's Figure 2 (inputs and decoder outputs) and Figure 3a (auxiliary loss against the radius).
"""

from dataclasses import dataclass

import torch

from soap import validate
from soap._runtime.isolation import isolated
from soap.auxiliary import JointModel, Reconstruction
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.transfer import Watch
from soap.purifiers import SOAP
from soap.purifiers.grid import descend_grid
from soap.shapes import Float, Int, Tensor

STAGES = ("clean", "adversarial", "purified")
"""The first dimension of a `Showcase`'s tensors."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Showcase:
    """The first example of each class at every stage, and mean auxiliary losses over all `n` examples.

    places: indices of the shown examples in the data. labels: predictions of the bare classifier at every stage.
    eps_adv: the largest change of a pixel by the attack.
    loss_by_step: along the purifier's steps t = 0 (adversarial) ... T, each example at its own radius.
    loss_by_radius: after all T steps, every example at the same radius, for the radii of the purifier's grid.
    """

    places: tuple[int, ...]
    y: Int[Tensor, "k"]
    inputs: Float[Tensor, "3 k *shape"]
    decoded: Float[Tensor, "3 k *shape"]
    labels: Int[Tensor, "3 k"]
    n: int
    eps_adv: float
    loss_clean: float
    loss_by_step: tuple[float, ...]
    radii: tuple[float, ...]
    loss_by_radius: tuple[float, ...]


def decoding(model: JointModel) -> Reconstruction:
    """The model's auxiliary task; InputError if it has no decoder."""
    task = model.auxiliary
    if not isinstance(task, Reconstruction):
        raise InputError(
            f"{model.name} has the auxiliary task {type(task).__name__}, expected Reconstruction, whose "
            "decoder output is shown; use a model whose name ends in -dr."
        )
    return task


def first_of_each_class(y: Int[Tensor, "n"]) -> tuple[int, ...]:
    """Index of the first example of each class, in the order of the classes."""
    return tuple(int((y == label).nonzero()[0]) for label in sorted({*y.tolist()}))


def make_showcase(
    model: JointModel,
    data: Dataset,
    x_adv: Float[Tensor, "n *shape"],
    purifier: SOAP,
    *,
    batch_size: int = 500,
    watch: Watch = lambda what, done, total: None,
) -> Showcase:
    """Purify `x_adv`, the attacked images of `data`, and collect examples and mean losses.

    The examples are chosen by their labels, so that no selection of successful cases is possible.
    """
    validate.at_least("batch_size", batch_size, 1)
    task = decoding(model)
    if x_adv.shape != data.x.shape:
        raise InputError(
            f"got attacked images {list(x_adv.shape)} and clean images {list(data.x.shape)}; expected equal shapes."
        )
    places = first_of_each_class(data.y)
    inputs = torch.stack([data.x[[*places]]] * len(STAGES))
    by_step = torch.zeros(purifier.steps + 1, dtype=torch.float64)
    by_radius = torch.zeros(len(purifier.grid), dtype=torch.float64)
    clean = 0.0

    def loss(x: Tensor) -> Tensor:
        return task.loss(model, x)

    with isolated(model), torch.no_grad():
        for first in range(0, len(data), batch_size):
            rows = slice(first, first + batch_size)
            x = x_adv[rows]
            purified = purifier(x)
            path = purifier.trajectory(x, purified.eps)
            walk = descend_grid(
                loss, x, purifier.grid, step_size=purifier.step_size, steps=purifier.steps, bounds=purifier.bounds
            )
            clean += float(loss(data.x[rows]).sum())
            by_step += torch.stack([loss(point).sum() for point in path]).double().cpu()
            by_radius += walk.losses.sum(1).double().cpu()
            for k, place in enumerate(places):
                if first <= place < first + len(x):
                    inputs[1, k], inputs[2, k] = x_adv[place], purified.x[place - first]
            watch("for the page", first + len(x), len(data))
        shown = inputs.flatten(0, 1)
        decoded = task.reconstruct(model, shown).reshape(inputs.shape)
        labels = model(shown).argmax(1).reshape(inputs.shape[:2])
    return Showcase(
        places=places,
        y=data.y[[*places]].cpu(),
        inputs=inputs.cpu(),
        decoded=decoded.cpu(),
        labels=labels.cpu(),
        n=len(data),
        eps_adv=float((x_adv - data.x).abs().max()),
        loss_clean=clean / len(data),
        loss_by_step=tuple((by_step / len(data)).tolist()),
        radii=purifier.grid,
        loss_by_radius=tuple((by_radius / len(data)).tolist()),
    )
