"""The paper's figures and ablations as data: title, caption, claims and inputs. `soap.paper.figures` draws them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from soap.auxiliary import JointModel
from soap.paper.claims.texts import Claim, claims_about
from soap.paper.epoch_times import NETWORKS, recipes_of
from soap.paper.figure_data import FigureData
from soap.paper.figure_inputs import (
    CurveInput,
    ExamplesInput,
    FigureInput,
    InputOptions,
    SweepInput,
    TimingInput,
    ViewsInput,
)

TASKS = ("mnist-fcn-dr", "cifar10-resnet18-rp", "cifar10-resnet18-lc")
"""One model a task, in the order of the paper's panels."""

FIGURE_INPUTS: dict[str, tuple[FigureInput, ...]] = {
    "figure-1": (),
    "figure-2": (ExamplesInput("mnist-fcn-dr"),),
    "figure-3": tuple(CurveInput(model) for model in TASKS),
    "figure-4": tuple(ExamplesInput(f"cifar10-wide-resnet28-{task}") for task in ("rp", "lc")),
    "figure-5": tuple(SweepInput("betas", model) for model in TASKS),
    "figure-6": (ViewsInput("cifar10", "horse"),),
    "figure-7": tuple(TimingInput(recipe) for network in NETWORKS for recipe in recipes_of(network)),
    "figure-8": tuple(ExamplesInput(f"mnist-{network}-dr") for network in ("fcn", "cnn")),
    "figure-9": tuple(ExamplesInput(f"cifar10-{network}-rp") for network in ("resnet18", "wide-resnet28")),
    "figure-10": tuple(ExamplesInput(f"cifar10-{network}-lc") for network in ("resnet18", "wide-resnet28")),
    "ablation-steps": tuple(SweepInput("steps", model) for model in TASKS),
    "ablation-rotation": (SweepInput("rotation", "cifar10-resnet18-rp"),),
    "ablation-radius": tuple(SweepInput("radii", model) for model in TASKS),
    "ablation-leaking": tuple(SweepInput("leaking", f"{network}-fgsm-at") for network in NETWORKS),
    "ablation-gradients": (SweepInput("gradients", "cifar10-resnet18-lc"),),
}


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure; title and caption are in our words."""

    name: str
    title: str
    caption: str
    inputs: tuple[FigureInput, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims about it."""
        return claims_about(self.name)

    @property
    def models(self) -> tuple[str, ...]:
        """Models whose weights `make_inputs` can use."""
        made = (one for one in self.inputs if isinstance(one, CurveInput | ExamplesInput | SweepInput))
        return tuple(dict.fromkeys(one.model for one in made))

    def missing(self, data: FigureData) -> list[str]:
        """Missing inputs in words; the figure is drawn without them and says so."""
        found = (one.missing(data) for one in self.inputs)
        return [words for words in found if words is not None]

    def make_inputs(self, models: Mapping[str, JointModel], options: InputOptions) -> list[str]:
        """Make the inputs that the given models (by name) allow; returns those that were made, in words.

        Files go to `options.folder`, rows to `options.store`. Existing ones from the same weights are not made again.
        `options.stop` is called between inputs and between batches.
        """
        return [one.need for one in self.inputs if not options.stop() and one.make(models, options)]


def _read() -> dict[str, PaperFigure]:
    words = tomllib.loads((resources.files(__package__) / "figures.toml").read_text(encoding="utf-8"))
    return {
        name: PaperFigure(name=name, title=words[name]["title"], caption=words[name]["caption"], inputs=inputs)
        for name, inputs in FIGURE_INPUTS.items()
    }


FIGURES: dict[str, PaperFigure] = _read()
"""Every figure by name, those of the paper first."""
