"""Models and images for benchmarks: trained or random weights, real images or noise."""

from dataclasses import dataclass
from pathlib import Path

import torch

from soap import data as library
from soap import recipes, zoo
from soap._runtime.isolation import isolated
from soap.auxiliary import JointModel
from soap.bench.measures import Watch
from soap.data import Dataset
from soap.data.sources import SOURCES
from soap.errors import FileError, unknown
from soap.recipes import Recipe
from soap.shapes import Float, Tensor

MNIST_SHAPE = (1, 28, 28)


@dataclass(frozen=True, kw_only=True)
class BenchSetup:
    """What all benchmarks of a command share. rate: operations a second of the device. root: folder of data."""

    device: torch.device
    rate: float
    seed: int = 0
    root: Path | None = None
    watch: Watch = lambda what, done, total: None


@dataclass(frozen=True, kw_only=True)
class BenchModel:
    """A model in evaluation mode with its recipe, and the origin of its weights in words."""

    model: JointModel
    recipe: Recipe
    weights: str


def load_bench_model(name: str, device: torch.device, seed: int = 0) -> BenchModel:
    """A bundled model, the weights at a path, or a recipe with random weights, whose passes cost the same."""
    if name in zoo.names() or name.endswith(".safetensors"):
        return BenchModel(model=zoo.load(name, device=device), recipe=zoo.recipe(name), weights="trained")
    if name not in recipes.names() and not name.endswith(".toml"):
        raise unknown("model or recipe", name, {*zoo.names(), *recipes.names()})
    recipe = recipes.revised(recipes.read(name), seed=seed)
    return BenchModel(
        model=recipes.build(recipe).to(device).eval(), recipe=recipe, weights=f"random, seed {recipe.training.seed}"
    )


def bench_images(setup: BenchSetup, bench: BenchModel, count: int) -> tuple[Float[Tensor, "batch *shape"], str]:
    """Test images of the recipe's data set (digits: bundled ones) and their source; noise if it is not present."""
    shape = bench.model.input_shape
    name = "mnist-mini" if shape == MNIST_SHAPE else bench.recipe.data
    try:
        x = library.load(name, "test", root=setup.root).x
    except FileError:  # the data set is not under the data root
        noise = torch.rand(count, *shape, generator=torch.Generator().manual_seed(setup.seed))
        return noise.to(setup.device), f"uniform noise, seed {setup.seed}"
    again = -(-count // len(x))
    repeated = f", {again} times over" if again > 1 else ""
    return x.repeat(again, 1, 1, 1)[:count].to(setup.device), f"{name}/test{repeated}"


def training_set(recipe: Recipe, model: JointModel, limit: int | None, root: Path | None = None) -> Dataset:
    """The recipe's training images, or as much noise if they are not under the data root; at most `limit`."""
    present = {one.name: one.present for one in library.status(root)}
    if present.get(recipe.data, True):
        full = library.load(recipe.data, "train", root=root)
        return full.take(None if limit is None else min(limit, len(full)))
    count = epoch_images(recipe) if limit is None else min(limit, epoch_images(recipe))
    seed = recipe.training.seed
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, *model.input_shape, generator=generator)
    y = torch.randint(model.classes, (count,), generator=generator)
    classes = tuple(map(str, range(model.classes)))
    return Dataset(name=f"uniform noise, seed {seed}", split="train", x=x, y=y, classes=classes, sha256=f"seed-{seed}")


def epoch_images(recipe: Recipe, root: Path | None = None) -> int:
    """The number of training images of the recipe's data set, present or not."""
    if recipe.data in SOURCES:
        return SOURCES[recipe.data].counts["train"]
    return len(library.load(recipe.data, "train", root=root))


def predicted_labels(model: JointModel, x: Float[Tensor, "batch *shape"]) -> Tensor:
    """The predicted label of each image, computed a thousand at a time."""
    with isolated(model), torch.no_grad():
        return torch.cat([model(part).argmax(1) for part in torch.split(x, 1000)])
