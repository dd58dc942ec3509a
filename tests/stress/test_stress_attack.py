"""A real service with hostile clients: hostile pictures, malformed requests, slow clients."""

import contextlib
import socket
import sys
import threading
import time
from collections import Counter

import pytest

pytest.importorskip("granian", reason="the service needs the extra 'serve'")

from counting import LONG, amount, count
from hostile_pictures import HOSTILE
from malformed_requests import MALFORMED, TRAILERS, UNFINISHED, chunked
from raw_http import connect, fetch, read_responses, request
from service_process import MB

pytestmark = [pytest.mark.stress, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals")]

ROUTES = ("predict", "purify", "attack?attack=fgsm&")
TIMEOUT_S = 10.0 if LONG else 2.0


def ordinary_client_problem(service, digits, number, operation="predict"):
    """What is wrong with the response to an ordinary request; None if it is correct."""
    digit = digits[number % len(digits)]
    response = fetch(service.address, f"/v1/{operation}", digit.picture)
    problem = response_problem(response)
    return problem or (response.status == 200 and digit.problem(operation, response.content)) or None


def response_problem(response):
    """What is wrong with a response; in a short run the short timeout may end on a slow machine."""
    return response.problem() or ("busy" if LONG and response.status == 503 else None)


def is_prediction(content):
    return len(content["probabilities"]) == 10 and abs(sum(content["probabilities"]) - 1) < 1e-3


def test_hostile_pictures_are_refused_in_bounded_memory(service, digits):
    assert len(HOSTILE) >= 40
    for number in range(8):
        assert ordinary_client_problem(service, digits, number, "purify") is None
    idle, failures, statuses, peak = service.memory(), [], Counter(), 0
    worker = service.worker
    for _ in range(amount(1, 10)):
        for name, picture in HOSTILE.items():
            for route in ROUTES if LONG else ROUTES[:1]:
                for kind in ("image/png", "image/jpeg") if LONG else ("image/png",):
                    response = fetch(service.address, f"/v1/{route}", picture, kind=kind)
                    statuses[response.status] += 1
                    problem = response_problem(response)
                    if problem or (response.status == 200 and not is_prediction(response.content)):
                        failures.append(f"{name}: {problem or 'not a prediction'}")
            peak = max(peak, service.memory() - idle)
    failures += [] if service.worker == worker else ["the worker died"]
    failures += [] if ordinary_client_problem(service, digits, 0) is None else ["an ordinary picture afterwards"]
    failures += [] if peak < 256 * MB else [f"{peak / MB:.0f} MB more at the peak"]
    after = service.settled_memory(idle + 64 * MB) - idle
    failures += [] if after <= 64 * MB else [f"{after / MB:.0f} MB more than before"]
    assert {200, 413, 415, 422} <= set(statuses)
    count(
        f"{len(HOSTILE)} hostile pictures: a result or an explained refusal, never a 5xx, memory bounded",
        sum(statuses.values()),
        failures,
        {"MB more at the peak": peak / MB, "MB more afterwards": after / MB},
    )


def test_malformed_requests_smuggle_no_request(service, digits):
    trials, failures = 0, []
    for _ in range(amount(1, 20)):
        for number, (name, sent) in enumerate(MALFORMED.items()):
            digit = digits[number % len(digits)]
            with connect(service.address) as connection:
                with contextlib.suppress(OSError):  # the service may close the connection before all is sent
                    connection.sendall(sent)
                    if name in UNFINISHED:
                        connection.shutdown(socket.SHUT_WR)
                    else:
                        connection.sendall(request("/v1/predict", digit.picture, headers=("Connection: close",)))
                found = read_responses(connection, count=4)
            trials += 1
            failures += [f"{name}: {response_problem(each)}" for each in found if response_problem(each)]
            failures += [f"{name}: a request was smuggled in" for each in found if b'"input_shape"' in each.body]
            for response in found[-1:]:
                wrong = "probabilities" in str(response.body) and digit.problem("predict", response.content)
                failures += [f"{name}: the next request: {wrong}"] if wrong else []
    count("malformed requests: 4xx or closed, no smuggled request, the next response correct", trials, failures)
    assert ordinary_client_problem(service, digits, 1) is None


def test_pipelined_responses_are_in_order(service, digits):
    trials, failures = 0, []
    for turn in range(amount(1, 20)):
        order = [(turn + 3 * place) % len(digits) for place in range(12)]
        parts = [request("/v1/predict", digits[number].picture) for number in order]
        picture = digits[order[5]].picture
        parts[5] = chunked(b"%x\r\n%b\r\n" % (len(picture), picture) + TRAILERS)
        with connect(service.address) as connection:
            connection.sendall(b"".join(parts))
            found = read_responses(connection, count=len(parts))
        trials += len(parts)
        if len(found) != len(parts):
            failures.append(f"{len(found)} responses to {len(parts)} requests")
        for number, response in zip(order, found, strict=False):
            problem = response_problem(response)
            problem = problem or (response.status == 200 and digits[number].problem("predict", response.content))
            failures += [problem] if problem else []
    count("pipelined requests, some with trailers: responses in order, each correct", trials, failures)


def send_slowly(connection, parts, pause, stop):
    """Send the parts one by one until the connection is closed."""
    with contextlib.suppress(OSError):
        for part in parts:
            if stop.wait(pause):
                return
            connection.sendall(part)


def slow_clients(picture):
    """Kinds of slow clients: what each sends at once, and then part by part (None: closes its sending side)."""
    whole = request("/v1/predict", picture)
    body = request("/v1/predict", b"x" * 4000)
    single_bytes = [bytes([byte]) for byte in whole]
    return {
        "sends nothing": (b"", []),
        "headers byte by byte": (b"", single_bytes),
        "body byte by byte": (body[:-4000], [b"x"] * 4000),
        "body that stops": (body[:-2000], []),
        "chunks without end": (chunked(b""), [b"1\r\nx\r\n"] * 4000),
        "refused, and goes on sending": (body[:-4000].replace(b"image/png", b"image/gif"), [b"x"] * 4000),
        "half-closed": (body[:-2000], None),
        "idle after its response": (request("/healthz"), []),
        "second headers byte by byte": (request("/healthz"), single_bytes),
        "does not read": (request("/openapi.json") * 400, []),
    }


NOT_CLOSED = "does not read"
"""granian has no write timeout; docs/service.md leaves it to the reverse proxy. The others must be closed."""


def test_slow_clients_are_closed_while_others_are_served(service, digits):
    kinds, each = slow_clients(digits[0].picture), amount(4, 20)
    stop, threads, connections = threading.Event(), [], []
    start = time.monotonic()
    for name, (first, rest) in kinds.items():
        for _ in range(each):
            connection = connect(service.address)
            connections.append((name, connection))
            connection.sendall(first)
            if rest is None:
                connection.shutdown(socket.SHUT_WR)
            elif rest:
                threads.append(threading.Thread(target=send_slowly, args=(connection, rest, 0.1, stop)))
                threads[-1].start()
    failures, served, slowest, all_connected = [], 0, 0.0, time.monotonic()
    while time.monotonic() < all_connected + TIMEOUT_S:
        sent = time.monotonic()
        wrong = ordinary_client_problem(service, digits, served, ("predict", "purify")[served % 2])
        slowest = max(slowest, time.monotonic() - sent)
        served += 1
        failures += [f"an ordinary client: {wrong}"] if wrong else []
    end = all_connected + 4 * TIMEOUT_S + 20
    for name, connection in connections:
        if name == NOT_CLOSED:
            continue
        connection.settimeout(max(0.1, end - time.monotonic()))
        last = b""
        with contextlib.suppress(ConnectionError):
            try:
                while part := connection.recv(65_536):
                    last += part
            except TimeoutError:
                failures.append(f"{name}: still open")
        if name.startswith("body") and not last.startswith(b"HTTP/1.1 408"):
            failures.append(f"{name}: {last[:30]!r}")
    longest = time.monotonic() - start
    stop.set()
    for _, connection in connections:
        connection.close()
    for thread in threads:
        thread.join()
    if LONG and longest > all_connected - start + 3 * TIMEOUT_S + 5:
        failures.append(f"the last was closed after {longest:.0f} s")
    measured = {
        "slow clients": len(connections),
        "s until the last was closed": longest,
        "s, slowest response": slowest,
    }
    count(
        "slow clients of ten kinds: others are served meanwhile, and nine of the kinds are closed",
        len(connections) + served,
        failures,
        measured,
    )
