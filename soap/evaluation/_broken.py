"""Images that a run broke: the clean one, the one that broke it, and what was answered."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from soap.data import Dataset
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.seal import batches

Image = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Broken:
    """One image of the run, right when clean, and the first attempt that broke it.

    row: its place in the data. y: its class. defended, bare: what defence and classifier answer to `attacked`; bare is
    -1 where there is no classifier apart.
    """

    row: int
    y: int
    clean: Image
    attacked: Image
    defended: int
    bare: int
    attempt: str


def broken(folder: RunFolder, data: Dataset, count: int) -> list[Broken]:
    """The first `count` broken images in the order of the data, so that nobody can pick them."""
    names = [f"{one['protocol']}, {one['name']}" for one in folder.plan()["attempts"]]
    y, found = data.y.cpu().numpy(), dict[int, Broken]()
    for _, attempt, number in batches(folder):
        batch = None if attempt is None else folder.batch(attempt, number)
        if attempt is None or batch is None:
            continue
        for place in np.flatnonzero(batch.defended != y[batch.rows]):
            row = int(batch.rows[place])
            if row not in found:
                found[row] = Broken(
                    row=row,
                    y=int(y[row]),
                    clean=data.x[row].cpu().numpy(),
                    attacked=batch.x[place],
                    defended=int(batch.defended[place]),
                    bare=int(batch.bare[place]),
                    attempt=names[attempt],
                )
    return [found[row] for row in sorted(found)[:count]]
