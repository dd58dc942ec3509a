"""The quick refusal: the same answer as the ordinary way's, and only to one whole, plain request without room."""

import socket
from urllib.parse import urlsplit

import pytest
from small_service import MODELS, png, running

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from soap.serve import Limits, create_app
from soap.serve.guard import Admission
from soap.serve.refusal import QuickRefusal

BODY = b"x" * 30


def request(*headers, path="/v1/predict", body=BODY, first=None, length=None):
    lines = [first or f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: image/png", *headers]
    lines += [] if length == "none" else [f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.fixture(scope="module")
def app():
    made = create_app(MODELS, limits=Limits(queue=2))
    with running(made, Limits(queue=2)) as made.state.address:
        yield made


@pytest.fixture
def full(app):
    """Its first model's queue is full of requests that are being decoded; the second's is empty."""
    worker = app.state.service.workers[MODELS[0]]
    with worker.place(), worker.place():
        yield app
    worker._crowded_until = 0.0


def told(app, data):
    """What a connection is told until it is closed, or up to the end of one JSON answer."""
    place = urlsplit(app.state.address)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(data)
        text = b""
        while not text.endswith(b"}}") and (part := connection.recv(65_536)):
            text += part
    head, _, body = text.partition(b"\r\n\r\n")
    first, *lines = head.decode().lower().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines if not line.startswith("date")), body


def test_it_says_what_the_ordinary_way_says(full):
    first, headers, body = told(full, request())
    slow_first, slow_headers, slow_body = told(full, request("Expect: nothing"))
    assert (first, body) == (slow_first, slow_body)
    assert first == "http/1.1 503 service unavailable"
    assert headers == slow_headers
    assert headers["retry-after"] == "1"
    assert headers["x-content-type-options"] == "nosniff"


def test_it_is_counted_as_any_other(full):
    quick = QuickRefusal(full.state.service, full.state.admission)
    count = full.state.service.metrics.requests.labels("/v1/attack", 503)._value.get
    before = count()
    assert quick(request(path="/v1/attack?eps=0.1")) is not None
    assert count() == before + 1


ORDINARY = {
    "another model": request(path=f"/v1/predict?model={MODELS[1]}"),
    "a model that is not served": request(path="/v1/predict?model=nobody"),
    "another route": request(path="/v1/models"),
    "another method": request(first="PUT /v1/predict HTTP/1.1"),
    "HTTP/1.0": request(first="POST /v1/predict HTTP/1.0"),
    "half a body": request(length=60),
    "more than a body": request(length=20),
    "half a head": request()[:60],
    "no length": request(length="none"),
    "two lengths": request("Content-Length: 30"),
    "two lengths that differ": request("Content-Length: 3"),
    "a length with a sign": request(length="+30"),
    "a length before a space": request("Content-Length : 30", length="none"),
    "chunks": request("Transfer-Encoding: chunked"),
    "chunks in capitals": request("TRANSFER-ENCODING: chunked"),
    "a header over two lines": request("X-A: b\r\n c"),
    "who closes": request("Connection: close"),
    "who waits for 100": request("Expect: 100-continue"),
    "two requests": request() + request(),
    "line feeds alone": request().replace(b"\r\n", b"\n"),
    "nothing": b"",
    "another machine": request().replace(b"localhost", b"example.org"),
    "two machines": request("Host: localhost"),
    "no machine": request().replace(b"Host: localhost\r\n", b""),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_all_else_goes_the_ordinary_way(full, name):
    assert QuickRefusal(full.state.service, full.state.admission)(request()) is not None
    assert QuickRefusal(full.state.service, full.state.admission)(ORDINARY[name]) is None


def test_who_has_room_is_let_in_and_the_connection_stays(full, digits):
    picture = png(digits.x[0])
    place = urlsplit(full.state.address)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        for path, status in (("/v1/predict", b"503"), (f"/v1/predict?model={MODELS[1]}", b"200")) * 2:
            connection.sendall(request(path=path, body=picture))
            text = b""
            while not text.endswith(b"}"):
                text += connection.recv(65_536)
            assert text[9:12] == status


def test_who_has_no_token_goes_the_ordinary_way_and_shortens_no_queue(full):
    """One request without it threw accepted ones out of a full queue."""
    quick = QuickRefusal(full.state.service, Admission(host="127.0.0.1", token="Secret"))
    worker = full.state.service.workers[MODELS[0]]
    for wrong in ((), ("Authorization: Bearer secret",), ("Authorization: Basic Secret",)):
        assert quick(request(*wrong)) is None
    assert quick(request("Authorization: Bearer Secret", "Authorization: Bearer other")) is None
    assert worker._crowded_until == 0.0
    assert quick(request("authorization: bearer Secret")) is not None
