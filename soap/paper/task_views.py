"""One image as the auxiliary tasks transform it: four rotations and two views (Figure 6)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from soap import __version__
from soap.auxiliary import all_turns, random_view, second_view
from soap.data import Dataset
from soap.errors import unknown
from soap.paper.attacked_examples import as_uint8


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskViews:
    """The image, its rotations by 0, 90, 180 and 270 degrees, its random view and its fixed view, as uint8.

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
    """Name of the file of the views of an image of a data set."""
    return f"views-{data}.npz"


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
