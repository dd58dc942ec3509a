"""A real service in its own processes: many clients, slow clients, full queues, killed workers and shutdown.

These tests also check what docs/service.md states about granian: what it closes, what it refuses itself, and what it
leaves to a reverse proxy.
"""

import base64
import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from raw_http import connect, fetch, read_responses, request
from service_process import is_gone, service_process, wait_until
from small_service import MODELS, png

pytest.importorskip("granian", reason="the service needs the extra 'serve'")

import httpx

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals")

PNG = {"Content-Type": "image/png"}
SLOW_PREDICTIONS = """
import soap.serve.batching as batching, time
run = batching.run_operation
def slow(*arguments):
    time.sleep(1.5)
    return run(*arguments)
batching.run_operation = slow
"""

BROKEN_PREDICTIONS = """
import soap.serve.batching as batching
def broken(*arguments):
    raise ZeroDivisionError("secret")
batching.run_operation = broken
"""


def head(route, length, *further):
    """A request up to its body."""
    lines = [f"POST /v1/{route} HTTP/1.1", "Host: localhost", "Content-Type: image/png", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *further, "", ""]).encode()


def read_to_end(connection):
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A service with a timeout of one second and eight connections."""
    limits = {"timeout_s": 1.0, "connections": 8, "body": 100_000}
    with service_process(tmp_path_factory.mktemp("hasty") / "log", models=MODELS[:1], limits=limits) as service:
        yield service


def test_many_clients_get_their_own_results(live, digits):
    with httpx.Client(base_url=live) as client, ThreadPoolExecutor(8) as pool:

        def attack(row):
            path = f"/v1/attack?attack=fgsm&label={row % 10}"
            return client.post(path, content=png(digits.x[row]), headers=PNG, timeout=60).json()

        together = list(pool.map(attack, range(16)))
        for row, result in enumerate(together):
            assert result["label"] == row % 10
            assert base64.b64decode(result["input"]) == base64.b64decode(attack(row)["input"])
        assert [attack(row)["class"] for row in range(16)] == [result["class"] for result in together]


def test_chunked_body_is_read_up_to_the_limit(live, digits):
    whole = png(digits.x[0])
    assert httpx.post(f"{live}/v1/predict", content=iter([whole[:40], whole[40:]]), headers=PNG).status_code == 200
    endless = (b"x" * 65_536 for _ in range(1000))
    with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # the service may close while the client still sends
        assert httpx.post(f"{live}/v1/predict", content=endless, headers=PNG).status_code == 413
    assert httpx.get(f"{live}/healthz").status_code == 200


def test_slow_clients_are_closed_while_others_are_served(hasty):
    with contextlib.ExitStack() as stack:
        silent, slow_head, slow_body, idle = (stack.enter_context(connect(hasty.address)) for _ in range(4))
        slow_head.sendall(b"POST /v1/predict HTT")
        slow_body.sendall(head("predict", 1000) + b"abc")
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(3):
            assert httpx.get(f"{hasty.address}/healthz").status_code == 200
        assert read_to_end(silent) == b""
        assert read_to_end(slow_head) == b""
        response = read_to_end(slow_body)
        assert response.startswith(b"HTTP/1.1 408 ")
        assert b'"kind":"slow"' in response
        assert read_to_end(idle).startswith(b"HTTP/1.1 200 ")  # and then closed


def test_connections_beyond_the_limit_wait_for_a_free_one(hasty):
    """granian accepts no connection beyond its back-pressure; it does not refuse it either."""
    with contextlib.ExitStack() as stack:
        start = time.monotonic()
        for _ in range(12):
            stack.enter_context(connect(hasty.address))
        assert fetch(hasty.address, "/healthz").status == 200
        assert time.monotonic() - start > 0.5  # until the idle ones were closed


def test_slow_bodies_take_no_place_in_the_queue(digits, tmp_path):
    picture = png(digits.x[0])
    limits = {"queue": 1, "timeout_s": 30.0}
    with (
        service_process(tmp_path / "log", models=MODELS[:1], limits=limits) as service,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(4):
            slow = stack.enter_context(connect(service.address))
            slow.sendall(head("predict", 5000, "Expect: 100-continue"))
            assert slow.recv(1000).startswith(b"HTTP/1.1 100")  # its body is being read
            assert fetch(service.address, "/v1/predict", picture).status == 200


def test_full_queue_is_503_and_a_client_that_disconnects_frees_its_place(digits, tmp_path):
    body, limits = png(digits.x[0]), {"queue": 1, "batch_size": 1, "gather_s": 0.0, "timeout_s": 30.0}
    with service_process(tmp_path / "log", models=MODELS[:1], limits=limits, patch=SLOW_PREDICTIONS) as service:

        def gauge(name):
            metrics = httpx.get(f"{service.address}/metrics").text
            return f'soap_{name}_requests{{model="{MODELS[0]}"}} 1.0' in metrics

        with connect(service.address) as first, connect(service.address) as second:
            first.sendall(request("/v1/predict", body))
            wait_until(lambda: gauge("running"))
            second.sendall(request("/v1/predict", body))
            wait_until(lambda: gauge("queue"))
            refused = fetch(service.address, "/v1/predict", body)
            assert (refused.status, refused.content["error"]["kind"]) == (503, "busy")
            assert refused.headers["retry-after"] == "1"
            second.close()
            wait_until(lambda: not gauge("queue"))
            assert fetch(service.address, "/v1/predict", body).status == 200
            assert read_responses(first)[0].status == 200
        assert 'operation="predict"} 2.0' in httpx.get(f"{service.address}/metrics").text  # none for the one that left


def test_killed_worker_is_replaced_at_the_same_address(tmp_path):
    with service_process(tmp_path / "log", models=MODELS[:1]) as service:
        first = service.worker
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: service.worker not in (0, first))

        def healthy():
            with contextlib.suppress(httpx.HTTPError):  # nothing listens until the new worker has started
                return httpx.get(f"{service.address}/healthz").json()["status"] == "ok"

        wait_until(healthy)
        last = service.worker
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 0
        wait_until(lambda: is_gone(last))
    (message,) = service.server_messages()
    assert "Unexpected exit" in message


def test_killed_model_process_is_replaced_with_its_worker_which_stops_with_its_supervisor(digits, tmp_path):
    with service_process(tmp_path / "log", models=MODELS[:1]) as service:
        worker, process = service.worker, service.model_process
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: is_gone(worker))
        wait_until(lambda: service.worker not in (0, worker) and service.model_process not in (0, process))

        def responds():
            with contextlib.suppress(OSError):
                return fetch(service.address, "/v1/predict", png(digits.x[0])).status == 200

        wait_until(responds)
        last = service.worker
        service.process.kill()
        wait_until(lambda: is_gone(last))
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{service.address}/healthz")


def test_error_in_the_model_process_is_logged_and_a_worker_that_dies_twice_ends_the_service(digits, tmp_path):
    """The latter is granian's crash loop detection: two deaths within 5.5 s."""
    with service_process(tmp_path / "log", models=MODELS[:1], patch=BROKEN_PREDICTIONS) as service:
        response = fetch(service.address, "/v1/predict", png(digits.x[0]))
        assert response.status == 503
        (failure,) = [line for line in service.log_lines() if line.get("event") == "failure"]
        assert (failure["error"], failure["place"].split(":")[0]) == ("ZeroDivisionError", "<string>")
        assert "secret" not in service.log.read_text()
        assert fetch(service.address, "/healthz").status == 200
        for _ in range(2):
            worker = service.worker
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda worker=worker: service.process.poll() is not None or service.worker not in (0, worker))
        assert service.process.wait(30) == 1


