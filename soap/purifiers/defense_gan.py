"""Defense-GAN (Samangouei et al. 2018): replace an image by the nearest output of a generator.

For every image, gradient descent with momentum from several random starts searches z* = argmin |G(z) - x|^2. The
purified image is G(z*) of the best start. A perturbation that the generator cannot produce is removed.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from soap import validate
from soap._runtime import devices, seeding
from soap._runtime.cuda_graphs import map_samples, release_graphs, replayed
from soap._runtime.isolation import isolated
from soap._runtime.progress import purifying
from soap._runtime.splitting import autograd_bytes, in_chunks
from soap.descent import output_and_gradient
from soap.errors import InputError
from soap.purifiers.purifier import Purified, Specified
from soap.shapes import Float, Tensor

MAX_CONCURRENT_IMAGES = {"cpu": 1, "cuda": 8}
"""Images projected at the same time, each by its own kernels. In a common batch a GPU rounds differently for another
number or order of images, and the descent amplifies that to a different image."""

DECAY_START, DECAY_FACTOR = 0.8, 0.1
"""The last fifth of the steps is a tenth as long, as in the authors' code: long steps oscillate around the minimum."""

MAX_STARTS = 10_000
"""A thousand times the paper's number."""


class DefenseGAN(Specified):
    """`DefenseGAN(generator)(x)` returns the generator's nearest image for every image of `x`.

    generator: G(z), with its `latent` size and the `input_shape` of its images, e.g. from `soap.zoo.load_prior`.
    steps: L. starts: R, drawn once from `seed` and equal for all images, so that a result does not depend on the other
    samples of the batch. step_size, momentum: of the descent on the mean squared error over pixels.
    max_memory: limit in bytes for the working set. Larger batches are split, with the same result. If memory runs out
    in spite of it, the part is halved and repeated.
    """

    gradient = "straight-through"
    setting_names = ("steps", "starts", "step_size", "momentum", "seed")

    def __init__(
        self,
        generator: nn.Module,
        *,
        steps: int = 200,
        starts: int = 10,
        step_size: float = 10.0,
        momentum: float = 0.7,
        seed: int = 0,
        max_memory: int | None = None,
    ) -> None:
        validate.at_least("steps (L)", steps, 1)
        validate.at_least("starts (R)", starts, 1)
        if starts > MAX_STARTS:
            raise InputError(f"starts (R) is {starts}, expected at most {MAX_STARTS}: all are kept in memory.")
        validate.at_least("seed", seed, 0)
        validate.positive("step_size", step_size)
        if not 0 <= momentum < 1:
            raise InputError(f"momentum is {momentum!r}, expected at least 0 and below 1.")
        latent = getattr(generator, "latent", None)
        if not isinstance(latent, int) or getattr(generator, "input_shape", None) is None:
            raise InputError(
                f"got {type(generator).__name__} as the generator, expected a module G(z) with `latent`, the size "
                "of z, and `input_shape`, the shape of its images; see soap.models.Generator."
            )
        self.generator = self.prior = generator
        self.max_memory = max_memory
        self.steps, self.starts, self.step_size, self.momentum, self.seed = steps, starts, step_size, momentum, seed
        draws = torch.Generator().manual_seed(seeding.seed_for(seed, 0))  # on the CPU: all devices get the same numbers
        self._starts = torch.randn(starts, latent, generator=draws, dtype=torch.float64)

    def settings(self) -> dict[str, Any]:
        """Return the name of the generator and the settings."""
        return {"generator": getattr(self.generator, "name", type(self.generator).__name__), **super().settings()}

    def __call__(self, x: Float[Tensor, "batch c h w"], *, progress: bool = True) -> Purified:
        """Return the purified batch. Inputs are not modified.

        progress: show a bar in terminals and notebooks if it takes more than two seconds.
        `eps` of the result is the largest change of a pixel. The losses are means over pixels of (G(z) - x)^2: of the
        best start before the descent, and of the selected image.
        """
        validate.inputs(x, self.generator)
        starts = self._starts.to(x).expand(len(x), -1, -1)
        with isolated(self.generator), torch.no_grad(), purifying(progress):
            replay = partial(replayed, self.generator, repr(self), self._project)
            rows = self._rows_at_once(x, starts)
            parts = in_chunks(
                replay, x.detach(), starts, max_rows=rows, release=partial(release_graphs, self.generator)
            )
        return Purified(**dict(zip(("x", "eps", "loss_before", "loss_after"), parts, strict=True)), before=x.detach())

    def _project(self, x: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
        """Return images, largest changes, and errors before and after, all [batch, ...]; nothing waits for the host."""
        with devices.cudnn_deterministic():
            return map_samples(self._project_one, x, starts)

    def _project_one(self, x: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
        """Return the same for one image [1, c, h, w] from its starts [1, R, latent]."""

        def upstream(images: Tensor) -> Tensor:  # the gradient of the errors in closed form saves their backward pass
            return (images - x) * (2 / x.numel())

        z, velocity = starts[0], torch.zeros_like(starts[0])
        before = self._errors(self.generator(z), x)
        for k in range(self.steps):
            _, gradient = output_and_gradient(self.generator, z, upstream)
            velocity = torch.add(gradient, velocity, alpha=self.momentum)
            z = torch.sub(z, velocity, alpha=self.step_size * (DECAY_FACTOR if k >= DECAY_START * self.steps else 1))
        images: Tensor = self.generator(z).clamp(0, 1)  # some generators have no sigmoid at the end
        after, choice = self._errors(images, x).min(0, keepdim=True)
        chosen = images.index_select(0, choice)
        return chosen, (chosen - x).abs().flatten(1).amax(1), before.amin(0, keepdim=True), after

    def _errors(self, images: Tensor, x: Tensor) -> Tensor:
        """Return the mean over pixels of (G(z) - x)^2 for every start."""
        return (images - x).square().flatten(1).mean(1)

    def _rows_at_once(self, x: Tensor, starts: Tensor) -> int:
        """Return the number of images to project at once, by `MAX_CONCURRENT_IMAGES` and `max_memory`."""
        rows = MAX_CONCURRENT_IMAGES.get(x.device.type, 1)
        if self.max_memory is not None:
            # Each start needs the tensors that autograd keeps and about as much again in the backward pass.
            need = 2 * self.starts * (autograd_bytes(self.generator, starts[0, :1]) + 2 * x[0].nbytes)
            if self.max_memory < need:
                raise InputError(f"max_memory is {self.max_memory:,} bytes, but one image needs about {need:,} bytes.")
            rows = min(rows, self.max_memory // need)
        return 1 << rows.bit_length() - 1  # replays are padded to powers of two
