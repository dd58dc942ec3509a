"""Shape annotations for public signatures, e.g. `Float[Tensor, "batch *shape"]`.

If jaxtyping is installed, these are its types, and the tests check every call against them. Otherwise they are
documentation without cost.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int
else:
    try:
        from jaxtyping import Float, Int
    except ImportError:

        class Float:
            """Substitute without jaxtyping: `Float[Tensor, "batch"]` is `Tensor`."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Int = Float

__all__ = ["Float", "Int", "Tensor"]
