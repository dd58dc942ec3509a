"""A real service with more to do than it can, killed while it works, and told to stop while it works."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

import crowd
from counting import LONG, amount, count
from raw import PATIENT, answers, ask, connected, request
from served import MB, served

pytestmark = [pytest.mark.stress, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals")]


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def crowded(service, digits, operation, seconds, **orders):
    return crowd.started(service.address, operation, seconds, [digit.picture for digit in digits], **orders)


def wrong_answers(found, digits, operation):
    """What is wrong with what a crowd was told; a connection that broke is for the caller to judge."""
    for note in found["notes"]:
        if note["status"] == 200:
            problem = digits[note["picture"]].wrong(operation, note["answer"])
        elif note["status"] == 503:
            problem = None if note["retry"] else "503 without Retry-After"
        else:
            problem = f"status {note['status']}" if note["status"] else None
        if problem:
            yield problem


class Health:
    """Asks whether the service is well, all the time, and how long the answer takes."""

    def __init__(self, address):
        self.address, self.seconds, self.failures = address, [], []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()

    def _ask(self):
        while not self._stop.wait(0.1):
            began = time.monotonic()
            status = ask(self.address, "/healthz").status
            self.seconds.append(time.monotonic() - began)
            self.failures += [] if status == 200 else [f"health: status {status}"]


def test_ten_times_too_much(service, digits):
    """Latencies of requests that were accepted, against those of a client alone."""
    crowd.told(crowded(service, digits, "purify", amount(1, 5), clients=32))  # warm
    idle = service.settled(0) if LONG else service.memory()  # after half a minute in which nobody asks
    alone = crowd.told(crowded(service, digits, "purify", amount(1, 20), clients=1))
    full = crowd.told(crowded(service, digits, "purify", amount(1.5, 15), clients=32))
    assert set(alone["statuses"]) == set(full["statuses"]) == {"200"}
    rate = 10 * full["statuses"]["200"] / full["took"]
    with Health(service.address) as health:
        found = crowd.told(crowded(service, digits, "purify", amount(3, 60), rate=rate))
    calm = [note["seconds"] for note in alone["notes"] if note["status"] == 200]
    accepted = [note for note in found["notes"] if note["status"] == 200]
    rush = [note["seconds"] for note in accepted]
    settled = min(note["began"] for note in found["notes"]) + 1  # until then the queue is long, to smooth a burst
    statuses = Counter(note["status"] for note in found["notes"])
    failures = [*wrong_answers(found, digits, "purify"), *health.failures]
    failures += ["no answer"] * statuses[0]
    failures += [] if rush else ["nobody was answered"]
    more = service.settled(idle + 64 * MB) - idle
    failures += [] if more <= 64 * MB else [f"{more / MB:.0f} MB more than before"]
    ratio, slowest = quantile(rush, 0.99) / quantile(calm, 0.99), max(health.seconds)
    late = max((note["seconds"] for note in accepted if note["began"] < settled), default=0.0)
    if LONG:
        failures += [] if ratio <= 5 else [f"accepted p99 is {ratio:.1f} x that of a client alone"]
        failures += [] if late <= 1 else [f"one of the first second waited {late:.2f} s"]
        failures += [] if slowest <= 0.5 else [f"health took {slowest:.2f} s"]
    figures = {
        "requests/s offered": len(found["notes"]) / found["took"],
        "requests/s without overload": rate / 10,
        "requests/s answered": len(accepted) / found["took"],
        "ms, p99 alone": 1000 * quantile(calm, 0.99),
        "ms, p99 accepted": 1000 * quantile(rush, 0.99),
        "ms, slowest accepted in the first second": 1000 * late,
        "times the p99 alone": ratio,
        "s, slowest health": slowest,
        "MB more afterwards": more / MB,
        "not sent": found["late"],
    }
    assert statuses[503] > 0
    count("ten times too much: answers, or 503 with Retry-After", len(found["notes"]), failures, figures)


def test_killed_while_it_works_it_comes_back_and_never_says_wrong(service, digits):
    kills, failures, trials, away = amount(1, 20), [], 0, []
    for _ in range(kills):
        for operation in ("predict", "purify") if LONG else ("predict",):
            people = crowded(service, digits, operation, 6.0 if LONG else 3.0, clients=16)
            time.sleep(1.5)
            worker, began = service.worker, time.monotonic()
            os.kill(worker, signal.SIGKILL)
            status = 0
            while status != 200 and time.monotonic() < began + PATIENT:
                with contextlib.suppress(OSError, ConnectionError):
                    status = ask(service.address, "/v1/predict", digits[0].picture).status
                time.sleep(0.02)
            assert status == 200, f"{PATIENT:.0f} s after its end: status {status}"
            away.append(time.monotonic() - began)
            found = crowd.told(people)
            trials += len(found["notes"])
            failures += wrong_answers(found, digits, operation)
            lost = [note for note in found["notes"] if note["status"] == 0]
            failures += ["lost without a kill" for note in lost if note["began"] > began + away[-1]]
            failures += [] if service.worker not in (0, worker) else ["no other took its place"]
            failures += [f"away for {away[-1]:.1f} s"] if LONG and away[-1] > 5 else []
    figures = {"kills": len(away), "s until it answered again, at most": max(away)}
    count("killed while it works: no wrong answer, and another takes its place", trials, failures, figures)


def test_told_to_stop_while_it_works_it_answers_what_it_has(digits, tmp_path):
    trials, failures, statuses, longest = 0, [], Counter(), 0.0
    for turn in range(amount(1, 20)):
        with served(tmp_path / f"log{turn}") as one, contextlib.ExitStack() as leave:
            people = [leave.enter_context(connected(one.address)) for _ in range(48)]
            for connection in people[:24]:  # half of them have been answered before
                connection.sendall(request("/healthz"))
                assert answers(connection)[0][0].status == 200
            people += [leave.enter_context(connected(one.address)) for _ in range(16)]
            for place, connection in enumerate(people):
                operation = ("predict", "purify")[place % 2]
                connection.sendall(request(f"/v1/{operation}", digits[place % len(digits)].picture))
            one.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            for place, connection in enumerate(people):
                found, _ = answers(connection)
                trials += 1
                statuses[found[0].status if found else 0] += 1
                operation, digit = ("predict", "purify")[place % 2], digits[place % len(digits)]
                if not found or found[0].status not in (200, 503):
                    failures.append(f"{operation}: {found[0].status if found else 'no answer'}")
                elif found[0].status == 200 and digit.wrong(operation, found[0].content):
                    failures.append(digit.wrong(operation, found[0].content))
            code = one.process.wait(30)
            longest = max(longest, time.monotonic() - began)
            failures += [] if code == 0 else [f"exit code {code}"]
            failures += one.leaks()
    assert statuses[200] > 0
    count(
        "SIGTERM while it works: every request that was sent before is answered, exit code 0",
        trials,
        failures,
        {"answered 200": statuses[200], "answered 503": statuses[503], "s until it ended, at most": longest},
    )
