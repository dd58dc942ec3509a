"""Limits on requests, connections and queues. Every limit is on by default."""

from dataclasses import dataclass

from soap import validate

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one service.

    body: bytes of one request body. json: bytes of a JSON body, which takes several times its size once parsed.
    total_body: bytes of all bodies in memory. pixels: pixels of a picture, checked before it is decoded.
    timeout_s: seconds from the headers of a request to its response, the body included.
    connections: open connections. queue: requests that wait for one model. overload_queue: requests that may wait
    during the second after the queue was full. batch: images in one batch. gather_s: seconds that the first request
    of a batch waits for others. attacks: attack requests in progress. steps: steps of one attack or purification.
    """

    body: int = 8 * MIB
    json: int = MIB
    total_body: int = 64 * MIB
    pixels: int = 4_000_000
    timeout_s: float = 10.0
    connections: int = 512
    queue: int = 64
    overload_queue: int = 1
    batch: int = 32
    gather_s: float = 0.004
    attacks: int = 16
    steps: int = 100

    def __post_init__(self) -> None:
        checks = {"timeout_s": validate.positive, "gather_s": validate.non_negative}
        for name, value in vars(self).items():
            if name in checks:
                checks[name](name, value)
            else:
                validate.at_least(name, value, 1)
