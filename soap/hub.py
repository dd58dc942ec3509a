"""Models on the Hugging Face Hub by `hf://owner/name@revision`; `soap push` uploads them.

A model is two files: model.safetensors, and config.json with the recipe and the SHA-256 of the weights. Only these are
downloaded, by their fixed names, so no name from the repository becomes a path here. Everything in them is untrusted:
sizes are limited, the hash is checked, and nothing is unpickled or executed. A revision is resolved to a commit, and
the files are kept in a folder of that commit.
"""

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from soap import __version__
from soap._files import atomic, tensor_files
from soap.data.loading import data_root
from soap.errors import FileError, InputError

SCHEME, CONFIG_FORMAT = "hf://", "soap-hub/1"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
MAX_BYTES = {CONFIG: 2**20, WEIGHTS: 2**30}
"""Largest accepted files. The largest recipe here has 146 MB of weights."""

TIMEOUT_S = 30.0
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
LOG = logging.getLogger("soap")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,95}"
_REFERENCE = re.compile(rf"hf://({_NAME}/{_NAME})(?:@((?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{{0,199}}))?")
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class HubReference:
    """A model's repository, owner/name, and a branch, tag or commit (None: the main branch)."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{SCHEME}{self.repo}" + (f"@{self.revision}" if self.revision else "")


def parse_reference(text: str) -> HubReference:
    """Return the parts of `hf://owner/name@revision`."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} names no model on the hub; expected hf://owner/name or hf://owner/name@revision.")
    return HubReference(*found.groups())


def pinned(name: str) -> str:
    """Return the name with its revision resolved to a commit; names without hf:// are returned unchanged."""
    if not name.startswith(SCHEME):
        return name
    wanted = parse_reference(name)
    if _COMMIT.fullmatch(wanted.revision or ""):
        return name
    with hub_client(wanted) as api:
        commit = api.model_info(wanted.repo, revision=wanted.revision, timeout=TIMEOUT_S).sha
    if not _COMMIT.fullmatch(str(commit)):
        raise FileError(f"{wanted}: the hub resolved the revision to {commit!r:.80}, expected a commit of 40 digits.")
    exact = HubReference(wanted.repo, commit)
    LOG.warning("%s is commit %s now; to load the same weights again, use %s", wanted, commit, exact)
    return str(exact)


def fetch(name: str) -> Path:
    """Return the local path of a model's weights; download them unless this commit is already here."""
    wanted = parse_reference(pinned(name))
    folder = data_root() / "hub" / wanted.repo.replace("/", "--") / str(wanted.revision)
    if not all((folder / file).is_file() for file in MAX_BYTES):
        with atomic.file_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".incoming-") as incoming, hub_client(wanted) as api:
            listed = api.model_info(wanted.repo, revision=wanted.revision, files_metadata=True, timeout=TIMEOUT_S)
            if listed.sha != wanted.revision:
                raise FileError(f"{wanted}: the hub sent commit {listed.sha!r:.80} instead; nothing was downloaded.")
            sizes = {one.rfilename: one.size for one in listed.siblings or ()}
            _check_listing(wanted, sizes)
            for file in MAX_BYTES:
                api.hf_hub_download(wanted.repo, file, revision=wanted.revision, local_dir=incoming)
                if (got := (Path(incoming) / file).stat().st_size) != sizes[file]:
                    raise FileError(f"{wanted}: {file} has {got:,} bytes, but the hub lists {sizes[file]:,}.")
            _check_files(wanted, Path(incoming))
            for file in MAX_BYTES:
                with atomic.replace_file(folder / file) as temporary:
                    (Path(incoming) / file).replace(temporary)
    _check_files(wanted, folder)
    return folder / WEIGHTS


def _check_listing(wanted: HubReference, sizes: Mapping[str, int | None]) -> None:
    """Raise unless the repository has both files, none too large, and no name that leaves its folder."""
    for name in sizes:
        if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
            raise FileError(f"{wanted}: it lists {name!r:.80}, a path outside of the repository; do not use it.")
    for name, largest in MAX_BYTES.items():
        size = sizes.get(name)
        if name not in sizes or size is None:
            pickles = sorted(one for one in sizes if one.endswith(PICKLES))
            held = f"; it holds pickles ({pickles[0]}), which can run code and are never loaded" if pickles else ""
            raise FileError(f"{wanted}: it has no {name}{held}. Expected a model uploaded by `soap push`.")
        if size > largest:
            raise FileError(f"{wanted}: {name} has {size:,} bytes, expected at most {largest:,}.")


def _check_files(wanted: HubReference, folder: Path) -> None:
    """Raise unless the weights are the safetensors file, with the recipe, that config.json describes."""
    config, weights = folder / CONFIG, folder / WEIGHTS
    try:
        stated = json.loads(config.read_bytes())
        if stated["format"] != CONFIG_FORMAT:
            raise ValueError(f"format is {stated['format']!r:.80}, expected {CONFIG_FORMAT!r}")
        sha256, recipe = str(stated["sha256"]), str(stated["recipe"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"{wanted}: {CONFIG} is not that of a soap model ({type(error).__name__}: {error}).") from error
    content = weights.read_bytes()
    if (got := hashlib.sha256(content).hexdigest()) != sha256:
        raise FileError(f"{wanted}: {WEIGHTS} was swapped or damaged: sha256 is {got}, {CONFIG} states {sha256:.80}.")
    if content[8:9] != b"{":  # a safetensors header is JSON after eight bytes of length
        kind = "a pickle" if content.startswith((b"\x80", b"PK")) else "no safetensors file"
        raise FileError(f"{wanted}: {WEIGHTS} is {kind}, which is never loaded; expected safetensors.")
    if tensor_files.load_tensors(weights)[1].get("recipe") != recipe:
        raise FileError(f"{wanted}: {CONFIG} and {WEIGHTS} state different recipes; do not use them.")


def _endpoint() -> str:
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")


@contextmanager
def hub_client(wanted: HubReference) -> Iterator[Any]:
    """Yield the client of the hub; turn its errors into a FileError with one line."""
    try:
        import httpx2
        from huggingface_hub import HfApi, errors
    except ImportError:
        raise InputError(f"{wanted} needs huggingface_hub: pip install 'soap-defense[hub]'.") from None
    try:
        yield HfApi(endpoint=_endpoint(), library_name="soap-defense", library_version=__version__)
    except (FileError, InputError):
        raise
    except errors.RepositoryNotFoundError as error:
        advice = "check the name; for a private or gated model log in with `hf auth login`"
        raise FileError(f"{wanted}: {_endpoint()} has no such model, or you have no access; {advice}.") from error
    except errors.RevisionNotFoundError as error:
        raise FileError(f"{wanted}: the model has no such branch, tag or commit.") from error
    except (httpx2.HTTPError, OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split())
        raise FileError(f"{wanted}: {_endpoint()} failed: {type(cause).__name__}: {reason:.300}") from error
