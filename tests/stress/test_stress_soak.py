"""A real service over a long time: valid and hostile requests, its memory, and its log."""

import contextlib
import itertools
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("granian", reason="the service needs the extra 'serve'")

from counting import LONG, amount, count
from hostile_pictures import HOSTILE
from malformed_requests import MALFORMED
from raw_http import MARKER, connect, fetch, read_responses, request
from service_process import MB

pytestmark = [pytest.mark.stress, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals")]

CLIENTS = 4
MEMORY_INTERVAL_S = 10.0
"""Seconds between two memory samples of a long run."""


def send_random_request(service, digits, number):
    """One request of a mixture, chosen by its number: its kind, and what is wrong with its response."""
    chance = random.Random(number)
    digit = chance.choice(digits)
    kind = chance.choice(["predict", "purify", "attack", "hostile", "malformed", "leave", "page", "unknown", "json"])
    if kind in ("predict", "purify"):
        response = fetch(service.address, f"/v1/{kind}", digit.picture)
        problem = response.problem() or (response.status == 200 and digit.problem(kind, response.content))
        return kind, problem or None
    if kind == "attack":
        method = chance.choice(["attack=fgsm", "attack=pgd&steps=5", "attack=df", "pictures=true&steps=10"])
        return kind, fetch(service.address, f"/v1/attack?{method}", digit.picture).problem()
    if kind == "hostile":
        return kind, fetch(service.address, "/v1/predict", HOSTILE[chance.choice(sorted(HOSTILE))]).problem()
    if kind == "json":
        body = f'{{"image": [["{MARKER}"]], "{MARKER}": 1}}'.encode()
        return kind, fetch(service.address, "/v1/purify", body, kind="application/json").problem()
    if kind == "unknown":
        return kind, fetch(service.address, f"/v1/predict?model={MARKER}&eps={MARKER}", digit.picture).problem()
    if kind == "page":
        path = chance.choice(["/", "/docs", "/healthz", "/metrics", "/v1/models", f"/{MARKER}"])
        return kind, fetch(service.address, path).problem()
    with connect(service.address) as connection, contextlib.suppress(OSError):
        if kind == "leave":
            connection.sendall(request("/v1/purify", digit.picture)[: chance.randrange(1, 900)])
            return kind, None
        connection.sendall(MALFORMED[chance.choice(sorted(MALFORMED))])
        connection.settimeout(1)
        return kind, next((response.problem() for response in read_responses(connection)), None)
    return kind, None


def drift(memory):
    """Bytes between the medians of the first and the last quarter of a run; single samples are noisy."""
    quarter = max(1, len(memory) // 4)
    first, last = sorted(memory[:quarter]), sorted(memory[-quarter:])
    return last[len(last) // 2] - first[len(first) // 2]


def test_soak(service, digits):
    numbers, kinds, failures, memory = itertools.count(), Counter(), [], []
    length, warm = amount(4, 7200), amount(0, 120)
    worker = service.worker

    def client(until):
        while time.monotonic() < until:
            try:
                kind, problem = send_random_request(service, digits, next(numbers))
            except Exception as error:  # no response where there should be one
                kind, problem = "lost", f"{type(error).__name__}: {error}"
            kinds[kind] += 1
            failures.extend([f"{kind}: {problem}"] if problem else [])

    def turn(seconds):
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, [time.monotonic() + seconds] * CLIENTS))

    turn(warm)
    end = time.monotonic() + length
    while time.monotonic() < end:
        turn(min(MEMORY_INTERVAL_S, length / 4))
        memory.append(service.memory())
    failures += [] if service.worker == worker else ["the worker died"]
    moved = drift(memory)
    allowed = amount(64, 20) * MB  # a few seconds cannot separate a drift from the warm-up
    failures += [] if moved < allowed else [f"{moved / MB:.1f} MB drift"]
    measured = {"minutes": length / 60, "MB drift": moved / MB, "MB, peak": max(memory) / MB}
    count("soak: a response to every request, no memory growth", sum(kinds.values()), failures, measured)


def test_log_holds_no_client_input(service, digits):
    """Pictures, file names, queries, headers and the token of these tests contain MARKER."""

    kinds = Counter(send_random_request(service, digits, number)[0] for number in range(60, 60 + amount(60, 400)))
    assert len(kinds) == 9
    lines = service.log.read_text().splitlines()
    assert len(lines) > 40
    count("logs: no contents, names, queries, headers or tokens", len(lines), service.log_leaks(MARKER))
    if LONG:
        assert len(lines) > 10_000
