"""Run batches in a process of their own, so that reading and refusing requests does not slow them down.

A thread waits for Python's interpreter lock after every operation of torch. Under ten times the load that the service
can handle, this made a batch twice as slow. The process is forked before torch starts threads. It ends with its parent.
"""

import multiprocessing
import os
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from soap._runtime.allocator import return_free_memory
from soap.auxiliary import JointModel
from soap.errors import SoapError
from soap.recipes.own_network import Factory
from soap.serve import batching
from soap.serve.errors import place_of
from soap.serve.inference import TRIM_INTERVAL_S, open_models
from soap.serve.trajectories import Operation, Trajectory
from soap.shapes import Tensor

KIB_PER_MIB = 1024


@dataclass(frozen=True, kw_only=True)
class Work:
    """A batch on its way to the process: the arguments of `batching.run_batch`, the model by its name.

    Images and trajectories are sent as NumPy arrays: torch would send its tensors through shared memory, with an open
    file for each.
    """

    operation: Operation
    model: str
    images: Sequence[Any]
    labels: Sequence[int | None]
    deadline: float


class ModelProcess:
    """A process with the models of a service on the CPU. `run_batch` replaces `batching.run_batch`.

    max_memory_mib: the process ends once it has used more memory. When it ends, its parent ends with status 1, and the
    server replaces both.
    """

    def __init__(self, models: Sequence[str], module: Factory | None, max_memory_mib: int | None) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        ours = self._connection
        self._process = context.Process(target=_serve, args=(theirs, ours, models, module, max_memory_mib), daemon=True)
        self._process.start()
        theirs.close()
        self._lock, self._stopping = threading.Lock(), False
        self._watch = threading.Thread(target=self._end_with_process, daemon=True)
        self._watch.start()

    def run_batch(
        self,
        operation: Operation,
        model: JointModel,
        images: Sequence[Tensor],
        labels: Sequence[int | None],
        deadline: float,
    ) -> list[Trajectory]:
        """As `batching.run_batch`; batches of several models run one after another."""
        arrays = [image.numpy() for image in images]
        work = Work(operation=operation, model=model.name, images=arrays, labels=labels, deadline=deadline)
        with self._lock:
            self._connection.send(work)
            found = self._connection.recv()
        if isinstance(found, Exception):
            raise found
        return [Trajectory(**_converted(one, np.ndarray, torch.from_numpy)) for one in found]

    def stop(self) -> None:
        """End the process; no batch may run."""
        self._stopping = True
        self._connection.close()  # the process reads the end of its input
        self._watch.join()

    def _end_with_process(self) -> None:
        wait([self._process.sentinel])
        if not self._stopping:
            os._exit(1)


def _serve(
    connection: Connection,
    parents_end: Connection,
    models: Sequence[str],
    module: Factory | None,
    max_memory_mib: int | None,
) -> None:
    """Load the models and run one batch after another, until the parent closes its end of the connection or ends."""
    parents_end.close()  # this process has a copy, so the connection would stay open without the parent
    try:
        served = {one.model.name: one.model for one in open_models(models, "cpu", module)}
    except SoapError:  # the parent, which loads them as well, reports it
        connection.poll(None)
        return
    while True:
        try:
            while not connection.poll(TRIM_INTERVAL_S):
                return_free_memory()
            connection.send(_run(served, connection.recv()))
        except (EOFError, OSError):
            return
        if max_memory_mib and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > max_memory_mib * KIB_PER_MIB:
            return


def _run(models: dict[str, JointModel], work: Work) -> list[dict[str, Any]] | Exception:
    images = [torch.from_numpy(image) for image in work.images]
    try:
        found = batching.run_batch(work.operation, models[work.model], images, work.labels, work.deadline)
    except Exception as error:  # it belongs to this batch
        error.place = place_of(error)  # type: ignore[attr-defined]  # its traceback is not sent
        return error
    return [_converted(vars(one), Tensor, Tensor.numpy) for one in found]


def _converted(values: Mapping[str, Any], kind: type, convert: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: convert(value) if isinstance(value, kind) else value for name, value in values.items()}
