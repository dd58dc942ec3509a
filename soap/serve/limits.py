"""What a client may ask of the service. Every limit is on by default."""

from dataclasses import dataclass

from soap import validate

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one service.

    body: bytes of one request. json: of one that is JSON, whose numbers take many times their room once they are read.
    bodies: bytes of all requests being read at once. pixels: of a picture, looked at before it is decoded.
    seconds: from a request's first line to its answer, a slow client's body included. clients: open connections.
    queue: requests that wait for one model. crowded: those that may for a while once there were more. batch: those
    that run at once at most. gather: seconds that the first of a batch waits for others. attacks: attacks under way
    for all models. steps: of one attack or purification.
    """

    body: int = 8 * MIB
    json: int = MIB
    bodies: int = 64 * MIB
    pixels: int = 4_000_000
    seconds: float = 10.0
    clients: int = 512
    queue: int = 64
    crowded: int = 1
    batch: int = 32
    gather: float = 0.004
    attacks: int = 16
    steps: int = 100

    def __post_init__(self) -> None:
        for name in ("body", "json", "bodies", "pixels", "clients", "queue", "crowded", "batch", "attacks", "steps"):
            validate.at_least(name, getattr(self, name), 1)
        validate.positive("seconds", self.seconds)
        validate.non_negative("gather", self.gather)
