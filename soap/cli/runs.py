"""A run of the adaptive suite as commands meet it: what was asked for, and the model and images it was about."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from soap import data as library
from soap import zoo
from soap.cli.options import radius
from soap.cli.shell import Shell
from soap.data import Dataset
from soap.errors import FileError
from soap.evaluation.adaptive.evaluate import ASKED
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.target import Target
from soap.purify import Purifier


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which model, behind what, on which images; kept in the run's folder. eps_pfy: None for a bare network."""

    model: str
    gradient: str | None
    eps_pfy: str | None
    data: str
    split: str
    limit: int
    command: str

    def as_json(self) -> dict[str, Any]:
        """What the folder keeps."""
        return asdict(self)

    def target(self, shell: Shell) -> Target:
        """The model behind its purifier, on the command's device."""
        model = zoo.load(self.model, device=shell.device, gradient=self.gradient)
        return Target.of_model(model, None if self.eps_pfy is None else Purifier(model, radius(self.eps_pfy)))

    def images(self, root: Path | None) -> Dataset:
        """The images, on the CPU."""
        return library.load(self.data, self.split, root=root).take(self.limit)


def asked(folder: RunFolder, *, model: str | None = None, data: str | None = None) -> Asked:
    """What the run was asked for; `model` and `data` replace its own, where files lie elsewhere now.

    A run made from Python, which asked for nothing by name, is taken to be about the model and data of its plan.
    """
    plan = folder.plan()
    kept = folder.fact(ASKED)
    if kept is None:
        bare = not plan["purifies"]
        kept = Asked(
            model=plan["target"]["name"],
            gradient=None,
            eps_pfy=None if bare else plan["target"]["eps_pfy"],
            data=plan["data"]["name"],
            split=plan["data"]["split"],
            limit=plan["data"]["n"],
            command="",
        ).as_json()
    try:
        found = Asked(**kept)
        texts = (found.model, found.data, found.split, found.command)
        choices = (found.gradient, found.eps_pfy)
        if not (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(choice, str | None) for choice in choices)
            and isinstance(found.limit, int)
        ):
            raise TypeError("a value of another type")
    except TypeError as error:
        where = folder.path / "facts" / f"{ASKED}.json"
        raise FileError(f"{where}: not what a run writes ({error}); repeat the command that began the run.") from error
    changes = {"model": model, "data": data}
    return Asked(**{**asdict(found), **{key: value for key, value in changes.items() if value is not None}})
