"""The fuzzed formats: the readers, tokens and repair function of each.

A reader may refuse a file with a SoapError, and a request body also with a status from 400 to 499. Any other exception
is a failure, including an AssertionError about accepted content.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import readers
import tokens
from repairs import gzipped, in_metadata, in_npz, with_png_checksums, with_row_checksums
from starlette.exceptions import HTTPException

from soap.errors import SoapError
from soap.training import checkpoint

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, kw_only=True)
class Target:
    """One format: its readers, which get the path of a file called `file`; its tokens; its repair function.

    memory_mib: MiB that a reader may allocate in addition to 64 times the file size; for images, enough for the largest
    allowed one.
    """

    name: str
    file: str
    readers: Sequence[Callable[[Path], None]]
    tokens: Sequence[bytes] = ()
    repair: Callable[[bytes], bytes] = bytes
    memory_mib: int = 64


def is_refusal(error: BaseException) -> bool:
    """Return whether a reader may raise this error."""
    return isinstance(error, SoapError) or (isinstance(error, HTTPException) and 400 <= error.status_code < 500)


LIST = (
    Target(name="idx", file="fuzzed", readers=(readers.images, readers.digits), repair=gzipped, tokens=tokens.IDX),
    Target(name="cifar", file="batch.bin", readers=(readers.records10, readers.records100), tokens=tokens.CIFAR),
    Target(
        name="archive", file="cifar-10-binary.tar.gz", readers=(readers.archive,), repair=gzipped, tokens=tokens.TAR
    ),
    Target(
        name="weights",
        file="weights.safetensors",
        readers=(readers.classifier, readers.prior),
        repair=in_metadata(CORPUS / "weights" / "seed-small-gan", "recipe"),
        tokens=(*tokens.TENSORS, *tokens.RECIPE),
    ),
    Target(
        name="checkpoint",
        file=checkpoint.NAME,
        readers=(readers.training,),
        repair=in_metadata(CORPUS / "checkpoint" / "seed-plain", "state"),
        tokens=tokens.TENSORS,
    ),
    Target(
        name="adopted",
        file="adopted.safetensors",
        readers=(readers.adopted,),
        repair=in_metadata(CORPUS / "adopted" / "seed-rotation", "adopted"),
        tokens=tokens.TENSORS,
    ),
    Target(name="recipe", file="recipe.toml", readers=(readers.recipe,), tokens=tokens.RECIPE),
    Target(
        name="results",
        file="rows.jsonl",
        readers=(readers.rows, readers.timings),
        repair=with_row_checksums,
        tokens=tokens.ROWS,
    ),
    Target(name="manifest", file="manifest.json", readers=(readers.manifest,), tokens=tokens.MANIFEST),
    Target(
        name="npz",
        file="run/clean/0000.npz",
        readers=(readers.data_archive, readers.own_archive, readers.batch_of_a_run),
        repair=in_npz,
        tokens=tokens.ARRAYS,
    ),
    Target(
        name="picture-body",
        file="body",
        readers=(readers.grey_body, readers.coloured_body),
        repair=with_png_checksums,
        tokens=tokens.PICTURES,
        memory_mib=160,
    ),
    Target(
        name="picture-file",
        file="set/class/1.png",
        readers=(readers.picture_folder, readers.own_picture),
        repair=with_png_checksums,
        tokens=tokens.PICTURES,
        memory_mib=400,
    ),
    Target(name="json-body", file="body.json", readers=(readers.json_body,), tokens=tokens.JSON),
)

TARGETS = {target.name: target for target in LIST}
