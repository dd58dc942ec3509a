"""How the cost of purification grows: cases along batch size, grid size and T, one at a time."""

from dataclasses import dataclass

from soap.auxiliary import Purification

GRIDS = (2, 3, 6, 11, 21, 41)
STEPS = (1, 2, 5, 10, 20)
FACTOR = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of a sweep; None stands for the model's own steps (T) or grid."""

    batch: int
    steps: int | None = None
    grid: tuple[float, ...] | None = None


def sweep(own: Purification, batch: int) -> list[Case]:
    """Batches up to `batch` by factors of four, then at `batch` grids of equal steps over the same span, then T."""
    sizes = [size for size in (FACTOR**k for k in range(20)) if size < batch]
    widest = max(own.grid)
    spaced = {count: tuple(widest * k / (count - 1) for k in range(count)) for count in GRIDS}
    return [
        *(Case(batch=size) for size in (*sizes, batch)),
        *(Case(batch=batch, grid=grid) for count, grid in spaced.items() if count != len(set(own.grid))),
        *(Case(batch=batch, steps=steps) for steps in STEPS if steps != own.steps),
    ]
