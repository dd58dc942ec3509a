"""Check arguments and raise an InputError that says what is expected.

Each tensor check reads the whole tensor once, which on a GPU waits for the device. Public functions therefore check on
entry, and inner loops do not check.
"""

import math

import torch
from torch import nn

from soap.errors import InputError
from soap.shapes import Tensor


def describe(x: object) -> str:
    """Return a short description of a value for an error message."""
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} tensor of shape {list(x.shape)} on {x.device}"
    return f"{type(x).__name__} {x!r:.60}"


def inputs(x: Tensor, model: object = None, bounds: tuple[float, float] = (0.0, 1.0)) -> None:
    """Check that `x` is a non-empty float batch, finite, inside `bounds`, with the model's shape, device and dtype."""
    low, high = bounds
    expected = f"a float tensor [batch, ...] with values in [{low:g}, {high:g}]"
    if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point():
        hint = "; divide 8-bit images by 255" if isinstance(x, Tensor) and x.dtype == torch.uint8 else ""
        hint = hint or ("; add a batch dimension with x[None]" if isinstance(x, Tensor) and x.ndim else "")
        raise InputError(f"got {describe(x)}, expected {expected}{hint}.")
    if x.numel() == 0:
        raise InputError(f"got an empty batch of shape {list(x.shape)}, expected at least one sample.")
    shape = getattr(model, "input_shape", None)
    if shape is not None and tuple(x.shape[1:]) != tuple(shape):
        raise InputError(
            f"got a batch of shape {list(x.shape)}, but this model takes [batch, {', '.join(map(str, shape))}]; "
            "resize the images or convert their channels (grey 1, RGB 3)."
        )
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if parameter is not None and parameter.device != x.device:
        raise InputError(f"the input is on {x.device} but the model is on {parameter.device}; move one with .to(...).")
    if parameter is not None and parameter.dtype != x.dtype:
        raise InputError(
            f"the input is {x.dtype} but the model's parameters are {parameter.dtype}; convert one with .to(...)."
        )
    smallest, largest = torch.stack(torch.aminmax(x.detach())).tolist()
    if not (math.isfinite(smallest) and math.isfinite(largest)):
        bad = int((~torch.isfinite(x)).sum())
        raise InputError(f"the input has {bad} NaN or infinite values, expected {expected}.")
    if smallest < low or largest > high:
        hint = "."
        if (low, high) == (0, 1) and smallest < 0:
            hint = ". If they are normalised, omit that and give mean= and std= to soap.wrap."
        elif (low, high) == (0, 1) and largest > 2:
            hint = "; it looks like 0..255, divide by 255."
        raise InputError(f"input values span [{smallest:g}, {largest:g}], expected [{low:g}, {high:g}]{hint}")


def labels(y: Tensor, x: Tensor, classes: int | None = None) -> None:
    """Check that `y` holds one class index in [0, classes) for every sample of `x`, on the same device."""
    if not isinstance(y, Tensor) or y.dtype not in (torch.int64, torch.int32) or y.shape != (len(x),):
        raise InputError(
            f"got labels {describe(y)}, expected an int64 tensor of shape [{len(x)}], one class per sample."
        )
    if y.device != x.device:
        raise InputError(f"the labels are on {y.device} but the input is on {x.device}; move one with .to(...).")
    smallest, largest = torch.stack(torch.aminmax(y)).tolist()
    if smallest < 0 or (classes is not None and largest >= classes):
        limit = "" if classes is None else f" and at most {classes - 1}"
        raise InputError(
            f"labels span {smallest}..{largest}, expected at least 0{limit}: classes count from 0."
            f"{from_one(smallest, largest, classes)}"
        )


def from_one(smallest: int, largest: int, classes: int | None) -> str:
    """Return a hint if the labels run from 1 to the number of classes, else nothing."""
    return " Do your labels count from 1? Subtract 1." if smallest >= 1 and largest == classes else ""


def radius(eps: object, norm: str = "linf", bounds: tuple[float, float] = (0.0, 1.0), name: str = "eps") -> None:
    """Check that an Linf radius, or the step size called `name`, is at most the width of `bounds`.

    Radii of other norms may be larger.
    """
    width = bounds[1] - bounds[0]
    if norm == "linf" and isinstance(eps, int | float) and eps > width:
        hint = f"; images are in [0, 1]: did you mean {eps:g}/255?" if bounds == (0, 1) else "."
        raise InputError(f"{name} is {eps:g}, expected at most {width:g}{hint}")


def logits(z: object, batch: int) -> None:
    """Check that `z` is a valid output of a classifier: finite logits [batch, classes], not probabilities."""
    if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != batch or not z.is_floating_point():
        hint = "" if isinstance(z, Tensor) else " Put the network in soap.models.LogitsAdapter, or use soap.wrap."
        raise InputError(f"the model returned {describe(z)}, expected float logits of shape [{batch}, classes].{hint}")
    if not torch.isfinite(z).all():
        raise InputError("the model returned NaN or infinite logits for a valid input; check its weights.")
    sums_to_one = (z.sum(1) - 1).abs().max() < 1e-3
    if z.shape[1] > 1 and z.min() >= 0 and sums_to_one:
        raise InputError(
            "the model returned probabilities (non-negative, sum 1 per sample), expected logits: "
            "remove its last softmax, which hides the gradient from attacks."
        )


def positive(name: str, value: float) -> None:
    """Check that `value` is a finite number above 0."""
    if not _finite(value) or value <= 0:
        raise InputError(f"{name} is {value!r}, expected a number above 0.")


def at_least(name: str, value: int, minimum: int) -> None:
    """Check that `value` is an integer of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise InputError(f"{name} is {value!r}, expected a whole number of at least {minimum}.")


def non_negative(name: str, value: float) -> None:
    """Check that `value` is a finite number of at least 0."""
    if not _finite(value) or value < 0:
        raise InputError(f"{name} is {value!r}, expected a number of at least 0.")


def below_one(name: str, value: float) -> None:
    """Check that `value` is a number of at least 0 and below 1, such as a decay rate."""
    if not _finite(value) or not 0 <= value < 1:
        raise InputError(f"{name} is {value!r}, expected a number of at least 0 and below 1.")


def _finite(value: object) -> bool:
    """Return whether the value is a number and neither NaN nor infinite."""
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except TypeError:
        return False


def choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Check that `value` is one of `allowed`."""
    if value not in allowed:
        raise InputError(f"{name} is {value!r}, expected one of {', '.join(map(repr, allowed))}.")
