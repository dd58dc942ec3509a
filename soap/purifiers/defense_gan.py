"""Defense-GAN (Samangouei et al. 2018): an image is replaced by the nearest one that a generator can make.

For every image, z* = argmin |G(z) - x|^2 is sought by gradient descent with momentum from several random starts; the
purified image is G(z*) of the start that comes nearest. What no digit has, G cannot make.
"""

from functools import partial

import torch
from torch import nn

from soap import validate
from soap._runtime import devices, seeding
from soap._runtime.cuda_graphs import forget, replayed, row_by_row
from soap._runtime.isolation import isolated
from soap._runtime.splitting import by_rows, bytes_kept
from soap.descent import pull_back
from soap.errors import InputError
from soap.purifiers.soap import Purified
from soap.shapes import Float, Tensor
from soap.specs import Spec, call_text

SIDE_BY_SIDE = {"cpu": 1, "cuda": 8}
"""Images projected side by side, each by kernels of its own: in a common batch a GPU rounds otherwise for another
number of images or another place among them, and the descent makes another image of that."""

SLOW_FROM, SLOW = 0.8, 0.1
"""The last fifth of the steps is a tenth as long, as the authors' code has it: long ones circle the minimum."""

MOST_STARTS = 10_000
"""A thousand times as many as the paper's."""


class DefenseGAN:
    """`purify(x)` is the generator's image nearest to every image of `x`.

    generator: G(z), with its `latent` size and the `input_shape` of its images, e.g. from `soap.zoo.load_prior`.
    steps: L. starts: R, drawn once from `seed` and the same for every image, so that no answer depends on batch-mates.
    step_size, momentum: of the descent on the mean over pixels of the squared error.
    max_memory: bytes that the working set may take; larger batches are split, with the same result. Where memory runs
    out all the same, the part is halved and the work goes on.
    """

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
        if starts > MOST_STARTS:
            raise InputError(f"starts (R) is {starts}, want at most {MOST_STARTS}: all are kept in memory.")
        validate.at_least("seed", seed, 0)
        validate.positive("step_size", step_size)
        if not 0 <= momentum < 1:
            raise InputError(f"momentum is {momentum!r}, want at least 0 and below 1.")
        latent = getattr(generator, "latent", None)
        if not isinstance(latent, int) or getattr(generator, "input_shape", None) is None:
            raise InputError(
                f"got {type(generator).__name__} as the generator, want a module G(z) with `latent`, how many numbers "
                "z has, and `input_shape`, that of its images; see soap.models.Generator."
            )
        self.generator, self.max_memory = generator, max_memory
        self.steps, self.starts, self.step_size, self.momentum, self.seed = steps, starts, step_size, momentum, seed
        draws = torch.Generator().manual_seed(seeding.seed_for(seed, 0))  # on the CPU: the same on every device
        self._starts = torch.randn(starts, latent, generator=draws, dtype=torch.float64)

    def spec(self) -> Spec:
        """The settings, as result rows store them."""
        generator = getattr(self.generator, "name", type(self.generator).__name__)
        names = ("steps", "starts", "step_size", "momentum", "seed")
        return Spec(name="DefenseGAN", settings={"generator": generator, **{n: getattr(self, n) for n in names}})

    def __repr__(self) -> str:
        return call_text(self.spec())

    def __call__(self, x: Float[Tensor, "batch c h w"]) -> Purified:
        """Purify a batch; inputs are not changed.

        The result's `eps` is the largest change of a pixel. Losses are means over pixels of (G(z) - x)^2: that of the
        best start before the descent, and that of the image chosen.
        """
        validate.inputs(x, self.generator)
        starts = self._starts.to(x).expand(len(x), -1, -1)
        with isolated(self.generator), torch.no_grad():
            replay = partial(replayed, self.generator, repr(self), self._project)
            rows = self._rows_at_once(x, starts)
            parts = by_rows(replay, x.detach(), starts, most=rows, free=partial(forget, self.generator))
        return Purified(**dict(zip(("x", "eps", "loss_before", "loss_after"), parts, strict=True)))

    def _project(self, x: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
        """Images, largest changes, errors before and after, all [batch, ...]; nothing in it waits for the host."""
        with devices.cudnn_deterministic():
            return row_by_row(self._project_one, x, starts)

    def _project_one(self, x: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
        """The same of one image [1, c, h, w] from its starts [1, R, latent]."""

        def upstream(images: Tensor) -> Tensor:  # the errors' gradient, written down: it spares their own pass back
            return (images - x) * (2 / x.numel())

        z, velocity = starts[0], torch.zeros_like(starts[0])
        before = self._errors(self.generator(z), x)
        for k in range(self.steps):
            _, gradient = pull_back(self.generator, z, upstream)
            velocity = torch.add(gradient, velocity, alpha=self.momentum)
            z = torch.sub(z, velocity, alpha=self.step_size * (SLOW if k >= SLOW_FROM * self.steps else 1))
        images: Tensor = self.generator(z).clamp(0, 1)  # not every generator ends in a sigmoid
        after, choice = self._errors(images, x).min(0, keepdim=True)
        chosen = images.index_select(0, choice)
        return chosen, (chosen - x).abs().flatten(1).amax(1), before.amin(0, keepdim=True), after

    def _errors(self, images: Tensor, x: Tensor) -> Tensor:
        """The mean over pixels of (G(z) - x)^2, of every start."""
        return (images - x).square().flatten(1).mean(1)

    def _rows_at_once(self, x: Tensor, starts: Tensor) -> int:
        """How many images to take at once: no more than pays, and than keep the working set within `max_memory`."""
        rows = SIDE_BY_SIDE.get(x.device.type, 1)
        if self.max_memory is not None:
            # Each start takes what autograd keeps of it and about as much again on the way back.
            need = 2 * self.starts * (bytes_kept(self.generator, starts[0, :1]) + 2 * x[0].nbytes)
            if self.max_memory < need:
                raise InputError(f"max_memory is {self.max_memory:,} bytes, but one image needs about {need:,}.")
            rows = min(rows, self.max_memory // need)
        return 1 << rows.bit_length() - 1  # a power of two: what a replay is padded to
