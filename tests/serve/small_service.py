"""Two small bundled models for the tests of the service, and digits as PNG files."""

import io

from PIL import Image

from soap.shapes import Tensor

MODELS = ["mnist-fcn-dr", "mnist-fcn-no-def"]
BASE_URL = "http://127.0.0.1"


def png(x: Tensor) -> bytes:
    """A grey image [1, h, w] in [0, 1] as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray((x[0] * 255).round().byte().numpy()).save(buffer, format="PNG")
    return buffer.getvalue()
