"""A fingerprint of every batch of a run, so that a file changed after the run is noticed.

Taken of what the arrays hold, without the seconds: two runs of the same plan on the same device have the same seal,
whether they were killed in between or not.
"""

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from soap._files import checksums
from soap.evaluation.adaptive.folder import Attacked, RunFolder

SEAL = "seal.json"


def batches(folder: RunFolder) -> Iterator[tuple[str, int | None, int]]:
    """(name, attempt, number) of every batch that the plan asks for; attempt None is the images as they are."""
    content = folder.plan()
    count = -(-int(content["data"]["n"]) // int(content["batch"]))
    for attempt in (None, *range(len(content["attempts"]))):
        for number in range(count):
            yield f"{'clean' if attempt is None else f'attempts/{attempt:02d}'}/{number:04d}", attempt, number


def fingerprints(folder: RunFolder) -> dict[str, str]:
    """The sha256 of every batch that is there, by name."""
    found = {name: folder.batch(attempt, number) for name, attempt, number in batches(folder)}
    return {name: _fingerprint(batch) for name, batch in found.items() if batch is not None}


def seal(folder: RunFolder) -> None:
    """Write the seal of a finished run; one that is there already stays as it is."""
    path = folder.path / SEAL
    if not path.exists():
        checksums.write(path, fingerprints(folder))


def seal_of(folder: RunFolder) -> Mapping[str, str] | None:
    """The seal that was written; None where there is none yet."""
    path = folder.path / SEAL
    if not path.exists():
        return None
    return checksums.read(path, "remove it and run the suite again")


def _fingerprint(batch: Attacked) -> str:
    digest = hashlib.sha256()
    for array in (batch.rows, batch.x, batch.defended, batch.bare):
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
