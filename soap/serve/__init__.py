"""HTTP service: predicts, attacks and purifies images that clients send, in batches across clients."""

from dataclasses import dataclass
from typing import Any

from soap import validate

__all__ = ["Limits", "create_app"]

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one service on requests, connections and queues; every limit is on by default.

    body: bytes of one request body. json: bytes of a JSON body, which takes several times its size once parsed.
    total_body: bytes of all bodies in memory. pixels: pixels of a picture, checked before it is decoded.
    timeout_s: seconds from the headers of a request to its response, the body included.
    connections: open connections. queue: requests that wait for one model. overload_batch_s: seconds that a
    batch may take during the second after the queue was full. batch_size: images in one batch. gather_s: seconds that
    the first request of a batch waits for others.
    """

    body: int = 8 * MIB
    json: int = MIB
    total_body: int = 64 * MIB
    pixels: int = 4_000_000
    timeout_s: float = 10.0
    connections: int = 512
    queue: int = 64
    overload_batch_s: float = 0.045
    batch_size: int = 16
    gather_s: float = 0.004

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "gather_s":
                validate.non_negative(name, value)
            elif name.endswith("_s"):
                validate.positive(name, value)
            else:
                validate.at_least(name, value, 1)


def __getattr__(name: str) -> Any:
    """Import `create_app` on first use: it needs the extra 'serve', the command line does not."""
    if name == "create_app":
        from soap.serve.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
