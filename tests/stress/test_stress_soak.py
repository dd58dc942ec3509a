"""A real service for a long time: good requests and bad ones, and what it keeps of them in memory and in its log."""

import contextlib
import itertools
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from counting import LONG, amount, count
from hostile_pictures import HOSTILE, MARKER
from lies import LIES
from raw import answers, ask, connected, request
from served import MB

pytestmark = [pytest.mark.stress, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals")]

CLIENTS = 4
EVERY = 10.0
"""Seconds between two looks at the memory of a long run."""


def visit(service, digits, number):
    """One request of a mixture, chosen by its number: what kind it was, and what is wrong with its answer."""
    chance = random.Random(number)
    digit = chance.choice(digits)
    kind = chance.choice(["predict", "purify", "attack", "hostile", "lie", "leave", "look", "unknown", "json"])
    if kind in ("predict", "purify"):
        answer = ask(service.address, f"/v1/{kind}", digit.picture)
        return kind, answer.problem() or (answer.status == 200 and digit.wrong(kind, answer.content)) or None
    if kind == "attack":
        method = chance.choice(["attack=fgsm", "attack=pgd&steps=5", "attack=df", "pictures=true&steps=10"])
        return kind, ask(service.address, f"/v1/attack?{method}", digit.picture).problem()
    if kind == "hostile":
        return kind, ask(service.address, "/v1/predict", HOSTILE[chance.choice(sorted(HOSTILE))]).problem()
    if kind == "json":
        body = f'{{"image": [["{MARKER}"]], "{MARKER}": 1}}'.encode()
        return kind, ask(service.address, "/v1/purify", body, kind="application/json").problem()
    if kind == "unknown":
        return kind, ask(service.address, f"/v1/predict?model={MARKER}&eps={MARKER}", digit.picture).problem()
    if kind == "look":
        path = chance.choice(["/", "/docs", "/healthz", "/metrics", "/v1/models", f"/{MARKER}"])
        return kind, ask(service.address, path).problem()
    with connected(service.address) as connection, contextlib.suppress(OSError):
        if kind == "leave":
            connection.sendall(request("/v1/purify", digit.picture)[: chance.randrange(1, 900)])
            return kind, None
        connection.sendall(LIES[chance.choice(sorted(LIES))])
        connection.settimeout(1)
        found, _ = answers(connection)
        return kind, next((answer.problem() for answer in found), None)
    return kind, None


def drift(memory):
    """Bytes between the medians of the first and the last quarter of a run: a single look sees noise."""
    quarter = max(1, len(memory) // 4)
    first, last = sorted(memory[:quarter]), sorted(memory[-quarter:])
    return last[len(last) // 2] - first[len(first) // 2]


def test_a_long_time_of_all_sorts_of_requests(service, digits):
    numbers, kinds, failures, memory = itertools.count(), Counter(), [], []
    length, warm = amount(4, 1800), amount(0, 120)
    worker = service.worker

    def client(until):
        while time.monotonic() < until:
            try:
                kind, problem = visit(service, digits, next(numbers))
            except Exception as error:  # no answer where there should be one
                kind, problem = "lost", f"{type(error).__name__}: {error}"
            kinds[kind] += 1
            failures.extend([f"{kind}: {problem}"] if problem else [])

    def turn(seconds):
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, [time.monotonic() + seconds] * CLIENTS))

    turn(warm)
    end = time.monotonic() + length
    while time.monotonic() < end:
        turn(min(EVERY, length / 4))
        memory.append(service.memory())
    failures += [] if service.worker == worker else ["the service died"]
    moved = drift(memory)
    allowed = amount(64, 20) * MB  # a few seconds are not enough to tell a drift from a warm-up
    failures += [] if moved < allowed else [f"{moved / MB:.1f} MB drift"]
    figures = {"minutes": length / 60, "MB drift": moved / MB, "MB, most": max(memory) / MB}
    count("all sorts of requests for a long time: all answered, no memory lost", sum(kinds.values()), failures, figures)


def test_the_log_holds_nothing_that_was_sent(service, digits):
    """Markers stand in all pictures' texts, file names, queries, headers and tokens of these tests."""
    visited = Counter(visit(service, digits, number)[0] for number in range(60, 60 + amount(60, 400)))
    assert len(visited) == 9
    lines = service.log.read_text().splitlines()
    assert len(lines) > 40
    count("logs: no contents, names, queries, headers or tokens", len(lines), service.leaks())
    if LONG:
        assert len(lines) > 10_000
