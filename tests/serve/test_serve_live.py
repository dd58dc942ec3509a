"""The service behind a real server: many clients, slow ones, those who leave, and a clean end."""

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlsplit

import pytest
from small_service import MODELS, png, running

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

import httpx

from soap.serve import Limits, create_app
from soap.serve.operations import perform

KIND = {"Content-Type": "image/png"}


def connected(address):
    place = urlsplit(address)
    return socket.create_connection((place.hostname, place.port), timeout=20)


def head(route, length, *further):
    """A request as it goes over the wire, up to its body."""
    lines = [f"POST /v1/{route} HTTP/1.1", "Host: localhost", "Content-Type: image/png", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *further, "", ""]).encode()


def read_all(connection):
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def test_many_clients_get_their_own_answers(live, digits):
    with httpx.Client(base_url=live) as client, ThreadPoolExecutor(8) as pool:

        def ask(row):
            hurt = client.post(f"/v1/attack?attack=fgsm&label={row % 10}", content=png(digits.x[row]), headers=KIND)
            return hurt.json()

        together = list(pool.map(ask, range(16)))
        for row, answer in enumerate(together):
            assert answer["label"] == row % 10
            assert base64.b64decode(answer["input"]) == base64.b64decode(ask(row)["input"])
        assert [ask(row)["class"] for row in range(16)] == [answer["class"] for answer in together]


def test_a_chunked_body_is_read_and_bounded(live, digits):
    whole = png(digits.x[0])
    parts = [whole[:40], whole[40:]]
    assert httpx.post(f"{live}/v1/predict", content=iter(parts), headers=KIND).status_code == 200
    endless = (b"x" * 65_536 for _ in range(1000))
    assert httpx.post(f"{live}/v1/predict", content=endless, headers=KIND).status_code == 413
    assert httpx.get(f"{live}/healthz").status_code == 200


def test_slow_clients_are_let_go_while_others_are_served(digits):
    limits = Limits(seconds=2.0)
    with running(create_app([MODELS[0]], limits=limits), limits) as address:
        silent, slow_head, slow_body = (connected(address) for _ in range(3))
        slow_head.sendall(b"POST /v1/predict HTT")
        slow_body.sendall(head("predict", 1000) + b"abc")
        for _ in range(3):
            assert httpx.get(f"{address}/healthz").status_code == 200
        assert read_all(silent) == b""
        assert read_all(slow_head) == b""
        answer = read_all(slow_body)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"kind":"slow"' in answer
        for connection in (silent, slow_head, slow_body):
            connection.close()


def test_slow_second_headers_are_let_go_too():
    limits = Limits(seconds=2.0)
    with running(create_app([MODELS[0]], limits=limits), limits) as address, connected(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(1000)
        connection.sendall(b"GET /hea")
        assert read_all(connection) == b""


@pytest.fixture
def held(monkeypatch):
    """Workers stop before their work until the event is set."""
    go = threading.Event()

    def waiting(*arguments):
        go.wait(60)
        return perform(*arguments)

    monkeypatch.setattr("soap.serve.batching.perform", waiting)
    yield go
    go.set()


def until(holds):
    """Wait for something that is sure to come."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_who_leaves_is_not_worked_for(digits, held):
    """Clients that hang up while they wait their turn; who stays is answered."""
    limits = Limits(seconds=60.0, gather=0.0)
    body, app = png(digits.x[0]), create_app([MODELS[0]], limits=limits)
    with running(app, limits) as address, ThreadPoolExecutor(1) as pool, httpx.Client(base_url=address) as client:
        stays = pool.submit(client.post, "/v1/predict", content=body, headers=KIND, timeout=60)
        worker = app.state.service.workers[MODELS[0]]
        until(lambda: worker.running)
        for _ in range(5):
            with connected(address) as connection:
                connection.sendall(head("purify", len(body)) + body)
                until(lambda: worker.waiting)
            until(lambda: not worker.waiting)
        held.set()
        assert stays.result().status_code == 200
        metrics = client.get("/metrics").text
        assert 'operation="predict"} 1.0' in metrics
        assert 'operation="purify"}' not in metrics


def test_an_overfull_queue_says_so(digits, held):
    limits = Limits(seconds=60.0, queue=1, batch=1, gather=0.0)
    body, app = png(digits.x[0]), create_app([MODELS[0]], limits=limits)
    with running(app, limits) as address, ThreadPoolExecutor(2) as pool, httpx.Client(base_url=address) as client:
        ask = partial(client.post, "/v1/purify", content=body, headers=KIND, timeout=60)
        worker = app.state.service.workers[MODELS[0]]
        first = pool.submit(ask)
        until(lambda: worker.running)
        second = pool.submit(ask)
        until(lambda: worker.waiting)
        third = ask()
        assert third.status_code == 503
        assert third.headers["Retry-After"] == "1"
        assert third.json()["error"]["kind"] == "busy"
        held.set()
        assert [asked.result().status_code for asked in (first, second)] == [200, 200]


@pytest.mark.skipif(os.name != "posix", reason="SIGTERM is POSIX's")
def test_sigterm_answers_what_was_accepted(digits, tmp_path):
    command = [sys.executable, "-m", "soap", "serve", "--model", MODELS[0], "--port", "0", "--json", "-v"]
    body, accepted = png(digits.x[0]), []
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        contextlib.ExitStack() as leave,
    ):
        leave.callback(process.kill)
        text = ""
        while not text.endswith("}\n"):
            text += process.stdout.readline()
        address = json.loads(text)["url"]
        for route in ("predict", "purify", "attack") * 3:
            connection = leave.enter_context(connected(address))
            connection.sendall(head(route, len(body), "Expect: 100-continue"))
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")
            accepted.append(connection)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionRefusedError):
            while True:  # until nobody listens any more
                connected(address).close()
        for connection in accepted:
            connection.sendall(body)
        for connection in accepted:
            assert read_all(connection).startswith(b"HTTP/1.1 200")
        assert process.wait(30) == 0
    lines = (tmp_path / "errors").read_text().splitlines()
    assert lines[0] == "Stop it with Ctrl-C."
    assert [json.loads(line)["status"] for line in lines[1:]] == [200] * 9
