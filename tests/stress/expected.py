"""Digits as PNG files with the library's results for each: a response of the service must equal them."""

import base64
import io
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

import soap
from soap.serve.trajectories import Purify, run_operation

MODEL = "mnist-cnn-dr"
DIGITS = 16
TOLERANCE = {"predict": 1e-4, "purify": 2e-2}
"""Of a probability: another batch size rounds differently, and purification amplifies it."""


@dataclass(frozen=True, kw_only=True)
class ExpectedDigit:
    """One digit: its picture, and its probabilities by operation."""

    picture: bytes
    probabilities: dict[str, list[float]]

    def problem(self, operation: str, response: dict[str, Any]) -> str | None:
        """How a response differs from the expected one; None if it does not."""
        expected, found = self.probabilities[operation], response["probabilities"]
        distance = max(abs(a - b) for a, b in zip(expected, found, strict=True))
        if distance > TOLERANCE[operation] or response["class"] != expected.index(max(expected)):
            return f"{operation}: class {response['class']}, probabilities off by {distance:.4f}"
        if operation == "purify" and _pixels(base64.b64decode(response["input"])) != _pixels(self.picture):
            return "purify: the result of another picture"
        return None


def expected_digits() -> list[ExpectedDigit]:
    """Sixteen digits with different probabilities."""
    model, x = soap.load(MODEL), (soap.data.load("mnist-mini").x[:DIGITS] * 255).round() / 255
    with torch.no_grad():
        predicted = model(x).softmax(1)
    purified = [run_operation(Purify.of(model), model, [one], [None])[0] for one in x]
    return [
        ExpectedDigit(
            picture=_png(one),
            probabilities={"predict": row.tolist(), "purify": trajectory.probabilities[-1].tolist()},
        )
        for one, row, trajectory in zip(x, predicted, purified, strict=True)
    ]


def _png(x: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray((x[0] * 255).round().byte().numpy()).save(buffer, format="PNG")
    return buffer.getvalue()


def _pixels(picture: bytes) -> bytes:
    return Image.open(io.BytesIO(picture)).tobytes()
