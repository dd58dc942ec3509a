"""One image as the auxiliary tasks see it: four turns, two views (the paper's Figure 6)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from soap import __version__
from soap.auxiliary import all_turns, random_view, second_view
from soap.data import Dataset
from soap.errors import unknown
from soap.evaluation.examples import as_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskViews:
    """The image, its turns by 0, 90, 180 and 270 degrees, and its random and its fixed view, as bytes.

    image: [height, width, channels]; turns: [4, ...]; views: [2, ...], without the noise of training.
    """

    data: str
    label: str
    place: int
    image: npt.NDArray[np.uint8] = field(repr=False)
    turns: npt.NDArray[np.uint8] = field(repr=False)
    views: npt.NDArray[np.uint8] = field(repr=False)
    provenance: dict[str, Any] = field(repr=False)


def file_name(data: str) -> str:
    """The file that holds the views of an image of a data set."""
    return f"views-{data}.npz"


def task_views(data: Dataset, label: str, *, seed: int = 0) -> TaskViews:
    """The first image of class `label`; `seed` draws the random view."""
    if label not in data.classes:
        raise unknown("class", label, data.classes)
    place = int((data.y == data.classes.index(label)).nonzero()[0])
    x = data.x[place : place + 1].cpu()
    views = torch.cat([random_view(x, torch.Generator().manual_seed(seed)), second_view(x)])
    return TaskViews(
        data=data.name,
        label=label,
        place=place,
        image=as_bytes(x)[0],
        turns=as_bytes(all_turns(x)),
        views=as_bytes(views),
        provenance={
            "data_sha256": data.sha256,
            "images": f"{place} of {data.split}",
            "seed": seed,
            "version": __version__,
            "torch": str(torch.__version__),
        },
    )
