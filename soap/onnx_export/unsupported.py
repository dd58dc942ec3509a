"""Explain a failed export: the operator that cannot be exported, and the module of the network that calls it."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from soap.shapes import Tensor

OPERATOR = re.compile(r"(?:^|op='|torch\.ops\.)(aten\.\w+)")
"""An operator in a message of the exporter; the first one is the reason."""

READS_VALUES = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.unique", "aten._unique2")
"""Operators whose Python number or whose shape depends on the values of a tensor."""


class _CallingModules(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records by operator the innermost module that is the first to call it."""

    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracker = tracker
        self.found: dict[str, str] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found.setdefault(str(function.overloadpacket), max(self.tracker.parents, key=len))
        return function(*args, **(kwargs or {}))


def export_problem(error: Exception, function: Callable[..., Any], examples: Sequence[Tensor]) -> str:
    """Why `function` cannot be exported, from the error of torch, and what to do."""
    found = OPERATOR.search(str(error))
    if found is None:
        return f"{str(error).strip().splitlines()[0]} Use operators of torch only, for batches of any size."
    operator = found[1]
    with torch.no_grad(), ModuleTracker() as tracker, _CallingModules(tracker) as modules:
        function(*examples)
    # The name of a module begins with the class of the network. "Global": no module calls the operator.
    _, _, name = modules.found.get(operator.removesuffix("_backward"), "").partition(".")
    where = f"the module {name} uses" if name else "it uses"
    if operator in READS_VALUES:
        return f"{where} {operator}, which depends on pixel values (.item(), `if`, a mask); use torch.where instead."
    return f"{where} {operator}, which the exporter does not support; replace it, or leave out this part."
