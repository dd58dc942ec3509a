"""The formats that are fuzzed: readers, words and menders of each.

A reader refuses with the library's own errors; the readers of request bodies with a status from 400 to 499 as well.
Anything else that leaves it, an AssertionError about what it accepted included, is a failure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import readers
import words
from mending import archived, gzipped, inside, signed, with_checksums

from soap.errors import SoapError
from soap.serve.http_errors import RequestError
from soap.training import checkpoint

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, kw_only=True)
class Target:
    """One format: its readers, each given the path of a file called `file`; words of the format; and `mend`.

    room: MiB that a reader may take beyond 64 times the file's own size; for pictures it holds the largest allowed.
    """

    name: str
    file: str
    readers: Sequence[Callable[[Path], None]]
    tokens: Sequence[bytes] = ()
    mend: Callable[[bytes], bytes] = bytes
    room: int = 64


def refusal(error: BaseException) -> bool:
    """Whether a reader may end so."""
    return isinstance(error, SoapError) or (isinstance(error, RequestError) and 400 <= error.status < 500)


LIST = (
    Target(
        name="idx", file="fuzzed", readers=(readers.images, readers.digits), mend=gzipped, tokens=words.IDX
    ),
    Target(
        name="cifar", file="batch.bin", readers=(readers.records10, readers.records100), tokens=words.CIFAR
    ),
    Target(
        name="archive", file="cifar-10-binary.tar.gz", readers=(readers.archive,), mend=gzipped, tokens=words.TAR
    ),
    Target(
        name="weights", file="weights.safetensors", readers=(readers.classifier, readers.prior),
        mend=inside(CORPUS / "weights" / "seed-small-gan", "recipe"), tokens=(*words.TENSORS, *words.RECIPE),
    ),
    Target(
        name="checkpoint", file=checkpoint.NAME, readers=(readers.training,),
        mend=inside(CORPUS / "checkpoint" / "seed-plain", "state"), tokens=words.TENSORS,
    ),
    Target(
        name="adopted", file="adopted.safetensors", readers=(readers.adopted,),
        mend=inside(CORPUS / "adopted" / "seed-rotation", "adopted"), tokens=words.TENSORS,
    ),
    Target(
        name="recipe", file="recipe.toml", readers=(readers.recipe,), tokens=words.RECIPE
    ),
    Target(
        name="results", file="rows.jsonl", readers=(readers.rows, readers.timings), mend=signed, tokens=words.ROWS
    ),
    Target(
        name="manifest", file="manifest.json", readers=(readers.manifest,), tokens=words.MANIFEST
    ),
    Target(
        name="npz", file="run/clean/0000.npz",
        readers=(readers.data_archive, readers.own_archive, readers.batch_of_a_run), mend=archived, tokens=words.ARRAYS,
    ),
    Target(
        name="picture-body", file="body", readers=(readers.grey_body, readers.coloured_body), mend=with_checksums,
        tokens=words.PICTURES, room=160,
    ),
    Target(
        name="picture-file", file="set/class/1.png", readers=(readers.picture_folder, readers.own_picture),
        mend=with_checksums, tokens=words.PICTURES, room=400,
    ),
    Target(
        name="json-body", file="body.json", readers=(readers.json_body,), tokens=words.JSON
    ),
)  # fmt: skip

TARGETS = {target.name: target for target in LIST}
