"""HTTP by hand: bytes over a socket, and the answers that come back, whole or not."""

import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hostile_pictures import MARKER

PATIENT = 60.0
TOKEN = f"token-{MARKER}"
PLANTED = (f"Authorization: Bearer {TOKEN}", f"User-Agent: {MARKER}", f"Cookie: session={MARKER}",
           f'Content-Disposition: attachment; filename="{MARKER}.png"')  # fmt: skip
"""Headers of every request: none may be seen in a log."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: its status, headers by lower-case name, and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        """Its JSON."""
        return json.loads(self.body)

    def problem(self) -> str | None:
        """What is wrong with the answer itself: one of ours is 200 with sense, a 4xx that says why, or a 503."""
        if self.status == 200:
            return None
        error = self.content.get("error", {}) if self.body.startswith(b"{") else {}
        if not (400 <= self.status < 500 or self.status == 503):
            return f"status {self.status}"
        if not error.get("message", "").endswith(".") or not error.get("kind"):
            return f"status {self.status} does not say what is wrong: {self.body[:80]!r}"
        if self.status == 503 and "retry-after" not in self.headers:
            return "503 without Retry-After"
        return None


def connected(address: str) -> socket.socket:
    """A connection to the service."""
    place = urlsplit(address)
    return socket.create_connection((place.hostname, place.port), timeout=PATIENT)


def request(path: str, body: bytes = b"", *, kind: str = "image/png", headers: tuple[str, ...] = ()) -> bytes:
    """A request as it goes over the wire; POST where it has a body or goes to a route that works."""
    post = path.startswith("/v1/") and path != "/v1/models"
    path += "" if post else f"?note={MARKER}"  # routes that work refuse a parameter that they do not know
    lines = [f"{'POST' if post else 'GET'} {path} HTTP/1.1", "Host: localhost", *PLANTED, *headers]
    lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"] if post else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def answers(connection: socket.socket, most: int = 1) -> tuple[list[Answer], bool]:
    """Up to `most` answers, and whether the connection still stands after them."""
    found: list[Answer] = []
    buffer = b""
    try:
        while len(found) < most:
            while b"\r\n\r\n" not in buffer:
                part = connection.recv(65_536)
                if not part:
                    return found, False
                buffer += part
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            status = int(first.split()[1])
            length = 0 if status == 100 else int(headers["content-length"])
            while len(buffer) < length:
                part = connection.recv(65_536)
                if not part:
                    return found, False
                buffer += part
            if status != 100:
                found.append(Answer(status=status, headers=headers, body=buffer[:length]))
            buffer = buffer[length:]
    except OSError:
        return found, False
    return found, found[-1].headers.get("connection") != "close"


def ask(address: str, path: str, body: bytes = b"", **options: Any) -> Answer:
    """One question on a connection of its own."""
    with connected(address) as connection:
        connection.sendall(request(path, body, **options))
        found, _ = answers(connection)
    if not found:
        raise ConnectionError("no answer")
    return found[0]
