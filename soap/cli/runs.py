"""A run of the adaptive suite as commands meet it: what was asked for, and the model and images it was about."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from soap import data as library
from soap import zoo
from soap.auxiliary import JointModel
from soap.cli.options import radius
from soap.cli.shell import Shell
from soap.data import Dataset
from soap.defence import Defence
from soap.errors import FileError
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.suite import COMMAND_FACT
from soap.purifiers import Purifier
from soap.recipes import purifiers
from soap.recipes.purifiers import SOAP_NAME


def purifier_of(
    model: JointModel, name: str, eps_pfy: str | None, *, prior: str | None = None, seed: int = 0
) -> Purifier:
    """The purifier that a command's options name; None for `eps_pfy` leaves it its own radius."""
    return purifiers.before(model, name, {} if eps_pfy is None else {"eps": radius(eps_pfy)}, prior=prior, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which model, behind what, on which images; kept in the run's folder.

    purifier: its name. eps_pfy: None for its own radius; for SOAP_NAME, which chooses one, None is a bare network.
    prior: the generative model that it uses, None for its own. seed: of what it draws.
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

    def as_json(self) -> dict[str, Any]:
        """What the folder keeps."""
        return asdict(self)

    @property
    def bare(self) -> bool:
        """Whether nothing stands before the network."""
        return self.purifier == SOAP_NAME and self.eps_pfy is None

    def defence(self, shell: Shell) -> Defence:
        """The model behind its purifier, on the command's device."""
        model = zoo.load(self.model, device=shell.device, gradient=self.gradient)
        if self.bare:
            return Defence(model)
        own = purifier_of(model, self.purifier, self.eps_pfy, prior=self.prior, seed=self.seed)
        return Defence(model, own)

    def images(self, root: Path | None, classes: Sequence[str]) -> Dataset:
        """The images, on the CPU; `classes` are those of the run."""
        return library.load(self.data, self.split, root=root).numbered_by(classes).take(self.limit)


def asked(folder: RunFolder, *, model: str | None = None, data: str | None = None) -> Asked:
    """What the run was asked for; `model` and `data` replace its own, where files lie elsewhere now.

    A run made from Python, which asked for nothing by name, is taken to be about the model and data of its plan.
    """
    plan = folder.plan()
    kept = folder.read_fact(COMMAND_FACT)
    if kept is None:
        bare = not plan["purifies"]
        kept = Asked(
            model=plan["target"]["name"],
            gradient=None,
            eps_pfy=None if bare else str(plan["target"]["defence"]["eps"]),
            data=plan["data"]["name"],
            split=plan["data"]["split"],
            limit=plan["data"]["n"],
            command="",
        ).as_json()
    try:
        found = Asked(**kept)
        texts = (found.model, found.data, found.split, found.command, found.purifier)
        choices = (found.gradient, found.eps_pfy, found.prior)
        if not (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(choice, str | None) for choice in choices)
            and all(isinstance(count, int) for count in (found.limit, found.seed))
        ):
            raise TypeError("a value of another type")
    except TypeError as error:
        where = folder.path / "facts" / f"{COMMAND_FACT}.json"
        raise FileError(f"{where}: not what a run writes ({error}); repeat the command that began the run.") from error
    changes = {"model": model, "data": data}
    return Asked(**{**asdict(found), **{key: value for key, value in changes.items() if value is not None}})
