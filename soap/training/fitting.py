"""Joint training in one call, on arrays or a data set: a thin front of `train` for models of one's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch

from soap import validate
from soap._files import tensor_files
from soap.auxiliary import JointModel
from soap.auxiliary.keeping import metadata
from soap.data import Dataset
from soap.data.dataset import make_dataset
from soap.errors import InputError
from soap.shapes import Tensor
from soap.training import checkpoint
from soap.training.loop import Progress, train
from soap.training.run import Trained
from soap.training.schedule import Schedule

Array = Tensor | npt.NDArray[Any]
"""A tensor or a numpy array."""


class Further(TypedDict, total=False):
    """What else a `Schedule` takes."""

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
    **further: Unpack[Further],
) -> Trained:
    """Train or fine-tune classifier and auxiliary task together, in place, where the model's weights are.

    x, y: a `Dataset` alone, or inputs [n, ...] (bytes, or floats in [0, 1]) and class numbers [n]. out: the folder of
    the run; `soap.auxiliary.restore(out / "last.safetensors", ...)` reads its weights. resume: go on with the run in
    `out` that was stopped or killed, with the same arguments; it ends with the same weights as one that was not.
    further: `batch`, `seed`, `holdout` and all else of `soap.training.Schedule`.
    """
    schedule, out = Schedule(epochs=epochs, lr=lr, **further), Path(out)
    if isinstance(x, Dataset):
        if y is not None:
            raise InputError("got a Dataset, which has its labels in it, and y; leave out y.")
        data = x
    elif y is None:
        raise InputError("got inputs without labels; give y, or a Dataset.")
    else:
        data = as_dataset(x, y, classes=model.classes)
    tensor_files.check_keepable(model.state_dict())
    facts = metadata(model)
    there = (out / checkpoint.NAME).exists()
    if there and not resume:
        raise InputError(f"{out} holds an earlier run; go on with it by resume=True, or choose another folder.")
    if resume and not there:
        raise InputError(f"{out} holds no checkpoint to go on from; leave out resume, or name the folder of the run.")
    device = next(model.parameters()).device
    return train(model, data, schedule, out=out, device=device, resume=resume, metadata=facts, watch=watch, stop=stop)


def as_dataset(x: Array, y: Array, *, classes: int, name: str = "arrays", split: str = "train") -> Dataset:
    """Inputs [n, ...], bytes or floats in [0, 1], and class numbers [n] below `classes` as a `Dataset` on the CPU."""
    values, labels = _plain(x), _plain(y)
    if values.dtype != np.uint8:
        if not np.issubdtype(values.dtype, np.floating):
            raise InputError(f"inputs are {values.dtype}, want bytes (uint8) or floats in [0, 1].")
        values = values.astype(np.float32)
        validate.inputs(torch.from_numpy(np.ascontiguousarray(values)))
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"labels are {labels.dtype}, want whole numbers: class numbers from 0 to {classes - 1}.")
    return make_dataset(name, split, values, labels, [str(number) for number in range(classes)])


def _plain(array: Array) -> npt.NDArray[Any]:
    return array.detach().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)
