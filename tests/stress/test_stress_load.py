"""A real service under load: 32 clients, ten times too many requests, a killed worker, SIGTERM."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter

import pytest

pytest.importorskip("granian", reason="the service needs the extra 'serve'")

from client_load import finish_load, start_load
from counting import LONG, amount, count
from raw_http import MARKER, TOKEN, connect, fetch, read_responses, request
from raw_http import TIMEOUT_S as PATIENCE_S
from service_process import MB, service_process

pytestmark = [pytest.mark.stress, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals")]

CRASH_LOOP_S = 6.0
"""granian stops the service if a worker dies within 5.5 s after it was replaced; kills are further apart."""


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def start_clients(service, digits, operation, seconds, **orders):
    return start_load(service.address, operation, seconds, [digit.picture for digit in digits], **orders)


def wrong_results(found, digits, operation):
    """What is wrong with the responses that clients got. A closed connection is for the caller to judge."""
    for record in found["records"]:
        if record["status"] == 200:
            problem = digits[record["picture"]].problem(operation, record["result"])
        elif record["status"] == 503:
            problem = None if record["retry"] else "503 without Retry-After"
        else:
            problem = f"status {record['status']}" if record["status"] else None
        if problem:
            yield problem


class HealthChecks:
    """Requests /healthz ten times per second, and records how long the responses take."""

    def __init__(self, address):
        self.address, self.seconds, self.failures = address, [], []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._check)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()

    def _check(self):
        while not self._stop.wait(0.1):
            start = time.monotonic()
            status = fetch(self.address, "/healthz").status
            self.seconds.append(time.monotonic() - start)
            self.failures += [] if status == 200 else [f"health: status {status}"]


def test_ten_times_overload(service, digits):
    """Latencies of accepted requests, compared with those of a single client."""
    finish_load(start_clients(service, digits, "purify", amount(1, 5), clients=32))  # warm-up
    idle = service.settled_memory(0) if LONG else service.memory()  # after half a minute without requests
    single = finish_load(start_clients(service, digits, "purify", amount(1, 20), clients=1))
    full = finish_load(start_clients(service, digits, "purify", amount(1.5, 15), clients=32))
    assert set(single["statuses"]) == set(full["statuses"]) == {"200"}
    rate = 10 * full["statuses"]["200"] / full["took"]
    with HealthChecks(service.address) as health:
        found = finish_load(start_clients(service, digits, "purify", amount(3, 60), rate=rate))
    calm = [record["seconds"] for record in single["records"] if record["status"] == 200]
    accepted = [record for record in found["records"] if record["status"] == 200]
    rush = [record["seconds"] for record in accepted]
    first_second = min(record["start"] for record in found["records"]) + 1  # the queue is still long, for bursts
    statuses = Counter(record["status"] for record in found["records"])
    failures = [*wrong_results(found, digits, "purify"), *health.failures]
    failures += ["no response"] * statuses[0]
    failures += [] if rush else ["no request was accepted"]
    more = service.settled_memory(idle + 64 * MB) - idle
    failures += [] if more <= 64 * MB else [f"{more / MB:.0f} MB more than before"]
    ratio, slowest = quantile(rush, 0.99) / quantile(calm, 0.99), max(health.seconds)
    late = max((record["seconds"] for record in accepted if record["start"] < first_second), default=0.0)
    kept = len(accepted) / found["took"] / (rate / 10)
    if LONG:
        failures += [] if kept >= 0.9 else [f"{kept:.0%} of the throughput of 32 clients"]
        failures += [] if ratio <= 5 else [f"accepted p99 is {ratio:.1f} x that of a single client"]
        failures += [] if late <= 1 else [f"a request of the first second took {late:.2f} s"]
        failures += [] if slowest <= 0.5 else [f"health took {slowest:.2f} s"]
    measured = {
        "requests/s offered": len(found["records"]) / found["took"],
        "requests/s of 32 clients": rate / 10,
        "requests/s accepted": len(accepted) / found["took"],
        "share of the throughput of 32 clients": kept,
        "ms, p99 single client": 1000 * quantile(calm, 0.99),
        "ms, p99 accepted": 1000 * quantile(rush, 0.99),
        "ms, slowest accepted in the first second": 1000 * late,
        "times the p99 of a single client": ratio,
        "s, slowest health": slowest,
        "MB more afterwards": more / MB,
        "not sent": found["unsent"],
    }
    assert statuses[503] > 0
    count("10 x overload: a result, or 503 with Retry-After", len(found["records"]), failures, measured)


def test_killed_worker_is_replaced_and_no_result_is_wrong(service, digits):
    kills, failures, trials, down = amount(1, 20), [], 0, []
    for _ in range(kills):
        for operation in ("predict", "purify") if LONG else ("predict",):
            clients = start_clients(service, digits, operation, 2 + CRASH_LOOP_S if LONG else 3.0, clients=16)
            time.sleep(1.5)
            worker, start = service.worker, time.monotonic()
            os.kill(worker, signal.SIGKILL)
            status = 0
            while status != 200 and time.monotonic() < start + PATIENCE_S:
                with contextlib.suppress(OSError, ConnectionError):
                    status = fetch(service.address, "/v1/predict", digits[0].picture).status
                time.sleep(0.02)
            assert status == 200, f"{PATIENCE_S:.0f} s after the kill: status {status}"
            down.append(time.monotonic() - start)
            found = finish_load(clients)
            trials += len(found["records"])
            failures += wrong_results(found, digits, operation)
            lost = [record for record in found["records"] if record["status"] == 0]
            failures += ["lost without a kill" for record in lost if record["start"] > start + down[-1]]
            failures += [] if service.worker not in (0, worker) else ["the worker was not replaced"]
            failures += [f"down for {down[-1]:.1f} s"] if LONG and down[-1] > 5 else []
    measured = {"kills": len(down), "s until the next response, at most": max(down)}
    count("killed worker: no wrong result, and it is replaced", trials, failures, measured)


def test_sigterm_under_load(digits, tmp_path):
    """Requests that the service has begun to read get their response.

    granian closes a connection whose request it has not begun to read: those are counted, and are not failures.
    """
    from expected import MODEL

    trials, failures, statuses, unread, longest = 0, [], Counter(), 0, 0.0
    for turn in range(amount(1, 20)):
        with (
            service_process(tmp_path / f"log{turn}", models=[MODEL], token=TOKEN) as one,
            contextlib.ExitStack() as stack,
        ):
            connections, bodies, late = [], [], []
            for place in range(48):
                operation, digit = ("predict", "purify")[place % 2], digits[place % len(digits)]
                connection = stack.enter_context(connect(one.address))
                head = request(f"/v1/{operation}", digit.picture, headers=("Expect: 100-continue",))
                connection.sendall(head[: -len(digit.picture)])
                assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # the service reads the body
                connections.append(connection)
                bodies.append(digit.picture)
            for _ in range(16):
                late.append(stack.enter_context(connect(one.address)))
                late[-1].sendall(request("/v1/predict", digits[0].picture))
            one.process.send_signal(signal.SIGTERM)
            start = time.monotonic()
            for connection, body in zip(connections, bodies, strict=True):
                connection.sendall(body)
            for place, connection in enumerate(connections):
                found = read_responses(connection)
                trials += 1
                statuses[found[0].status if found else 0] += 1
                operation, digit = ("predict", "purify")[place % 2], digits[place % len(digits)]
                if not found or found[0].status not in (200, 503):
                    failures.append(f"{operation}: {found[0].status if found else 'no response'}")
                elif found[0].status == 200 and digit.problem(operation, found[0].content):
                    failures.append(digit.problem(operation, found[0].content))
            for connection in late:
                found = read_responses(connection)
                unread += not found
                failures += [f"late: status {found[0].status}"] if found and found[0].status not in (200, 503) else []
            code = one.process.wait(30)
            longest = max(longest, time.monotonic() - start)
            failures += [] if code == 0 else [f"exit code {code}"]
            failures += one.log_leaks(MARKER)
    assert statuses[200] > 0
    count(
        "SIGTERM under load: a response to every request that was being read, exit code 0",
        trials,
        failures,
        {
            "status 200": statuses[200],
            "status 503": statuses[503],
            "sent just before SIGTERM and closed unread": unread,
            "s until it ended, at most": longest,
        },
    )
