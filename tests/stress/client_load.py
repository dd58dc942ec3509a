"""Many clients in one process: `python crowd.py` reads its orders as JSON on standard input, prints what came of them.

Orders: address, operation, seconds, pictures (base64), and either `rate` (requests a second, sent whether or not the
service keeps up) or `clients` (each sends its next request when it has its answer).
"""

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MOST = 400
"""Connections: fewer than the service lets in."""


STALE = 5.0
"""Seconds that a connection may be idle and still be used: as long as most clients keep one."""


class Crowd:
    """Sends, and notes of each: its picture, status (0: no answer), when it began, seconds, and the answer."""

    def __init__(self, orders: dict[str, Any], requests: list[bytes]) -> None:
        self.place = urlsplit(orders["address"])
        self.requests, self.idle = requests, []
        self.open, self.sent, self.late = 0, 0, 0
        self.notes: list[dict[str, Any]] = []

    async def one(self) -> int:
        """One request, on a connection that is idle or new; its status, 0 without an answer."""
        number = self.sent % len(self.requests)
        self.sent += 1
        began, note = time.monotonic(), {"picture": number, "status": 0}
        stream = None
        try:
            while self.idle and began - self.idle[0][2] > STALE:  # the service may be about to close it
                self.idle.pop(0)[1].close()
                self.open -= 1
            stream = self.idle.pop()[:2] if self.idle else await self._connected()
            stream[1].write(self.requests[number])
            head = await stream[0].readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            body = await stream[0].readexactly(length)
            note["status"] = int(head[9:12])
            note["retry"] = b"retry-after:" in head.lower()
            if note["status"] == 200:
                found = json.loads(body)
                note["answer"] = {key: found.get(key) for key in ("class", "probabilities", "input")}
            self.idle.append((*stream, time.monotonic()))
        except (OSError, EOFError, asyncio.IncompleteReadError):
            if stream is not None:
                stream[1].close()
                self.open -= 1
        note.update(began=began, seconds=time.monotonic() - began)
        self.notes.append(note)
        return note["status"]

    async def _connected(self) -> Any:
        self.open += 1
        try:
            return await asyncio.open_connection(self.place.hostname, self.place.port)
        except OSError:
            self.open -= 1
            raise

    async def at_rate(self, rate: float, seconds: float) -> None:
        """So many a second; one for which there is no connection is late, and is not sent."""
        under_way: set[asyncio.Task[int]] = set()
        began, due = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            while due < passed * rate:
                due += 1
                if self.idle or self.open < MOST:
                    task = asyncio.create_task(self.one())
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                else:
                    self.late += 1
            await asyncio.sleep(0.002)
        await asyncio.gather(*under_way)

    async def as_clients(self, clients: int, seconds: float) -> None:
        """Each with one request at a time; who is refused waits a little."""
        until = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < until:
                await asyncio.sleep(0 if await self.one() == 200 else 0.05)

        await asyncio.gather(*(client() for _ in range(clients)))


def started(address: str, operation: str, seconds: float, pictures: list[bytes], **orders: float) -> Any:
    """A crowd in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    content = [base64.b64encode(picture).decode() for picture in pictures]
    orders.update(seconds=seconds)
    process.stdin.write(json.dumps({"address": address, "operation": operation, "pictures": content, **orders}))
    process.stdin.close()
    return process


def told(process: Any) -> dict[str, Any]:
    """What a crowd says in the end."""
    with process:
        return json.loads(process.stdout.read())


def main() -> None:
    """Do as ordered."""
    from raw import request

    orders = json.load(sys.stdin)
    path = f"/v1/{orders['operation']}"
    crowd = Crowd(orders, [request(path, base64.b64decode(picture)) for picture in orders["pictures"]])
    work = (
        crowd.at_rate(orders["rate"], orders["seconds"])
        if "rate" in orders
        else crowd.as_clients(int(orders["clients"]), orders["seconds"])
    )
    began = time.monotonic()
    asyncio.run(work)
    statuses = Counter(note["status"] for note in crowd.notes)
    took = time.monotonic() - began
    json.dump({"notes": crowd.notes, "late": crowd.late, "took": took, "statuses": statuses}, sys.stdout)


if __name__ == "__main__":
    main()
