"""Measure throughput and latency of `soap serve` under load, with batching and with one request at a time.

    python tools/load_service.py --seconds 60

Starts a server on a free port. Many clients request the same operation over connections that stay open; each sends its
next request after the response to its last. Appends a row to results/service.jsonl. Clients and server share the cores.
`make render` renders the rows into docs/service.md.
"""

import argparse
import http.client
import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from soap import data
from soap.bench.results import append, provenance
from soap.data.pictures import encode_png

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = "soap-service/1"
SERVER = "granian"
IMAGES = 64


def main(arguments: Sequence[str]) -> None:
    """Measure with and without batching, print and append the row."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="mnist-cnn-dr")
    parser.add_argument("--operation", default="purify", choices=("predict", "purify", "attack"))
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "service.jsonl")
    options = parser.parse_args(arguments)
    images = data.load("mnist-mini").x if options.model.startswith("mnist") else torch.rand(IMAGES, 3, 32, 32)
    bodies = [encode_png(x) for x in images[:IMAGES]]
    load = {"clients": options.clients, "seconds": options.seconds}
    ways = {
        name: measured(options.model, options.operation, bodies, **load, batch_size=batch_size)
        for name, batch_size in (("batched", options.batch_size), ("single", 1))
    }
    row = {
        "schema": SCHEMA,
        "server": SERVER,
        "model": options.model,
        "operation": options.operation,
        **load,
        "batch_size": options.batch_size,
        "ways": ways,
        "ratio": ways["batched"]["requests_per_second"] / ways["single"]["requests_per_second"],
        "provenance": {**provenance(torch.device("cpu")), "command": command(options, parser)},
    }
    append(options.results, row)
    for name, figures in ways.items():
        print(name, json.dumps(figures))
    print(f"batched / single: {row['ratio']:.2f}; row in {options.results}")


def command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    """The command line, without the path of the results."""
    given = {
        key: value for key, value in vars(options).items() if key != "results" and value != parser.get_default(key)
    }
    return shlex.join(["python", "tools/load_service.py", *(f"--{key}={value}" for key, value in given.items())])


def measured(
    model: str, operation: str, bodies: Sequence[bytes], *, clients: int, seconds: float, batch_size: int
) -> dict[str, Any]:
    """Requests per second, latencies and errors of one server, started and stopped here."""
    start = [sys.executable, "-m", "soap", "serve", "--model", model, "--port", "0", "--json"]
    start += ["--batch-size", str(batch_size)]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as process:
        try:
            text = ""
            while not text.endswith("}\n"):
                line = process.stdout.readline() if process.stdout else ""
                if not line:
                    raise SystemExit("the server did not start")
                text += line
            place = urlsplit(json.loads(text)["url"]).netloc
            send_load(place, operation, bodies, clients=clients, seconds=min(2.0, seconds))  # warm-up
            began = time.perf_counter()
            latencies, errors = send_load(place, operation, bodies, clients=clients, seconds=seconds)
            taken = time.perf_counter() - began
        finally:
            process.terminate()
            process.wait(30)
    latencies.sort()
    return {
        "requests": len(latencies),
        "errors": errors,
        "requests_per_second": len(latencies) / taken,
        "p50_ms": 1000 * quantile(latencies, 0.5),
        "p99_ms": 1000 * quantile(latencies, 0.99),
    }


def send_load(
    place: str, operation: str, bodies: Sequence[bytes], *, clients: int, seconds: float
) -> tuple[list[float], int]:
    """The seconds of every request with status 200, and the number of other requests."""
    until = time.perf_counter() + seconds
    latencies: list[float] = []
    errors: list[int] = []

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(place, timeout=60)
        turn = number
        while (began := time.perf_counter()) < until:
            body = bodies[turn % len(bodies)]
            turn += clients
            try:
                connection.request("POST", f"/v1/{operation}", body, {"Content-Type": "image/png"})
                response = connection.getresponse()
                response.read()
                succeeded = response.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()
                succeeded = False
            if succeeded:
                latencies.append(time.perf_counter() - began)
            else:
                errors.append(number)
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies, len(errors)


def quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as this share of the values."""
    if not ascending:
        raise SystemExit("no request had status 200")
    return ascending[max(0, -int(-share * len(ascending) // 1) - 1)]


if __name__ == "__main__":
    main(sys.argv[1:])
