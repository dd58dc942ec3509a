"""Many clients in one process: `python client_load.py` reads its orders as JSON on standard input and prints a record.

Orders: address, operation, seconds, pictures (base64), and either `rate` (requests per second, sent whether or not the
service keeps up) or `clients` (each sends its next request after its response).
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

MAX_CONNECTIONS = 400
"""Fewer than the service accepts."""

MAX_IDLE_S = 5.0
"""Idle seconds after which a connection is not used again, as in most clients."""


class ClientLoad:
    """Sends requests and records of each: picture, status (0: no response), start, seconds, and the result."""

    def __init__(self, orders: dict[str, Any], requests: list[bytes]) -> None:
        self.url = urlsplit(orders["address"])
        self.requests, self.idle = requests, []
        self.open, self.sent, self.unsent = 0, 0, 0
        self.records: list[dict[str, Any]] = []

    async def send_one(self) -> int:
        """One request on an idle or new connection; returns its status."""
        number = self.sent % len(self.requests)
        self.sent += 1
        start, record = time.monotonic(), {"picture": number, "status": 0}
        stream = None
        try:
            while self.idle and start - self.idle[0][2] > MAX_IDLE_S:
                self.idle.pop(0)[1].close()
                self.open -= 1
            stream = self.idle.pop()[:2] if self.idle else await self._connect()
            stream[1].write(self.requests[number])
            head = await stream[0].readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            # Without a length the body is chunked; so are Ray Serve's errors, whose body is not needed.
            body = await (stream[0].readexactly(int(length)) if length else stream[0].readuntil(b"0\r\n\r\n"))
            record["status"] = int(head[9:12])
            record["retry"] = b"retry-after:" in head.lower()
            if record["status"] == 200:
                found = json.loads(body)
                record["result"] = {key: found.get(key) for key in ("class", "probabilities", "input")}
            if b"connection: close" in head.lower():
                stream[1].close()
                self.open -= 1
            else:
                self.idle.append((*stream, time.monotonic()))
        except (OSError, EOFError, asyncio.IncompleteReadError):
            if stream is not None:
                stream[1].close()
                self.open -= 1
        record.update(start=start, seconds=time.monotonic() - start)
        self.records.append(record)
        return record["status"]

    async def _connect(self) -> Any:
        self.open += 1
        try:
            return await asyncio.open_connection(self.url.hostname, self.url.port)
        except OSError:
            self.open -= 1
            raise

    async def at_rate(self, rate: float, seconds: float) -> None:
        """`rate` requests per second; a request without a free connection is counted as not sent."""
        tasks: set[asyncio.Task[int]] = set()
        start, due = time.monotonic(), 0
        while (passed := time.monotonic() - start) < seconds:
            while due < passed * rate:
                due += 1
                if self.idle or self.open < MAX_CONNECTIONS:
                    task = asyncio.create_task(self.send_one())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    self.unsent += 1
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)

    async def as_clients(self, clients: int, seconds: float) -> None:
        """Clients with one request at a time; a refused client waits for a moment."""
        until = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < until:
                await asyncio.sleep(0 if await self.send_one() == 200 else 0.05)

        await asyncio.gather(*(client() for _ in range(clients)))


def start_load(address: str, operation: str, seconds: float, pictures: list[bytes], **orders: float) -> Any:
    """Start the clients in their own process."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    content = [base64.b64encode(picture).decode() for picture in pictures]
    orders.update(seconds=seconds)
    process.stdin.write(json.dumps({"address": address, "operation": operation, "pictures": content, **orders}))
    process.stdin.close()
    return process


def finish_load(process: Any) -> dict[str, Any]:
    """Wait for the clients; returns records, unsent, took, statuses."""
    with process:
        return json.loads(process.stdout.read())


def main() -> None:
    """Read the orders, send the requests, print the records."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from raw_http import request

    orders = json.load(sys.stdin)
    path = f"/v1/{orders['operation']}"
    load = ClientLoad(orders, [request(path, base64.b64decode(picture)) for picture in orders["pictures"]])
    work = (
        load.at_rate(orders["rate"], orders["seconds"])
        if "rate" in orders
        else load.as_clients(int(orders["clients"]), orders["seconds"])
    )
    start = time.monotonic()
    asyncio.run(work)
    statuses = Counter(record["status"] for record in load.records)
    took = time.monotonic() - start
    json.dump({"records": load.records, "unsent": load.unsent, "took": took, "statuses": statuses}, sys.stdout)


if __name__ == "__main__":
    main()