def test_spawned_worker_serves(tmp_path):
    """As on a GPU, whose state a forked process cannot use."""
    script = tmp_path / "spawn.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.set_start_method('spawn')\n"
        "    from soap.cli import main\n"
        f"    sys.exit(main(['serve', '--port', '0', '--json', '--model', '{MODELS[0]}']))\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")
            address = next(line.split('"')[3] for line in lines if '"url"' in line)
            assert httpx.get(f"{address}/healthz").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_progress_get_their_response_at_shutdown(digits, tmp_path, stop):
    body, accepted = png(digits.x[0]), []
    with service_process(tmp_path / "log", models=MODELS[:1]) as service, contextlib.ExitStack() as stack:
        for route in ("predict", "purify", "attack") * 3:
            connection = stack.enter_context(connect(service.address))
            connection.sendall(head(route, len(body), "Expect: 100-continue"))
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")
            accepted.append(connection)
        service.process.send_signal(stop)
        with contextlib.suppress(ConnectionError):
            while True:  # until nothing listens any more
                connect(service.address).close()
        for connection in accepted:
            connection.sendall(body)
        for connection in accepted:
            assert read_to_end(connection).startswith(b"HTTP/1.1 200")
        assert service.process.wait(30) == 0
    assert service.access_statuses() == [200] * 9
    assert service.server_messages() == []


