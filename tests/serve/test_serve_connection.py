"""Connections of a real server: no delay, no end to nobody's patience, refusals that arrive, and lies refused."""

import contextlib
import logging
import re
import select
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
from small_service import MODELS, png, running

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from soap.serve import Limits, create_app
from soap.serve.connection import Connection, _Outgoing
from soap.serve.running import bind

GOOD = "HTTP/1.1 200"


@pytest.fixture(scope="module")
def hasty():
    """A service that waits a second at most."""
    limits = Limits(seconds=1.0, body=100_000)
    with running(create_app([MODELS[0]], limits=limits), limits) as address:
        yield address


def connected(address):
    place = urlsplit(address)
    return socket.create_connection((place.hostname, place.port), timeout=30)


def head(*headers, kind="image/png", first="POST /v1/predict HTTP/1.1"):
    return "\r\n".join([first, "Host: localhost", f"Content-Type: {kind}", *headers, "", ""]).encode()


def read_one(connection):
    """An answer in JSON, on a connection that stays."""
    text = ""
    while not text.endswith("}"):
        text += connection.recv(65_536).decode("latin-1")
    return text


def read_all(connection):
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts).decode("latin-1")


def test_small_packets_are_not_held_back(live, monkeypatch):
    """Nagle's algorithm would hold the end of every answer back until the client confirms its beginning: 40 ms."""
    with bind("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP
    delays, made = [], Connection.connection_made

    def noting(self, transport):
        made(self, transport)
        delays.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(Connection, "connection_made", noting)
    with connected(live) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_all(connection).startswith(GOOD)
    assert delays == [1]


def test_the_rest_of_a_refused_body_is_not_waited_for_without_end(hasty):
    with connected(hasty) as connection:
        connection.sendall(head("Content-Length: 90000", kind="image/gif"))
        stop = threading.Event()

        def drip():
            with contextlib.suppress(OSError):
                while not stop.wait(0.05):
                    connection.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert read_one(connection).startswith("HTTP/1.1 415")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1000) == b""  # within its timeout; the 90,000 bytes would take over an hour
        stop.set()
        dripping.join()


@pytest.mark.parametrize("turn", range(5))
def test_a_refusal_reaches_a_client_that_is_still_sending(hasty, turn):
    """A socket that is closed with something unread resets the connection, and the answer may be lost with it."""
    with connected(hasty) as connection:
        connection.sendall(head("Transfer-Encoding: chunked"))
        for _ in range(40):  # 40 times 64 KB, of which 100 KB are taken
            connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            time.sleep(0.001)
        assert read_all(connection).startswith("HTTP/1.1 413")


LIES = {
    "two ways to tell the length": head("Content-Length: 3", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "a chunk size that is no number": head("Transfer-Encoding: chunked") + b"3\r\nabc\r\nzz\r\n",
    "no HTTP": b"hello\r\n\r\n",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_in_the_one_format_and_what_follows_is_not_looked_at(hasty, lie, caplog):
    caplog.set_level(logging.INFO, "soap.serve")
    with connected(hasty) as connection:
        connection.sendall(LIES[lie] + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.shutdown(socket.SHUT_WR) if lie == "no HTTP" else None
        answer = read_all(connection)
    assert answer.startswith("HTTP/1.1 400")
    assert '{"error":{"kind":"request"' in answer
    assert "nosniff" in answer
    assert answer.lower().count("connection: close") == 1
    assert len(re.findall(r"HTTP/1.1 \d", answer)) == 1
    assert "failure" not in caplog.text  # the client's fault is no defect


def test_chunks_of_next_to_nothing_are_not_read_to_their_end(hasty):
    """Each costs as much time as a large one; 40 KB of them are refused before the second that a body may take."""
    with connected(hasty) as connection:
        connection.sendall(head("Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 40_000)
        assert read_all(connection).startswith("HTTP/1.1 400")


def test_a_client_that_does_not_read_is_let_go(hasty):
    """Even where the server waits to begin its next answer, to the 400th of these questions at most."""
    with connected(hasty) as connection:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        hung_up = select.poll()
        hung_up.register(connection, 0)
        assert hung_up.poll(30_000)


def test_slow_bodies_do_not_take_the_places_of_others(digits):
    limits, picture = Limits(queue=2), png(digits.x[0])
    with (
        running(create_app([MODELS[0]], limits=limits), limits) as address,
        contextlib.ExitStack() as leave,
        connected(address) as ordinary,
    ):
        for _ in range(6):
            slow = leave.enter_context(connected(address))
            slow.sendall(head("Content-Length: 5000", "Expect: 100-continue"))
            assert slow.recv(1000).startswith(b"HTTP/1.1 100")  # it is being read
            ordinary.sendall(head(f"Content-Length: {len(picture)}") + picture)
            assert read_one(ordinary).startswith(GOOD)


def test_one_connection_too_many_is_told_so(digits):
    limits = Limits(clients=2)
    with running(create_app([MODELS[0]], limits=limits), limits) as address:
        ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with connected(address) as one, connected(address) as two:
            for connection in (one, two):
                connection.sendall(ask)
                assert read_one(connection).startswith(GOOD)
            with connected(address) as three:
                three.sendall(ask)
                assert read_one(three).startswith(GOOD)  # who watches over the service is always told
                three.sendall(ask.replace(b"healthz", b"v1/models"))
                answer = read_all(three)
            assert answer.startswith("HTTP/1.1 503")
            assert "retry-after: 1" in answer.lower()
            assert '"kind":"busy"' in answer
            with connected(address) as three, connected(address) as four:
                three.sendall(b"G")
                assert four.recv(1000) == b""  # not even told: files are few
            one.sendall(head(f"Content-Length: {len(png(digits.x[0]))}") + png(digits.x[0]))
            assert read_one(one).startswith(GOOD)


def test_a_client_that_is_gone_before_it_is_refused_is_no_error(unchecked_shapes):
    """The system refuses to close one side of a connection that the other side has reset."""

    class Gone:
        aborted = False

        def is_closing(self):
            return self.aborted

        def can_write_eof(self):
            return True

        def write_eof(self):
            raise OSError("not connected")

        def abort(self):
            self.aborted = True

    class Sending:
        def wait_to_close(self):
            pass

        def reads_all(self):
            return False

    transport = Gone()
    _Outgoing(transport, Sending()).close()
    assert transport.aborted


def test_a_client_that_leaves_while_it_sends_is_no_defect(hasty, caplog):
    caplog.set_level(logging.INFO, "soap.serve")
    with connected(hasty) as connection:
        connection.sendall(head("Content-Length: 5000") + b"x" * 100)
        time.sleep(0.1)
    end = time.monotonic() + 20
    while not caplog.records and time.monotonic() < end:
        time.sleep(0.01)
    assert '"status": 499' in caplog.text
    assert "failure" not in caplog.text
