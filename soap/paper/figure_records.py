"""Records that figures are drawn from, in .npz files: loss against the radius (Figure 3) and example images.

A record is one dataclass. Its array fields are arrays of the file; all other fields are one JSON text beside them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from soap._files import atomic
from soap._runtime.isolation import isolated
from soap.attacks import Attack
from soap.auxiliary import JointModel, Reconstruction
from soap.data import Dataset
from soap.data.npz import read_arrays
from soap.errors import FileError, unknown
from soap.evaluation.provenance import gather
from soap.evaluation.showcase import first_of_each_class
from soap.evaluation.transfer import Watch
from soap.purifiers import SOAP
from soap.purifiers.grid import descend_grid
from soap.shapes import Tensor

SCHEMA = "soap-gathered/1"
ABOUT = "about"
"""The array that holds the JSON text, as bytes."""
RENAMED_FIELDS = {"answers": "predictions"}
"""Field names of older files."""

ELBOW_SHARE = 0.95
"""Share of the whole decrease at which the loss has "approximately stopped decreasing" (section 3.3)."""

CLEAN = "clean"


@dataclass(frozen=True, kw_only=True)
class RadiusCurve:
    """Mean auxiliary losses of `n` images: clean, attacked, and purified with every radius (ascending).

    eps_adv: the largest change of a pixel by the attack. radii, eps_adv: in units of the input, [0, 1].
    """

    model: str
    data: str
    attack: str
    n: int
    eps_adv: float
    clean: float
    adversarial: float
    radii: tuple[float, ...]
    purified: tuple[float, ...]
    provenance: dict[str, Any] = field(repr=False)

    @property
    def elbow(self) -> float:
        """Smallest radius at which the loss has made `ELBOW_SHARE` of its decrease from the attacked level."""
        enough = self.adversarial - ELBOW_SHARE * (self.adversarial - min(self.purified))
        lowest = self.radii[self.purified.index(min(self.purified))]  # if no radius lowers the loss
        return next((radius for radius, loss in zip(self.radii, self.purified, strict=True) if loss <= enough), lowest)


def measure_radius_curve(
    model: JointModel,
    data: Dataset,
    attack: Attack,
    *,
    batch_size: int = 500,
    seed: int = 0,
    watch: Watch = lambda what, done, total: None,
) -> RadiusCurve:
    """Attack the bare classifier on all images of `data`, then purify with each radius of the model's grid."""
    task, purifier = model.auxiliary, SOAP(model)

    def loss(x: Tensor) -> Tensor:
        return task.loss(model, x)

    clean, adversarial, eps_adv = 0.0, 0.0, 0.0
    purified = torch.zeros(len(purifier.grid), dtype=torch.float64)
    for first in range(0, len(data), batch_size):
        x, y = data.x[first : first + batch_size], data.y[first : first + batch_size]
        x_adv = attack(model, x, y)
        with isolated(model), torch.no_grad():
            walk = descend_grid(
                loss, x_adv, purifier.grid, step_size=purifier.step_size, steps=purifier.steps, bounds=purifier.bounds
            )
            clean += float(loss(x).sum())
        adversarial += float(walk.loss_before.sum())
        purified += walk.losses.sum(1).double().cpu()
        eps_adv = max(eps_adv, float((x_adv - x).abs().max()))
        watch("loss against radius", first + len(x), len(data))
    return RadiusCurve(
        model=model.name,
        data=data.name,
        attack=repr(attack),
        n=len(data),
        eps_adv=eps_adv,
        clean=clean / len(data),
        adversarial=adversarial / len(data),
        radii=purifier.grid,
        purified=tuple((purified / len(data)).tolist()),
        provenance=asdict(gather(model, data, seed=seed, batch_size=batch_size)),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """The first example of each class, as uint8, in columns: clean, then attacked and purified for every attack.

    places: indices of the examples in the data; truth: their classes. predictions: of the bare classifier, a tuple a
    column, computed before the rounding to uint8. images: [columns, examples, height, width, channels]; decoded: the
    decoder's output, of the same shape; empty for models without a decoder.
    """

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
        provenance=asdict(gather(model, data, seed=seed, batch_size=len(places))),
    )


def as_uint8(x: Tensor) -> npt.NDArray[np.uint8]:
    """Images [..., channels, height, width] in [0, 1] as uint8 [..., height, width, channels]."""
    return x.detach().mul(255).round().to(torch.uint8).movedim(-3, -1).cpu().numpy()


RECORDS: dict[str, type] = {"curve": RadiusCurve, "examples": Examples}
"""Kinds of records; a record of a model is in KIND-MODEL.npz."""


def record_path(folder: Path, kind: str, model: str) -> Path:
    """File of a model's record, such as "curve-mnist-fcn-dr.npz"."""
    return folder / f"{kind}-{model}.npz"


def save(path: Path, record: Any) -> None:
    """Write a frozen dataclass whose fields are arrays, numbers, texts, tuples and mappings of these."""
    content = {field.name: getattr(record, field.name) for field in fields(record)}
    arrays: dict[str, Any] = {name: value for name, value in content.items() if isinstance(value, np.ndarray)}
    facts = {name: value for name, value in content.items() if name not in arrays}
    about = json.dumps({"schema": SCHEMA, "kind": type(record).__name__, "facts": facts}, sort_keys=True)
    arrays[ABOUT] = np.frombuffer(about.encode(), np.uint8)
    with atomic.replace_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read(path: Path, kind: type) -> Any:
    """The dataclass that `save` wrote; FileError for a file of another kind or a damaged one."""
    with atomic.file_errors(path), path.open("rb") as file:
        # numpy and zipfile raise many kinds of exception for pickles and damage (ValueError, BadZipFile ...).
        try:
            _, arrays = read_arrays(file)
            about = json.loads(arrays.pop(ABOUT).tobytes())
            if (about["schema"], about["kind"]) != (SCHEMA, kind.__name__):
                raise ValueError(f"it is {about['kind']} of {about['schema']}")
            facts = {RENAMED_FIELDS.get(name, name): _tuples(value) for name, value in about["facts"].items()}
            return kind(**arrays, **facts)
        except Exception as problem:
            raise FileError(
                f"{path}: cannot be read as {kind.__name__} of {SCHEMA} ({problem}); remove it, and `soap reproduce "
                "NAME --run` makes it again."
            ) from problem


def _tuples(value: Any) -> Any:
    """Lists of JSON as tuples, which a frozen dataclass holds."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