def test_damaged_weights_are_one_line_and_exit_code_1(tmp_path):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no weights")
    command = [sys.executable, "-m", "soap", "serve", "--port", "0", "--json", "--model", str(broken)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "broken.safetensors" in done.stderr


def test_https_with_a_certificate(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
            "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    try:
        subprocess.run(make, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("openssl cannot make a certificate here")
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    with service_process(tmp_path / "log", models=MODELS[:1], options=options) as service:
        assert service.address.startswith("https://")
        trusted = ssl.create_default_context(cafile=certificate)
        assert httpx.get(f"{service.address}/healthz", verify=trusted).status_code == 200


GRANIAN_ANSWERS = {
    "not HTTP": (b"\0\1 nonsense\r\n\r\n", b"HTTP/1.1 400 "),
    "two lengths": (head("predict", 3, "Content-Length: 4") + b"abcd", b"HTTP/1.1 400 "),
    "too many headers": (b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"HTTP/1.1 431 "),
    "headers too long": (b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n", b"HTTP/1.1 431 "),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
}


@pytest.mark.parametrize("name", GRANIAN_ANSWERS)
def test_granian_refuses_malformed_requests_with_an_empty_response(live, name):
    sent, start = GRANIAN_ANSWERS[name]
    with connect(live) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        response = read_to_end(connection)
    assert response.startswith(start)
    assert response.partition(b"\r\n\r\n")[2] == b""


def test_transfer_encoding_wins_over_content_length_and_the_connection_is_closed(live):
    """So a request hidden behind the shorter length gets no response."""
    hidden = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(live) as connection:
        connection.sendall(head("predict", 5, "Transfer-Encoding: chunked") + hidden)
        response = read_to_end(connection)
    assert response.startswith(b"HTTP/1.1 422 ")
    assert response.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked\r\nTransfer-Encoding: chunked", "identity"])
def test_transfer_encoding_other_than_chunked_is_refused_and_the_connection_closed(live, coding):
    hidden = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(live) as connection:
        connection.sendall(
            head("predict", 0).replace(b"Content-Length: 0", f"Transfer-Encoding: {coding}".encode()) + hidden
        )
        response = read_to_end(connection)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert response.count(b"HTTP/1.1") == 1


def test_client_that_does_not_read_is_not_closed(hasty):
    """granian has no write timeout: a reverse proxy must have one (send_timeout of nginx)."""
    with connect(hasty.address) as connection:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        time.sleep(2.5)
        assert httpx.get(f"{hasty.address}/healthz").status_code == 200
        connection.sendall(b"G")  # still open


def test_malformed_chunks_are_status_400(live):
    with connect(live) as connection:
        connection.sendall(head("predict", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"zz\r\n")
        response = read_responses(connection)[0]
    assert (response.status, response.content["error"]["kind"]) == (400, "request")
