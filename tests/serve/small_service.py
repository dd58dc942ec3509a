"""A service over two small bundled networks behind a real server, and digits as PNG files to send it."""

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from typing import Any

from PIL import Image

from soap.shapes import Tensor

MODELS = ["mnist-fcn-dr", "mnist-fcn-no-def"]
HERE = "http://127.0.0.1"


def png(x: Tensor) -> bytes:
    """A grey image [1, h, w] in [0, 1] as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray((x[0] * 255).round().byte().numpy()).save(buffer, format="PNG")
    return buffer.getvalue()


@contextlib.contextmanager
def running(app: Any, limits: Any = None) -> Iterator[str]:
    """The address of a real server for the application."""
    from soap.serve import Limits
    from soap.serve.running import bind, server, url

    bound = bind("127.0.0.1", 0)
    served = server(app, limits or Limits())
    thread = threading.Thread(target=served.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not served.started and thread.is_alive():
            time.sleep(0.01)
        yield url(bound)
    finally:
        served.should_exit = True
        thread.join()
