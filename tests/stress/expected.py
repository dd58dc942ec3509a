"""Digits as PNG files, and what the library says of each: an answer of the service is right if it says the same."""

import base64
import io
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from served import MODEL

import soap
from soap.serve.operations import Purify, perform

DIGITS = 16
NEAR = {"predict": 1e-4, "purify": 2e-2}
"""Of a probability: batches of another size round differently, and a walk carries it on."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """One digit: its picture, and the probabilities of each operation."""

    picture: bytes
    probabilities: dict[str, list[float]]

    def wrong(self, operation: str, answer: dict[str, Any]) -> str | None:
        """What is wrong with an answer."""
        wanted, found = self.probabilities[operation], answer["probabilities"]
        distance = max(abs(a - b) for a, b in zip(wanted, found, strict=True))
        if distance > NEAR[operation] or answer["class"] != wanted.index(max(wanted)):
            return f"{operation}: class {answer['class']}, probabilities off by {distance:.4f}"
        if operation == "purify" and _pixels(base64.b64decode(answer["input"])) != _pixels(self.picture):
            return "purify: the answer to another picture"
        return None


def truths() -> list[Truth]:
    """Sixteen digits, no two alike to the classifier."""
    model, x = soap.load(MODEL), (soap.data.load("mnist-mini").x[:DIGITS] * 255).round() / 255
    with torch.no_grad():
        seen = model(x).softmax(1)
    walks = [perform(Purify.of(model), model, [one], [None])[0] for one in x]
    return [
        Truth(
            picture=_png(one),
            probabilities={"predict": row.tolist(), "purify": walk.probabilities[-1].tolist()},
        )
        for one, row, walk in zip(x, seen, walks, strict=True)
    ]


def _png(x: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray((x[0] * 255).round().byte().numpy()).save(buffer, format="PNG")
    return buffer.getvalue()


def _pixels(picture: bytes) -> bytes:
    return Image.open(io.BytesIO(picture)).tobytes()
