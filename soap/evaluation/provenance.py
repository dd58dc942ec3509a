"""Provenance of a measurement: hashes of weights and data, commit, versions, device and date."""

import datetime
import hashlib
import os
import platform
import subprocess
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from soap import __version__
from soap._runtime import devices
from soap.data import Dataset
from soap.defence import Defence
from soap.gradient_rules.rule import Purify
from soap.purifiers.purifier import ClassifierWrapper, prior_of
from soap.results import Provenance


def gather(model: nn.Module, data: Dataset, *, seed: int, batch_size: int) -> Provenance:
    """The provenance of a measurement made now on all images of `data`."""
    return Provenance(
        weights_sha256=fingerprint(model),
        data_sha256=data.sha256,
        images=f"0..{len(data) - 1} of {data.split}",
        seed=seed,
        batch_size=batch_size,
        version=__version__,
        commit=commit(),
        torch=str(torch.__version__),
        python=platform.python_version(),
        device=devices.describe_device(next(model.parameters(), data.x).device),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        training=getattr(model, "training_spec", None),
    )


def with_prior(provenance: Provenance, model: nn.Module, purifier: Purify | None) -> Provenance:
    """The provenance behind a purifier with a generative model: the hash covers its weights, too."""
    prior = None if purifier is None else prior_of(purifier)
    if purifier is None or prior is None:
        return provenance
    own, training = getattr(prior, "training_spec", None), provenance.training
    if own is not None and training is not None:
        training = replace(training, prior=own)
    return replace(provenance, weights_sha256=fingerprint(Defence(model, purifier)), training=training)


def fingerprint(model: nn.Module) -> str:
    """sha256 over names, shapes and values of all weights and buffers; independent of the file format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{list(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def classifier_fingerprint(defence: Defence) -> str | None:
    """The fingerprint of the classifier's own weights, as on its model card; None where the classifier is unknown."""
    model = defence.classifier
    inner = model.classifier if isinstance(model, ClassifierWrapper) else model
    return None if inner is None else fingerprint(inner)


def commit() -> str | None:
    """The commit of the source: $SOAP_COMMIT, else that of the git checkout, with "+" when files are modified."""
    if stated := os.environ.get("SOAP_COMMIT"):
        return stated
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.check_output(
            ["git", "-C", str(here), *arguments], text=True, timeout=10, stderr=subprocess.DEVNULL
        ).strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", "soap") else "")
    except (OSError, subprocess.SubprocessError):
        return None
