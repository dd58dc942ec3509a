"""Shape annotations for public signatures, e.g. `Float[Tensor, "batch *shape"]`.

They are jaxtyping's where it is installed (the tests then check every call at run time); elsewhere they
are documentation and cost nothing.
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
            """Stand-in: `Float[Tensor, "batch"]` is `Tensor`."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Int = Float

__all__ = ["Float", "Int", "Tensor"]
