"""One step of joint training, entirely on the device: gather, augment, attack, losses, backward, update.

Nothing waits for the host. On a GPU the step is recorded as a CUDA graph after a few plain steps and then replayed,
because the speed of small networks is limited by kernel launches.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn import functional as F

from soap._runtime import devices, distributed, seeding
from soap._runtime.isolation import frozen
from soap.attacks import PGD
from soap.auxiliary import JointLosses, JointModel, accuracy
from soap.errors import InputError
from soap.shapes import Tensor
from soap.training.adversarial import AdversarialTraining, check_one_run
from soap.training.certified import CertifiedTraining, certified_losses
from soap.training.schedule import Schedule, update_average

MakeOptimiser = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]

STEPS_BEFORE_RECORDING = 3
"""Plain steps that load kernels, compile if requested, and create the momentum buffers."""


class NonFiniteError(Exception):
    """The loss or gradient of a step is NaN or infinite; the weights are unchanged by the step."""


@runtime_checkable
class PerturbsImages(Protocol):
    """An attack as used by adversarial training."""

    def perturb(self, model: JointModel, x: Tensor, y: Tensor) -> Tensor:
        """Return adversarial examples of a batch."""


@dataclass(eq=False, repr=False)
class JointStep:
    """Trains `model` on the images `x` with labels `y`, which are on the device; one call is one step.

    make_optimiser: makes the optimiser of the parameters, instead of SGD by the schedule. The schedule then scales its
    own learning rates: its rate divided by `schedule.lr`.

    `sums` accumulates classification loss, auxiliary loss and accuracy on the device.

    A NaN or infinite loss or gradient causes no update. On the CPU the step raises `NonFiniteError`. On a GPU, where
    nothing waits for the host, this and all later steps leave weights and momentum unchanged, and `skipped` returns
    their number. Batch-norm statistics have seen the batch by then.

    With several processes each takes its part of the batch, with the same random numbers per sample as in a single
    process (except for dropout), and applies the mean of all gradients. Batch norms normalise
    over the process's own part; their running statistics are averaged over the processes.
    """

    model: JointModel
    x: Tensor
    y: Tensor
    schedule: Schedule
    _: KW_ONLY
    attack: PerturbsImages | None = None
    certified: CertifiedTraining | None = None
    precision: str = "fp32"
    compiled: bool = False
    make_optimiser: MakeOptimiser | None = None

    def __post_init__(self) -> None:
        model, schedule, device = self.model, self.schedule, self.x.device
        self.group = distributed.processes()
        self._trades: AdversarialTraining | None = None
        if isinstance(self.attack, AdversarialTraining):
            self.attack.check(model)
            self._trades = self.attack if self.attack.trades_beta is not None else None
        method = self.attack.attack if isinstance(self.attack, AdversarialTraining) else self.attack
        self._pgd = method if isinstance(method, PGD) else None
        check_one_run(self._pgd)
        self.share = torch.zeros((), device=device)  # of the radius in certified training
        self._statistics = [
            value
            for module in model.modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            for value in module.buffers(recurse=False)
            if value.is_floating_point()
        ]
        on_gpu = device.type == "cuda"
        # A CUDA graph reads its learning rate from device memory, which needs the fused optimiser.
        self.rate = torch.tensor(schedule.lr, device=device) if on_gpu else schedule.lr
        self.optimiser = self._own_optimiser() or torch.optim.SGD(
            model.parameters(),
            lr=self.rate,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
            fused=on_gpu,
        )
        self._own_rates = [group["lr"] for group in self.optimiser.param_groups]
        self._step_number = torch.zeros((), device=device)
        self.average = deepcopy(model).requires_grad_(False) if schedule.average else None
        self.losses = torch.compile(self._losses) if self.compiled else self._losses
        self.generator = torch.Generator(device)
        self.sums = torch.zeros(3, device=device)
        self._steps_called, self._steps_made = 0, torch.zeros((), dtype=torch.int64, device=device)
        self._diverged = torch.zeros((), device=device)  # 1 after the first NaN or infinite loss
        self._plain_steps_left = STEPS_BEFORE_RECORDING
        recordable = on_gpu and model.recordable and self._attack_is_recordable()
        recordable = recordable and not self.group.is_distributed  # a replay cannot report a lost process
        recordable = recordable and self.make_optimiser is None  # it may wait for the host
        self._stream = torch.cuda.Stream(device) if recordable else None  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._indices: Tensor | None = None

    def __call__(self, indices: Tensor, *, seed: int, rate: float, step: int = 0, progress: float = 0.0) -> None:
        """Take one step on the images `indices` with random `seed` and learning rate `rate`.

        step: number of the step, from 0. progress: share of the training that is done, in [0, 1).
        """
        if self.average is not None:
            self._step_number.fill_(step)
        if self.certified is not None:
            self.share.fill_(self.certified.share(progress))
        self._steps_called += 1
        self.generator.manual_seed(seed)
        # Dropout is drawn in each process separately.
        torch.manual_seed(seed if self.group.is_main else seeding.seed_for(seed, self.group.rank))
        if self.make_optimiser is not None:
            for group, own in zip(self.optimiser.param_groups, self._own_rates, strict=True):
                group["lr"] = own * (rate / self.schedule.lr)
        elif isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.optimiser.param_groups[0]["lr"] = rate
        if self._stream is None:
            self._step(indices)
        elif self._graph is not None and self._indices is not None:
            self._indices.copy_(indices)
            self._graph.replay()
        else:
            self._step_on(self._stream, indices)

    def skipped(self) -> int:
        """Return how many of the last steps made no update after a NaN or infinite loss; waits for the device."""
        return self._steps_called - int(self._steps_made)

    def _attack_is_recordable(self) -> bool:
        """Whether the attack never waits for the host; random starts of PGD are drawn by the step itself."""
        if isinstance(self.attack, AdversarialTraining):
            return self.attack.recordable(self.model)
        return self.attack is None or self._pgd is not None or bool(getattr(self.attack, "recordable", False))

    def _own_optimiser(self) -> torch.optim.Optimizer | None:
        """The optimiser of `make_optimiser`, checked; None without one."""
        if self.make_optimiser is None:
            return None
        made = self.make_optimiser(self.model.parameters())
        if not isinstance(made, torch.optim.Optimizer) or isinstance(made, torch.optim.LBFGS):
            raise InputError(
                f"optimiser returned a {type(made).__name__}, expected an optimiser of torch.optim whose step needs no "
                "closure, e.g. optimiser=lambda parameters: torch.optim.Adam(parameters, 1e-3)."
            )
        return made

    def _step_on(self, stream: torch.cuda.Stream, indices: Tensor) -> None:
        """Take a plain step on the recording stream, or record the CUDA graph and replay it once."""
        stream.wait_stream(torch.cuda.current_stream())
        if self._plain_steps_left > 0:
            self._plain_steps_left -= 1
            with torch.cuda.stream(stream):
                self._step(indices)
            torch.cuda.current_stream().wait_stream(stream)
            return
        self._indices = indices.clone()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._step(self._indices)
        self._graph = graph
        graph.replay()

    def _step(self, indices: Tensor) -> None:
        x, y = self.schedule.augmented(self.x[indices], self.generator), self.y[indices]
        start = self._pgd.random_start(x, self.generator) if self._pgd and self._pgd.start == "random" else None
        if self.group.is_distributed:
            part = self.group.shard(len(x))
            x, y, start = x[part], y[part], None if start is None else start[part]
        with devices.autocast(self.x.device, self.precision):
            clean = x
            if self.attack is not None:
                with frozen(self.model):
                    drawn = {} if start is None else {"start": start}
                    x = self.attack.perturb(self.model, clean, y, **drawn)
                    if self._trades is not None:
                        clean = self._trades.purified(self.model, clean)
            with distributed.shared_batch(self.group, len(x)):
                losses = self.losses(x, y, clean)
        loss = losses.classification + self.model.alpha * losses.auxiliary
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        means = torch.stack([part.detach().float() for part in losses])
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        loss = loss.detach()
        if self.group.is_distributed:
            self.group.average([*gradients, loss, means, *self._statistics])
        self._guard(loss, gradients)
        self.optimiser.step()
        if self.average is not None:
            update_average(self.average, self.model, self._step_number, self.schedule.average)
        self.sums += means

    def _guard(self, loss: Tensor, gradients: list[Tensor]) -> None:
        """Prevent the update if the loss or gradient is NaN or infinite."""
        finite = torch.isfinite(loss + torch.nn.utils.get_total_norm(gradients))
        if not loss.is_cuda or self.make_optimiser is not None:
            if not finite:
                raise NonFiniteError
        else:
            self._diverged += (1 - self._diverged) * ~finite
            self.optimiser.found_inf = self._diverged  # type: ignore[attr-defined]  # read by the fused optimiser
        self._steps_made += self._diverged == 0

    def _losses(self, x: Tensor, y: Tensor, clean: Tensor) -> JointLosses:
        """Return the losses on the images `x`, which are adversarial if there is an attack, and `clean` if not."""
        if self._trades is not None:
            return self._trades.trades_losses(self.model, clean, x, y)
        if self.certified is not None:
            return certified_losses(self.model, x, y, self.certified, self.share)
        if self.model.purifiable:
            return self.model.auxiliary.losses(self.model, x, y, self.generator)
        logits = self.model(x)
        return JointLosses(F.cross_entropy(logits, y), logits.new_zeros(()), accuracy(logits, y))
