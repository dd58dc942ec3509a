"""The paper's figures as data: title, caption, and what each is drawn from.

They are drawn by `soap.report.paper_figures`, under the same names, from the same material.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from soap.auxiliary import JointModel
from soap.evaluation.gathered import Material
from soap.evaluation.transfer import Watch
from soap.paper.claims import Claim, claims_about
from soap.paper.pieces import Curve, Pictures, Piece, Swept, Timing, Views, Workbench
from soap.results import Store

TASKS = ("mnist-fcn-dr", "cifar10-resnet18-rp", "cifar10-resnet18-lc")
"""One model a task: those of Figures 3 and 5."""

METHODS = {"mnist-fcn": "dr", "mnist-cnn": "dr", "cifar10-resnet18": "rp lc", "cifar10-wide-resnet28": "rp lc"}

PIECES: dict[str, tuple[Piece, ...]] = {
    "figure-1": (),
    "figure-2": (Pictures("mnist-fcn-dr"),),
    "figure-3": tuple(Curve(model) for model in TASKS),
    "figure-4": tuple(Pictures(f"cifar10-wide-resnet28-{task}") for task in ("rp", "lc")),
    "figure-5": tuple(Swept("betas", model) for model in TASKS),
    "figure-6": (Views("cifar10", "horse"),),
    "figure-7": tuple(
        Timing(f"{network}-{method}")
        for network, own in METHODS.items()
        for method in ("no-def", "fgsm-at", "pgd-at", *own.split())
    ),
    "figure-8": tuple(Pictures(f"mnist-{network}-dr") for network in ("fcn", "cnn")),
    "figure-9": tuple(Pictures(f"cifar10-{network}-rp") for network in ("resnet18", "wide-resnet28")),
    "figure-10": tuple(Pictures(f"cifar10-{network}-lc") for network in ("resnet18", "wide-resnet28")),
    "ablation-steps": tuple(Swept("steps", model) for model in TASKS),
    "ablation-rotation": (Swept("rotation", "cifar10-resnet18-rp"),),
    "ablation-radius": tuple(Swept("radii", model) for model in TASKS),
    "ablation-leaking": tuple(Swept("leaking", f"{network}-fgsm-at") for network in METHODS),
    "ablation-gradients": (Swept("gradients", "cifar10-resnet18-lc"),),
}


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure; title and caption are in our own words."""

    name: str
    title: str
    caption: str
    pieces: tuple[Piece, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the paper's text claims of it."""
        return claims_about(self.name)

    @property
    def needs(self) -> tuple[str, ...]:
        """What it is drawn from, in words."""
        return tuple(piece.need for piece in self.pieces)

    @property
    def models(self) -> tuple[str, ...]:
        """The models whose weights `gather` can use."""
        made = (piece for piece in self.pieces if isinstance(piece, Curve | Pictures | Swept))
        return tuple(dict.fromkeys(piece.model for piece in made))

    def missing(self, material: Material) -> list[str]:
        """What is not at hand, in words; the figure is drawn without it, and says so."""
        found = (piece.missing(material) for piece in self.pieces)
        return [words for words in found if words is not None]

    def gather(
        self,
        models: Mapping[str, JointModel],
        *,
        folder: Path,
        store: Store,
        data_root: Path | None = None,
        limit: int | None = None,
        batch: int = 500,
        seed: int = 0,
        watch: Watch = lambda what, done, total: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        """Make what can be made from the models at hand (by name, on their own devices); what was made, in words.

        Files go to `folder`, rows to `store`; what is there already, from the same weights, is not made again. limit:
        measure rows on the first so many test images; None takes all. stop: asked between pieces and batches.
        """
        at = Workbench(
            folder=folder,
            store=store,
            data_root=data_root,
            limit=limit,
            batch=batch,
            seed=seed,
            watch=watch,
            stop=stop,
        )
        return [piece.need for piece in self.pieces if not stop() and piece.make(models, at)]


def _read() -> dict[str, PaperFigure]:
    text = (resources.files(__package__) / "figures.toml").read_text(encoding="utf-8")
    words = tomllib.loads(text)
    return {
        name: PaperFigure(
            name=name,
            title=words[name]["title"],
            caption=words[name]["caption"],
            pieces=pieces,
        )
        for name, pieces in PIECES.items()
    }


FIGURES: dict[str, PaperFigure] = _read()
"""Every figure by name, those of the paper first."""
