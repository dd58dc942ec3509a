"""DiffPure (Nie et al. 2022): add noise to an image, then remove it with a diffusion model.

The image is moved forward to step t* of the diffusion, where the noise hides a small perturbation, and then back to
step 0 by the model's reverse steps. The gradient is exact: autograd runs through every reverse step with its own noise,
and each step is computed again in the backward pass instead of being stored (Chen et al. 2016).
"""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from soap import validate
from soap._runtime.isolation import frozen
from soap._runtime.progress import report
from soap.errors import InputError
from soap.models.ddpm import DDPM, reverse_times, to_signed, to_unit
from soap.purifiers.purifier import ImageMap
from soap.shapes import Float, Tensor


class DiffPure(ImageMap):
    """`DiffPure(model)(x)` adds the noise of `t_star` steps of `model` to `x` and removes it by `steps` reverse steps.

    t_star: t*, in 1 ... T of the model. More removes larger perturbations, and more of the image. steps: reverse steps,
    equally spaced in 0 ... t*; t* of them are the sampler of Ho et al. 2020, fewer are faster.
    generator: of the noise, on the device of the images. None draws from torch's global generator, as dropout does:
    every call draws anew, and `torch.manual_seed` repeats a call.
    """

    random = True
    setting_names = ("t_star", "steps")

    def __init__(
        self, model: DDPM, *, t_star: int = 200, steps: int = 10, generator: torch.Generator | None = None
    ) -> None:
        if not isinstance(model, DDPM):
            raise InputError(f"got {validate.describe(model)}, expected a soap.models.DDPM: a diffusion model.")
        validate.at_least("t_star", t_star, 1)
        validate.at_least("steps", steps, 1)
        if t_star > model.steps:
            raise InputError(f"t_star is {t_star}, expected at most {model.steps}, the steps of the diffusion model.")
        self._times = reverse_times(t_star, steps)
        self.model = self.prior = model
        self.t_star, self.steps, self.generator = t_star, steps, generator

    def settings(self) -> dict[str, Any]:
        """Return the name of the model and the settings, as result rows store them."""
        return {"generator": self.model.name, **super().settings()}

    def images(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """Return the purified images."""
        times = [torch.full((len(x),), t, device=x.device) for t in self._times]
        point = self.model.noised(to_signed(x), times[0], self._draw(x))
        for step, (t, s) in enumerate(pairwise(times), 1):
            point = self._reverse(point, t, s, self._draw(x))
            report(step, len(times) - 1)
        return to_unit(point)

    def _reverse(self, point: Tensor, t: Tensor, s: Tensor, noise: Tensor) -> Tensor:
        """Return x_s; the noise is an argument, so that the second computation has the same."""
        if not (torch.is_grad_enabled() and point.requires_grad):
            return self.model.reverse_step(point, t, s, noise)
        step: Any = partial(checkpoint, self._frozen_step, use_reentrant=False, preserve_rng_state=False)
        made: Tensor = step(point, t, s, noise)
        return made

    def _frozen_step(self, *inputs: Tensor) -> Tensor:
        """Take a step; the backward pass computes it after `__call__` has returned, when the model is not frozen."""
        with frozen(self.model):
            return self.model.reverse_step(*inputs)

    def _draw(self, x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=self.generator, device=x.device, dtype=x.dtype)
