"""Models and images for benchmarks: trained or random weights, real images or noise."""

from dataclasses import dataclass
from pathlib import Path

import torch

from soap import data as library
from soap import recipes, zoo
from soap._runtime import seeding
from soap._runtime.isolation import isolated, preserved_random_state
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.data.sources import SOURCES
from soap.errors import FileError, unknown
from soap.recipes import Recipe
from soap.shapes import Float, Tensor

BATCH_NORM_PASSES = 8
"""Training-mode passes that give a network with random weights its batch-norm statistics."""

MNIST_SHAPE = (1, 28, 28)

RANDOM_WEIGHTS_NOTE = (
    "The weights are random, with batch-norm statistics from noise; a pass costs the same as with trained."
)


@dataclass(frozen=True, kw_only=True)
class BenchModel:
    """A model in evaluation mode with its recipe; `seed` is that of random weights, None for trained ones."""

    model: JointModel
    recipe: Recipe
    seed: int | None

    @property
    def weights(self) -> str:
        """The origin of the weights."""
        return "trained" if self.seed is None else f"random, seed {self.seed}"

    @property
    def notes(self) -> tuple[str, ...]:
        """A note for readers about random weights."""
        return () if self.seed is None else (RANDOM_WEIGHTS_NOTE,)


def load_bench_model(name: str, device: torch.device, seed: int = 0) -> BenchModel:
    """A bundled model, the weights at a path, or a recipe with random weights, which cost the same."""
    if name in zoo.names() or name.endswith(".safetensors"):
        model = zoo.load(name, device=device)
        return BenchModel(model=model, recipe=zoo.recipe(name), seed=None)
    if name not in recipes.names() and not name.endswith(".toml"):
        raise unknown("model or recipe", name, {*zoo.names(), *recipes.names()})
    recipe = recipes.revised(recipes.read(name), seed=seed)
    model = recipes.build(recipe).to(device).eval()
    _set_batch_norm_statistics(model, device, seed)
    return BenchModel(model=model, recipe=recipe, seed=seed)


def bench_images(
    model: BenchModel, count: int, device: torch.device, *, seed: int = 0, root: Path | None = None
) -> tuple[Float[Tensor, "batch *shape"], str]:
    """Test images of the recipe's data set (digits: bundled ones) and their source; noise if it is not present."""
    shape = model.model.input_shape
    name = "mnist-mini" if shape == MNIST_SHAPE else model.recipe.data
    try:
        x = library.load(name, "test", root=root).x
    except FileError:  # the data set is not under the data root
        noise = torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))
        return noise.to(device), f"uniform noise, seed {seed}"
    again = -(-count // len(x))
    repeated = f", {again} times over" if again > 1 else ""
    return x.repeat(again, 1, 1, 1)[:count].to(device), f"{name}/test{repeated}"


def training_recipe(name: str) -> Recipe:
    """A recipe by name or path, or the recipe of trained weights."""
    return zoo.recipe(name) if name.endswith(".safetensors") else recipes.read(name)


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


def _set_batch_norm_statistics(model: JointModel, device: torch.device, seed: int) -> None:
    """Estimate batch-norm statistics from noise; without them activations of random weights grow or vanish."""
    generator = torch.Generator().manual_seed(seeding.seed_for(seed, 1))
    with preserved_random_state(), torch.no_grad():
        torch.manual_seed(seed)  # dropout uses the global random state
        model.train()
        for _ in range(BATCH_NORM_PASSES):
            model(torch.rand(64, *model.input_shape, generator=generator).to(device))
        model.eval()
