"""A real service and clients that mean harm: pictures, lies about lengths, and those who take their time."""

import contextlib
import select
import socket
import sys
import threading
import time
from collections import Counter

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from counting import LONG, amount, count
from hostile_pictures import HOSTILE
from lies import LIES, TRAILERS, UNFINISHED, chunked
from raw import answers, ask, connected, request
from served import MB

pytestmark = [pytest.mark.stress, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals")]

ROUTES = ("predict", "purify", "attack?attack=fgsm&")
PATIENCE = 10.0 if LONG else 2.0
KEEP_ALIVE = 15.0 if LONG else 2.0


def right(service, digits, number, operation="predict"):
    """That an ordinary client is answered, and rightly: None, or what is wrong."""
    digit = digits[number % len(digits)]
    answer = ask(service.address, f"/v1/{operation}", digit.picture)
    return trouble(answer) or (answer.status == 200 and digit.wrong(operation, answer.content)) or None


def trouble(answer):
    """What is wrong with an answer; a short run's little patience may end on a slow machine."""
    return answer.problem() or ("busy" if LONG and answer.status == 503 else None)


def sane(content):
    """Whether an answer to an odd picture is one about it."""
    return len(content["probabilities"]) == 10 and abs(sum(content["probabilities"]) - 1) < 1e-3


def test_hostile_pictures_are_answered_or_refused_in_bounded_memory(service, digits):
    assert len(HOSTILE) >= 40
    for number in range(8):
        assert right(service, digits, number, "purify") is None
    idle, failures, statuses, peak = service.memory(), [], Counter(), 0
    worker = service.worker
    rounds = amount(1, 10)
    for _ in range(rounds):
        for name, picture in HOSTILE.items():
            for route in ROUTES if LONG else ROUTES[:1]:
                for kind in ("image/png", "image/jpeg") if LONG else ("image/png",):
                    answer = ask(service.address, f"/v1/{route}", picture, kind=kind)
                    statuses[answer.status] += 1
                    problem = trouble(answer)
                    if problem or (answer.status == 200 and not sane(answer.content)):
                        failures.append(f"{name}: {problem or 'no sense'}")
            peak = max(peak, service.memory() - idle)
    failures += [] if service.worker == worker else ["the service died"]
    failures += [] if right(service, digits, 0) is None else ["an ordinary picture afterwards"]
    failures += [] if peak < 256 * MB else [f"{peak / MB:.0f} MB more while it worked"]
    after = service.settled(idle + 64 * MB) - idle
    failures += [] if after <= 64 * MB else [f"{after / MB:.0f} MB more than before"]
    assert {200, 413, 415, 422} <= set(statuses)
    count(
        f"{len(HOSTILE)} hostile pictures: an answer or a refusal that says why, never a 5xx, memory bounded",
        sum(statuses.values()),
        failures,
        {"MB more at the peak": peak / MB, "MB more afterwards": after / MB},
    )


def test_lies_about_length_and_form_smuggle_nothing(service, digits):
    trials, failures = 0, []
    for _ in range(amount(1, 20)):
        for number, (name, lie) in enumerate(LIES.items()):
            digit = digits[number % len(digits)]
            with connected(service.address) as connection:
                with contextlib.suppress(OSError):  # it may hang up on us before we are done
                    connection.sendall(lie)
                    if name in UNFINISHED:
                        connection.shutdown(socket.SHUT_WR)
                    else:
                        connection.sendall(request("/v1/predict", digit.picture, headers=("Connection: close",)))
                found, _ = answers(connection, most=4)
            trials += 1
            failures += [f"{name}: {trouble(answer)}" for answer in found if trouble(answer)]
            failures += [f"{name}: a request was smuggled in" for answer in found if b'"input_shape"' in answer.body]
            for answer in found[-1:]:
                wrong = "probabilities" in str(answer.body) and digit.wrong("predict", answer.content)
                failures += [f"{name}: the next request: {wrong}"] if wrong else []
    count("lies about length and form: 4xx or hung up, nothing smuggled in, the next answer its own", trials, failures)
    assert right(service, digits, 1) is None


def test_pipelined_requests_are_answered_in_order_each_with_its_own(service, digits):
    trials, failures = 0, []
    for turn in range(amount(1, 20)):
        order = [(turn + 3 * place) % len(digits) for place in range(12)]
        parts = [request("/v1/predict", digits[number].picture) for number in order]
        picture = digits[order[5]].picture
        parts[5] = chunked(b"%x\r\n%b\r\n" % (len(picture), picture) + TRAILERS)
        with connected(service.address) as connection:
            connection.sendall(b"".join(parts))
            found, _ = answers(connection, most=len(parts))
        trials += len(parts)
        if len(found) != len(parts):
            failures.append(f"{len(found)} answers to {len(parts)} requests")
        for number, answer in zip(order, found, strict=False):
            problem = trouble(answer) or (answer.status == 200 and digits[number].wrong("predict", answer.content))
            failures += [problem] if problem else []
    count("pipelined requests, trailers among them: answered in order, each with its own", trials, failures)


def drip(connection, parts, pause, stop):
    """Send piece by piece until someone hangs up."""
    with contextlib.suppress(OSError):
        for part in parts:
            if stop.wait(pause):
                return
            connection.sendall(part)


def slow_ways(picture):
    """How to be slow: what is said first, and what then, piece by piece."""
    head = request("/v1/predict", picture)
    body = request("/v1/predict", b"x" * 4000)
    letters = [bytes([byte]) for byte in head]
    return {
        "says nothing": (b"", []),
        "headers byte by byte": (b"", letters),
        "body byte by byte": (body[:-4000], [b"x"] * 4000),
        "body that stops": (body[:-2000], []),
        "chunks without end": (chunked(b""), [b"1\r\nx\r\n"] * 4000),
        "refused, and goes on": (body[:-4000].replace(b"image/png", b"image/gif"), [b"x"] * 4000),
        "half-closed": (body[:-2000], None),
        "idle after its answer": (request("/healthz"), []),
        "second headers byte by byte": (request("/healthz"), letters),
        "does not read": (request("/openapi.json") * 400, []),
    }


def test_slow_clients_are_cut_off_while_others_are_served(service, digits):
    """Each is cut off in the end: by a refusal, or a hang-up."""
    ways, each = slow_ways(digits[0].picture), amount(4, 20)
    stop, threads, connections = threading.Event(), [], []
    began = time.monotonic()
    for name, (first, rest) in ways.items():
        for _ in range(each):
            connection = connected(service.address)
            connections.append((name, connection))
            connection.sendall(first)
            if rest is None:
                connection.shutdown(socket.SHUT_WR)
            elif rest:
                threads.append(threading.Thread(target=drip, args=(connection, rest, 0.1, stop)))
                threads[-1].start()
    failures, served, slowest, all_here = [], 0, 0.0, time.monotonic()
    while time.monotonic() < all_here + PATIENCE:
        asked = time.monotonic()
        wrong = right(service, digits, served, ("predict", "purify")[served % 2])
        slowest = max(slowest, time.monotonic() - asked)
        served += 1
        failures += [f"an ordinary client: {wrong}"] if wrong else []
    end = all_here + KEEP_ALIVE + 3 * PATIENCE + 20
    for name, connection in connections:
        left = max(0.1, end - time.monotonic())
        connection.settimeout(left)
        last = b""
        if name == "does not read":
            hung_up = select.poll()
            hung_up.register(connection, 0)
            failures += [] if hung_up.poll(1000 * left) else [f"{name}: still there"]
        with contextlib.suppress(ConnectionError):
            try:
                while part := connection.recv(65_536):
                    last += part
            except TimeoutError:
                failures.append(f"{name}: still there")
        if name.startswith("body") and not last.startswith(b"HTTP/1.1 408"):
            failures.append(f"{name}: {last[:30]!r}")
        connection.close()
    longest = time.monotonic() - began
    stop.set()
    for thread in threads:
        thread.join()
    if LONG and longest > all_here - began + KEEP_ALIVE + 2 * PATIENCE + 5:
        failures.append(f"the last was cut off after {longest:.0f} s")
    figures = {"slow clients": len(connections), "s until the last was cut off": longest, "s, slowest answer": slowest}
    count(
        "slow clients of ten kinds beside ordinary ones: those are answered, these are cut off",
        len(connections) + served,
        failures,
        figures,
    )
