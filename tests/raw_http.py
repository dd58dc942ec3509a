"""HTTP/1.1 over a plain socket: requests as bytes, and the responses, complete or not."""

import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
MARKER = "do-not-log-7f3a9c"
"""Text in pictures, file names, queries, headers and the token; no log may contain it."""

TOKEN = f"token-{MARKER}"
MARKED_HEADERS = (f"Authorization: Bearer {TOKEN}", f"User-Agent: {MARKER}", f"Cookie: session={MARKER}",
                  f'Content-Disposition: attachment; filename="{MARKER}.png"')  # fmt: skip
"""Headers of every request."""


@dataclass(frozen=True, kw_only=True)
class HttpResponse:
    """Status, headers by lower-case name, and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        """The JSON body."""
        return json.loads(self.body)

    def problem(self) -> str | None:
        """What is wrong with the response: it must be 200, a 4xx with an explanation, or a 503 with Retry-After.

        granian refuses what it cannot parse with an empty 400, 413 or 431.
        """
        if self.status == 200 or (self.status in (400, 413, 431) and not self.body):
            return None
        error = self.content.get("error", {}) if self.body.startswith(b"{") else {}
        if not (400 <= self.status < 500 or self.status == 503):
            return f"status {self.status}"
        if not error.get("message", "").endswith(".") or not error.get("kind"):
            return f"status {self.status} without an explanation: {self.body[:80]!r}"
        if self.status == 503 and "retry-after" not in self.headers:
            return "503 without Retry-After"
        return None


def connect(address: str) -> socket.socket:
    """A connection to the service."""
    url = urlsplit(address)
    return socket.create_connection((url.hostname, url.port), timeout=TIMEOUT_S)


def request(path: str, body: bytes = b"", *, kind: str = "image/png", headers: tuple[str, ...] = ()) -> bytes:
    """A request as bytes; POST for the routes that run a model."""
    post = path.startswith("/v1/") and path != "/v1/models"
    path += "" if post else f"?note={MARKER}"  # routes that run a model refuse unknown parameters
    lines = [f"{'POST' if post else 'GET'} {path} HTTP/1.1", "Host: localhost", *MARKED_HEADERS, *headers]
    lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"] if post else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_responses(connection: socket.socket, count: int = 1) -> list[HttpResponse]:
    """Up to `count` responses; fewer if the service closes the connection first."""
    found: list[HttpResponse] = []
    buffer = b""
    try:
        while len(found) < count:
            while b"\r\n\r\n" not in buffer:
                part = connection.recv(65_536)
                if not part:
                    return found
                buffer += part
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            status = int(first.split()[1])
            length = 0 if status == 100 else int(headers["content-length"])
            while len(buffer) < length:
                part = connection.recv(65_536)
                if not part:
                    return found
                buffer += part
            if status != 100:
                found.append(HttpResponse(status=status, headers=headers, body=buffer[:length]))
            buffer = buffer[length:]
    except OSError:
        pass
    return found


def fetch(address: str, path: str, body: bytes = b"", **options: Any) -> HttpResponse:
    """One request on its own connection."""
    with connect(address) as connection:
        connection.sendall(request(path, body, **options))
        found = read_responses(connection)
    if not found:
        raise ConnectionError("no response")
    return found[0]
