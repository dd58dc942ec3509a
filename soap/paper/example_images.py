"""Example images, as uint8: one a class under every attack (Figures 2, 4, 8 to 10), and one as the tasks see it (6)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from soap import __version__, validate
from soap._runtime.isolation import isolated
from soap.attacks import Attack
from soap.auxiliary import JointModel, Reconstruction, all_turns, random_view, second_view
from soap.data import Dataset
from soap.errors import InputError, unknown
from soap.evaluation.provenance import gather
from soap.evaluation.showcase import first_of_each_class
from soap.evaluation.transfer import Watch
from soap.purifiers import SOAP
from soap.shapes import Tensor

CLEAN = "clean"


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """The first example of each class, as uint8, in columns: clean, then attacked and purified for every attack.

    places: indices of the examples in the data; truth: their classes. predictions: of the bare classifier, a tuple a
    column, computed before the rounding to uint8. images: [columns, examples, height, width, channels]; decoded: the
    decoder's output, of the same shape; empty for models without a decoder.
    """

    file_prefix: ClassVar[str] = "examples"
    model: str
    data: str
    classes: tuple[str, ...]
    places: tuple[int, ...]
    truth: tuple[int, ...]
    columns: tuple[str, ...]
    predictions: tuple[tuple[int, ...], ...]
    images: npt.NDArray[np.uint8] = field(repr=False)
    decoded: npt.NDArray[np.uint8] = field(repr=False)
    provenance: dict[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        shape = (len(self.columns), len(self.truth))
        if self.images.shape[:2] != shape or self.decoded.shape not in ((0,), self.images.shape):
            raise InputError(
                f"images are {self.images.shape} and decoded {self.decoded.shape}, expected {shape} + (height, "
                "width, channels) for both, or (0,) for decoded."
            )
        if len(self.predictions) != shape[0] or any(len(column) != shape[1] for column in self.predictions):
            raise InputError(f"expected predictions in {shape[0]} columns of {shape[1]}, got other lengths.")

    @property
    def attacks(self) -> tuple[str, ...]:
        """Names of the attacks, as in the paper's tables."""
        return self.columns[1::2]

    def column(self, attack: str, *, purified: bool = False) -> int:
        """Index of the column of an attack; `attack` may be "clean"."""
        if attack != CLEAN and attack not in self.attacks:
            raise unknown("attack", attack, self.attacks)
        return self.columns.index(attack) + purified


def make_examples(
    model: JointModel,
    data: Dataset,
    attacks: Mapping[str, Attack],
    *,
    seed: int = 0,
    watch: Watch = lambda what, done, total: None,
) -> Examples:
    """Attack the bare classifier at the first image of each class, and purify by the model's own settings.

    The examples are chosen by their labels, so that no selection of successful cases is possible.
    """
    if not attacks:
        raise InputError("got no attack; expected at least one, e.g. 'pgd'.")
    validate.inputs(data.x, model)
    places = first_of_each_class(data.y)
    x, y = data.x[[*places]], data.y[[*places]]
    purifier = SOAP(model)
    columns, stages = [CLEAN], [x]
    for done, (name, attack) in enumerate(attacks.items(), 1):
        x_adv = attack(model, x, y)
        columns += [name, f"{name}, purified"]
        stages += [x_adv, purifier(x_adv).x]
        watch(f"examples of {model.name}, attacks", done, len(attacks))
    task = model.auxiliary
    with isolated(model), torch.no_grad():
        predictions = [model(stage).argmax(1) for stage in stages]
        decoded = [task.reconstruct(model, stage) for stage in stages] if isinstance(task, Reconstruction) else []
    return Examples(
        model=model.name,
        data=data.name,
        classes=data.classes,
        places=places,
        truth=tuple(y.tolist()),
        columns=tuple(columns),
        predictions=tuple(tuple(column.tolist()) for column in predictions),
        images=as_uint8(torch.stack(stages)),
        decoded=as_uint8(torch.stack(decoded)) if decoded else np.empty(0, np.uint8),
        provenance=asdict(gather(model, data, seed=seed, batch=len(places))),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskViews:
    """The image, its rotations by 0, 90, 180 and 270 degrees, its random view and its fixed view, as uint8.

    image: [height, width, channels]; turns: [4, ...]; views: [2, ...], without the noise of training.
    """

    file_prefix: ClassVar[str] = "views"
    data: str
    label: str
    place: int
    image: npt.NDArray[np.uint8] = field(repr=False)
    turns: npt.NDArray[np.uint8] = field(repr=False)
    views: npt.NDArray[np.uint8] = field(repr=False)
    provenance: dict[str, Any] = field(repr=False)


def make_views(data: Dataset, label: str, *, seed: int = 0) -> TaskViews:
    """Views of the first image of class `label`; `seed` is that of the random view."""
    if label not in data.classes:
        raise unknown("class", label, data.classes)
    place = int((data.y == data.classes.index(label)).nonzero()[0])
    x = data.x[place : place + 1].cpu()
    views = torch.cat([random_view(x, torch.Generator().manual_seed(seed)), second_view(x)])
    return TaskViews(
        data=data.name,
        label=label,
        place=place,
        image=as_uint8(x)[0],
        turns=as_uint8(all_turns(x)),
        views=as_uint8(views),
        provenance={
            "data_sha256": data.sha256,
            "images": f"{place} of {data.split}",
            "seed": seed,
            "version": __version__,
            "torch": str(torch.__version__),
        },
    )


def as_uint8(x: Tensor) -> npt.NDArray[np.uint8]:
    """Images [..., channels, height, width] in [0, 1] as uint8 [..., height, width, channels]."""
    return x.detach().mul(255).round().to(torch.uint8).movedim(-3, -1).cpu().numpy()
