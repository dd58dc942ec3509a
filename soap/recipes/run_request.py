"""The request of a suite run: which model, which purifier and which images; stored in the run's folder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from soap import data as library
from soap import zoo
from soap._files.records import read_record
from soap.data import Dataset
from soap.defence import Defence
from soap.errors import FileError, InputError
from soap.evaluation.run_folder import RunFolder, open_run
from soap.evaluation.suite import COMMAND_FACT, SuiteReport, read_report
from soap.purifiers.purifier import ClassifierWrapper
from soap.recipes import purifiers
from soap.recipes.own_network import Factory
from soap.recipes.purifiers import SOAP_NAME


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Model, purifier and images of a suite run.

    purifier: its name. eps_pfy: None for its own radius; for "soap", None means the bare network. prior: the
    generative model that it uses, None for its own. seed: of its random numbers. purifier_options: further settings,
    each as NAME=VALUE. invert: whether dark and light of the images are swapped.
    """

    model: str
    gradient: str | None
    eps_pfy: str | None
    data: str
    split: str
    limit: int
    command: str
    purifier: str = SOAP_NAME
    prior: str | None = None
    seed: int = 0
    purifier_options: tuple[str, ...] = ()
    invert: bool = False

    @property
    def bare(self) -> bool:
        """Whether the network has no purifier."""
        return self.purifier == SOAP_NAME and self.eps_pfy is None

    def defence(self, device: torch.device, module: Factory | None = None) -> Defence:
        """The model with its purifier, on `device`.

        module: as in `soap.load`; it is not stored with the run, because reading a run must not import code.
        """
        model = zoo.load(self.model, device=device, gradient=self.gradient, module=module)
        if self.bare:
            return Defence(model)
        eps = None if self.eps_pfy is None else purifiers.parse_radius(self.eps_pfy)
        settings = dict(map(purifiers.parse_setting, self.purifier_options))
        made = purifiers.purifier_by_name(
            model, self.purifier, eps, prior=self.prior, seed=self.seed, settings=settings
        )
        return Defence(made) if isinstance(made, ClassifierWrapper) else Defence(model, made)

    def images(self, root: Path | None, classes: Sequence[str]) -> Dataset:
        """The images, on the CPU; `classes` are those of the run."""
        found = library.load(self.data, self.split, root=root).numbered_by(classes).take(self.limit)
        return found.inverted() if self.invert else found


def read_request(folder: RunFolder, *, model: str | None = None, data: str | None = None) -> RunRequest:
    """The stored request of a run; `model` and `data` replace its own if the files have moved.

    A run made from Python stores no request; its plan names the model and the data.
    """
    plan = folder.plan()
    stored = folder.read_fact(COMMAND_FACT) or {
        "model": plan["target"]["name"],
        "gradient": None,
        "eps_pfy": str(plan["target"]["defence"]["eps"]) if plan["purifies"] else None,
        "data": plan["data"]["name"],
        "split": plan["data"]["split"],
        "limit": plan["data"]["n"],
        "command": "",
    }
    try:
        found = read_record(RunRequest, stored)
    except (TypeError, ValueError) as error:
        path = folder.path / "facts" / f"{COMMAND_FACT}.json"
        raise FileError(f"{path}: not a stored request ({error}); repeat the command that made the run.") from error
    return replace(found, model=model or found.model, data=data or found.data)


def report_of(run: Path, *, data: str | None = None, root: Path | None = None) -> tuple[SuiteReport, Dataset]:
    """The report of a run and its images, which are loaded by their stored name or from `data`."""
    folder = open_run(run)
    request = read_request(folder, data=data)
    with python_advice(folder, f"soap.evaluation.read_report({str(run)!r}, data)"):
        images = request.images(root, folder.plan()["classes"])
    return read_report(run, images), images


@contextmanager
def python_advice(folder: RunFolder, call: str) -> Iterator[None]:
    """Extend an InputError about a run that was made in Python: its defence or data may have no name; call: instead."""
    try:
        yield
    except InputError as error:
        if folder.read_fact(COMMAND_FACT) is not None:
            raise
        raise InputError(
            f"{folder.path} was made in Python, and its defence or data cannot be loaded by name; call {call} with "
            f"those of the run ({error})"
        ) from error
