"""Read a `Dataset` or `DataLoader` of torch.utils.data into memory."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import data as torch_data

from soap import validate
from soap.data.dataset import Dataset, as_dataset
from soap.errors import InputError
from soap.shapes import Tensor

TorchData = torch_data.Dataset[Any] | torch_data.DataLoader[Any]

READ_BATCH = 256

ORDERS = (torch_data.SequentialSampler, torch_data.RandomSampler)
"""Samplers that draw all samples; another one may leave some out, e.g. those of a validation split."""


def read_torch_data(source: TorchData, *, classes: int) -> Dataset:
    """Return all (input, class index) pairs of a map-style data set, in its order, read once.

    Random transforms are therefore applied once; `augment` of `soap.training.Schedule` draws new ones in every step.
    The classes are named by the attribute `classes` of the data set if it has one.
    """
    loader: torch_data.DataLoader[Any]
    loader = source if isinstance(source, torch_data.DataLoader) else torch_data.DataLoader(source)
    samples: Any = loader.dataset
    name = type(samples).__name__
    if isinstance(samples, torch_data.IterableDataset) or not hasattr(samples, "__len__"):
        raise InputError(f"{name} has no length, expected a map-style data set with __len__ and __getitem__.")
    if type(loader.sampler) not in ORDERS:
        raise InputError(
            f"the DataLoader draws by a {type(loader.sampler).__name__}, which may leave samples out; give "
            "torch.utils.data.Subset(data, indices) with the samples to train on."
        )
    batched = isinstance(source, torch_data.DataLoader) and loader.batch_sampler is not None
    settings: dict[str, Any] = {"collate_fn": loader.collate_fn if batched else None, "num_workers": loader.num_workers}
    batches: list[tuple[Tensor, Tensor]] = []
    try:
        for batch in torch_data.DataLoader(samples, batch_size=READ_BATCH, **settings):
            if not isinstance(batch, Sequence) or [isinstance(part, Tensor) for part in batch] != [True, True]:
                found = f"dict of {', '.join(map(str, batch))}" if isinstance(batch, dict) else validate.describe(batch)
                raise TypeError(f"got a {found}")
            batches.append((batch[0], batch[1]))
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"the samples of {name} cannot be read ({error}); expected pairs of an input tensor and a class index, all "
            "inputs of one shape. Convert images to tensors and resize them in the data set's transform."
        ) from error
    data, names = as_dataset(x, y, classes=classes, name=name), _class_names(samples)
    return replace(data, classes=names) if len(names) == classes else data


def _class_names(samples: Any) -> tuple[str, ...]:
    """The names of the classes, also of a `Subset`; none if the data set has no `classes`."""
    while not hasattr(samples, "classes") and hasattr(samples, "dataset"):
        samples = samples.dataset
    found = getattr(samples, "classes", ())
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()
