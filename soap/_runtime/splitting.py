"""A batch too large for the memory at hand, handled a part at a time with the same result."""

from collections.abc import Callable

import torch

from soap.shapes import Tensor


def in_chunks(
    function: Callable[..., tuple[Tensor, ...]],
    *inputs: Tensor,
    max_rows: int | None = None,
    min_rows: int = 1,
    release: Callable[[], None],
) -> tuple[Tensor, ...]:
    """`function(*inputs)` over at max_rows `max_rows` rows at a time (None: all), the outputs joined.

    A part of fewer than `min_rows` rows, or than `max_rows` if that is less, is padded, and the padding's outputs dropped.

    Where memory runs out, `release` is called, the part is halved, and the work goes on; a single row that does not fit
    is the caller's error.
    """
    rows = len(inputs[0])
    wanted = max(rows, min_rows)
    size, done, parts = min(max_rows or wanted, wanted), 0, []
    while done < rows:
        try:
            part = (padded_to(tensor[done : done + size], min(min_rows, size)) for tensor in inputs)
            parts.append(tuple(output[: rows - done] for output in function(*part)))
        except RuntimeError as error:
            if not _out_of_memory(error) or size == 1:
                raise
            size = -(-size // 2)
        else:
            done += size
            continue
        release()  # outside the except clause, whose traceback keeps the failed part's tensors alive
    return parts[0] if len(parts) == 1 else tuple(torch.cat(column) for column in zip(*parts, strict=True))


def padded_to(tensor: Tensor, rows: int) -> Tensor:
    """The tensor, made up to `rows` rows with copies of its first one."""
    missing = rows - len(tensor)
    return tensor if missing <= 0 else torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])


def _out_of_memory(error: RuntimeError) -> bool:
    """torch has a class for it on the GPU; on the CPU it is a plain RuntimeError that says so."""
    told = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in told or "can't allocate memory" in told


def autograd_bytes(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """How much memory autograd keeps for the backward pass of `function` at `x`, apart from `x` and leaves."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if not tensor.is_leaf or tensor.requires_grad:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with torch.inference_mode(False), torch.enable_grad(), hooks:
        own = x.detach().clone()  # `x` may be a row of a large batch, all of whose storage would be counted
        function(own.requires_grad_())
    seen.pop(own.untyped_storage().data_ptr(), None)
    return sum(seen.values())
