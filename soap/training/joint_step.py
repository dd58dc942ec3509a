"""One optimisation step, wholly on the device.

Gather, augment, attack, joint losses, backward, update: nothing in it waits for the host. On a GPU the step is
recorded as a CUDA graph after a few plain ones and replayed from then on, for small networks are bound by the
launching of their kernels.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn import functional as F

from soap._runtime import devices, distributed, seeding
from soap._runtime.isolation import frozen
from soap.auxiliary import JointLosses, JointModel, accuracy
from soap.shapes import Tensor
from soap.training.schedule import AUGMENTATIONS, Schedule

PLAIN_STEPS = 3
"""Steps before recording: they load kernels, compile if asked to, and make the momentum buffers."""


class NonFiniteError(Exception):
    """The loss of a step, or its gradient, is no number; the weights are those before it."""


@runtime_checkable
class Perturbs(Protocol):
    """An attack, as far as adversarial training knows it."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Adversarial examples for a batch."""


class Stepper:
    """Takes steps on `model` over the images `x` with labels `y`, which lie on the device.

    `sums` adds up classification loss, auxiliary loss and accuracy on the device until it is zeroed.

    From a loss or a gradient that is no number no update is made. Off the GPU that is a `NonFiniteError` at once. On
    a GPU, where nothing waits for the host, this step and all after it leave weights and momentum alone, and `skipped`
    tells how many they are. The running statistics of batch norms have seen the batch by then.

    Of several processes each takes its part of a batch, with the random numbers that its rows have in one process
    alone (but for dropout and the attack's own draws), and goes on with the mean of all gradients and losses. Batch
    norms normalise by the process's own part; their running statistics are means over the processes, the same in all.
    """

    def __init__(
        self,
        model: JointModel,
        x: Tensor,
        y: Tensor,
        schedule: Schedule,
        *,
        attack: Perturbs | None,
        precision: str,
        compiled: bool,
    ) -> None:
        self.model, self.x, self.y = model, x, y
        self.schedule, self.attack, self.precision = schedule, attack, precision
        self.device = x.device
        self.ranks = distributed.here()
        self._statistics = [
            value
            for module in model.modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            for value in module.buffers(recurse=False)
            if value.is_floating_point()
        ]
        on_gpu = x.is_cuda
        # A graph reads its learning rate from memory, which takes the fused update.
        self.rate = torch.tensor(schedule.lr, device=x.device) if on_gpu else schedule.lr
        self.optimiser = torch.optim.SGD(
            model.parameters(),
            lr=self.rate,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
            fused=on_gpu,
        )
        self.losses = torch.compile(self._losses) if compiled else self._losses
        self.generator = torch.Generator(x.device)
        self.sums = torch.zeros(3, device=x.device)
        self._asked, self._made = 0, torch.zeros((), dtype=torch.int64, device=x.device)
        self._broken = torch.zeros((), device=x.device)  # 1 from the first loss on that is no number
        self._plain_steps_left = PLAIN_STEPS
        recordable = on_gpu and model.recordable and (attack is None or getattr(attack, "recordable", False))
        recordable = recordable and not self.ranks.many  # a message to others may fail, which no replay can tell
        self._stream = torch.cuda.Stream(x.device) if recordable else None  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rows: Tensor | None = None

    def __call__(self, rows: Tensor, *, seed: int, rate: float) -> None:
        """One step on the images `rows`, drawing from `seed`, at learning rate `rate`."""
        self._asked += 1
        self.generator.manual_seed(seed)
        # Dropout draws from the global state.
        torch.manual_seed(seed if self.ranks.first else seeding.seed_for(seed, self.ranks.rank))
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.optimiser.param_groups[0]["lr"] = rate
        if self._stream is None:
            self._step(rows)
        elif self._graph is not None and self._rows is not None:
            self._rows.copy_(rows)
            self._graph.replay()
        else:
            self._step_on(self._stream, rows)

    def skipped(self) -> int:
        """How many of the last steps made no update because a loss was no number; waits for the device."""
        return self._asked - int(self._made)

    def _step_on(self, stream: torch.cuda.Stream, rows: Tensor) -> None:
        """A plain step on the stream of the recording to come, or the recording itself and its first replay."""
        stream.wait_stream(torch.cuda.current_stream())
        if self._plain_steps_left > 0:
            self._plain_steps_left -= 1
            with torch.cuda.stream(stream):
                self._step(rows)
            torch.cuda.current_stream().wait_stream(stream)
            return
        self._rows = rows.clone()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._step(self._rows)
        self._graph = graph
        graph.replay()

    def _step(self, rows: Tensor) -> None:
        x, y = self.x[rows], self.y[rows]
        for name in self.schedule.augment:
            x = AUGMENTATIONS[name](x, self.generator)
        if self.ranks.many:
            part = self.ranks.part(len(x))
            x, y = x[part], y[part]
        with devices.autocast(self.device, self.precision):
            if self.attack is not None:
                with frozen(self.model):
                    x = self.attack.perturb(self.model, x, y)
            with distributed.sharing(self.ranks, len(x)):
                losses = self.losses(x, y)
        loss = losses.classification + self.model.alpha * losses.auxiliary
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        told = torch.stack([part.detach().float() for part in losses])
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        loss = loss.detach()
        if self.ranks.many:
            self.ranks.average([*gradients, loss, told, *self._statistics])
        self._guard(loss, gradients)
        self.optimiser.step()
        self.sums += told

    def _guard(self, loss: Tensor, gradients: list[Tensor]) -> None:
        """Hold the update back where loss or gradient are no numbers."""
        finite = torch.isfinite(loss + torch.nn.utils.get_total_norm(gradients))
        if not loss.is_cuda:
            if not finite:
                raise NonFiniteError
        else:
            self._broken += (1 - self._broken) * ~finite
            self.optimiser.found_inf = self._broken  # type: ignore[attr-defined]  # the fused update looks at it
        self._made += self._broken == 0

    def _losses(self, x: Tensor, y: Tensor) -> JointLosses:
        if self.model.purifiable:
            return self.model.auxiliary.losses(self.model, x, y, self.generator)
        logits = self.model(x)
        return JointLosses(F.cross_entropy(logits, y), logits.new_zeros(()), accuracy(logits, y))
