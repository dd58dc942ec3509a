"""Process a batch in chunks that fit into memory, with the same result."""

from collections.abc import Callable

import torch

from soap._runtime import progress
from soap.shapes import Tensor


def in_chunks(
    function: Callable[..., tuple[Tensor, ...]],
    *inputs: Tensor,
    max_rows: int | None = None,
    min_rows: int = 1,
    release: Callable[[], None],
) -> tuple[Tensor, ...]:
    """Return `function(*inputs)`, computed on at most `max_rows` samples at a time (None: all at once).

    A chunk of fewer than min(min_rows, max_rows) samples is padded; the outputs of the padding are dropped.

    When memory runs out, `release` is called to free some, the chunk size is halved and the work continues. If a
    single sample does not fit, the out-of-memory error is raised. Inside `purifying`, each chunk advances the bar.
    """
    rows = len(inputs[0])
    wanted = max(rows, min_rows)
    size, done, chunks = min(max_rows or wanted, wanted), 0, []
    while done < rows:
        try:
            chunk = (padded_to(tensor[done : done + size], min(min_rows, size)) for tensor in inputs)
            chunks.append(tuple(output[: rows - done] for output in function(*chunk)))
        except RuntimeError as error:
            if not _is_out_of_memory(error) or size == 1:
                raise
            size = -(-size // 2)
        else:
            done += size
            progress.report(min(done, rows), rows)
            continue
        release()  # outside the except clause, whose traceback keeps the failed chunk's tensors alive
    return chunks[0] if len(chunks) == 1 else tuple(torch.cat(column) for column in zip(*chunks, strict=True))


def padded_to(tensor: Tensor, rows: int) -> Tensor:
    """Return the tensor with at least `rows` rows, padded with copies of its first row."""
    missing = rows - len(tensor)
    return tensor if missing <= 0 else torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])


def _is_out_of_memory(error: RuntimeError) -> bool:
    # On the CPU torch raises a plain RuntimeError with one of these texts.
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in text or "can't allocate memory" in text


def autograd_bytes(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return the bytes that autograd saves for the backward pass of `function` at `x`, without `x` and leaf tensors."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not tensor.is_leaf or tensor.requires_grad:
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with torch.inference_mode(False), torch.enable_grad(), hooks:
        own = x.detach().clone()  # `x` may be a view of a large batch, whose whole storage would be counted
        function(own.requires_grad_())
    saved.pop(own.untyped_storage().data_ptr(), None)
    return sum(saved.values())
