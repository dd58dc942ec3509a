"""`soap.fit`: joint training of a wrapped model in one call, on arrays or a data set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch

from soap import validate
from soap._files import tensor_files
from soap.auxiliary import JointModel
from soap.auxiliary.serialization import metadata
from soap.data import Dataset
from soap.data.dataset import dataset
from soap.errors import InputError
from soap.shapes import Tensor
from soap.training import checkpoint
from soap.training.joint import Progress, train
from soap.training.loop import Trained
from soap.training.schedule import Schedule

Array = Tensor | npt.NDArray[Any]
"""A tensor or a numpy array."""


class ScheduleOptions(TypedDict, total=False):
    """Further fields of `Schedule`."""

    batch: int
    momentum: float
    weight_decay: float
    milestones: tuple[float, ...]
    warmup_epochs: float
    augment: tuple[str, ...]
    holdout: int
    seed: int


def fit(
    model: JointModel,
    x: Dataset | Array,
    y: Array | None = None,
    *,
    out: str | Path,
    epochs: int,
    lr: float = 0.01,
    resume: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    **further: Unpack[ScheduleOptions],
) -> Trained:
    """Train or fine-tune classifier and auxiliary task together, in place, on the device of the model's weights.

    x, y: a `Dataset` alone, or inputs [n, ...] (bytes, or floats in [0, 1]) and class indices [n]. out: the folder of
    the run; `soap.auxiliary.restore(out / "last.safetensors", ...)` loads its weights. resume: continue a run in `out`
    that was stopped or killed, with the same arguments; it ends with the same weights as an uninterrupted run.
    further: `batch`, `seed`, `holdout` and other fields of `soap.training.Schedule`.
    """
    schedule, out = Schedule(epochs=epochs, lr=lr, **further), Path(out)
    if isinstance(x, Dataset):
        if y is not None:
            raise InputError("got a Dataset, which contains labels, and y; leave out y.")
        data = x
    elif y is None:
        raise InputError("got inputs without labels; pass y, or a Dataset.")
    else:
        data = as_dataset(x, y, classes=model.classes)
    tensor_files.check_storable(model.state_dict())
    settings = metadata(model)
    exists = (out / checkpoint.NAME).exists()
    if exists and not resume:
        raise InputError(f"{out} contains an earlier run; continue it with resume=True, or choose another folder.")
    if resume and not exists:
        raise InputError(f"{out} contains no checkpoint to resume; leave out resume, or pass the folder of the run.")
    device = next(model.parameters()).device
    return train(
        model, data, schedule, out=out, device=device, resume=resume, metadata=settings, watch=watch, stop=stop
    )


def as_dataset(x: Array, y: Array, *, classes: int, name: str = "arrays", split: str = "train") -> Dataset:
    """Return inputs [n, ...] (bytes, or floats in [0, 1]) and class indices [n] as a `Dataset` on the CPU."""
    values, labels = _to_numpy(x), _to_numpy(y)
    if values.dtype != np.uint8:
        if not np.issubdtype(values.dtype, np.floating):
            raise InputError(f"inputs are {values.dtype}; expected bytes (uint8) or floats in [0, 1].")
        values = values.astype(np.float32)
        validate.inputs(torch.from_numpy(np.ascontiguousarray(values)))
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"labels are {labels.dtype}; expected integers: class indices from 0 to {classes - 1}.")
    return dataset(name, split, values, labels, [str(number) for number in range(classes)])


def _to_numpy(array: Array) -> npt.NDArray[Any]:
    return array.detach().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)
