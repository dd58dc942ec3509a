"""Who may ask, how much and how long: tokens, hosts, headers, sizes, deadlines, and what is noted of it."""

import asyncio
import inspect
import json
import logging
import threading

import pytest
from small_service import HERE, MODELS, png

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from fastapi.testclient import TestClient
from soap.serve.door import WORK
from soap.serve.guard import SECURITY_HEADERS, is_loopback
from soap.serve.memory import give_back
from soap.serve.patience import Patience
from soap.serve.problems import RequestError

import soap
from soap.serve import Limits, create_app
from soap.serve.routes import router

TOKEN = "a-token-of-some-length"
KIND = {"Content-Type": "image/png"}
SMALL = [MODELS[0]]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_no_token_no_door_to_other_machines(host):
    with pytest.raises(soap.InputError, match="token"):
        create_app(SMALL, host=host)
    create_app(SMALL, host=host, token=TOKEN)


@pytest.mark.parametrize("token", ["", "short", "e" * 15, "ä" * 20, "with\na line end in it"])
def test_a_poor_token_is_refused(token):
    with pytest.raises(soap.InputError, match="16"):
        create_app(SMALL, token=token)


def test_what_is_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "localhost.example.org", "10.0.0.1", "127.0.0.1.nip.io")))


def test_bad_models_are_refused_at_the_start():
    with pytest.raises(soap.InputError, match="no model"):
        create_app([])
    with pytest.raises(soap.InputError, match="unknown model"):
        create_app(["nobody"])


def test_the_token_opens_the_routes_and_is_looked_at_before_the_body(digits):
    body = png(digits.x[0])
    with TestClient(create_app(SMALL, token=TOKEN, host="0.0.0.0"), base_url="http://anywhere") as client:
        for given in (None, "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer é"):
            headers = {} if given is None else {"Authorization": given.encode()}
            for method, path in (("POST", "/v1/predict"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/x")):
                found = client.request(method, path, headers=headers, content=b"never read")
                assert found.status_code == 401
                assert found.json()["error"]["kind"] == "token"
                assert found.headers["WWW-Authenticate"] == "Bearer"
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.post("/v1/predict", content=body, headers={**KIND, **right}).status_code == 200
        assert client.get("/metrics", headers=right).status_code == 200
        assert client.get("/healthz").status_code == 200
        assert client.get("/docs").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a@evil", "", "["])
def test_another_host_is_refused_on_loopback(client, host):
    found = client.get("/healthz", headers={"Host": host})
    assert found.status_code == 421
    assert found.json()["error"]["kind"] == "host"


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000"])
def test_this_machine_has_many_names(client, host):
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


def test_every_answer_has_the_headers_and_none_allows_other_origins(client, digits):
    answers = [
        client.get("/healthz"),
        client.get("/nowhere"),
        client.get("/healthz", headers={"Host": "evil.example"}),
        client.post("/v1/predict", content=png(digits.x[0]), headers={**KIND, "Origin": "https://evil.example"}),
        client.options("/v1/predict", headers={"Origin": "https://e.example", "Access-Control-Request-Method": "POST"}),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 421, 200, 405]
    for answer in answers:
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        policy = dict(rule.split(" ", 1) for rule in answer.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'self'"
        assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
        assert "unsafe-inline" not in str(policy)
        assert not {"worker-src", "connect-src", "style-src", "font-src"} & set(policy)  # from here alone
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_the_docs_load_nothing_from_elsewhere_and_name_every_route(client):
    page = client.get("/docs").text
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    for path in client.get("/openapi.json").json()["paths"]:
        assert f"{path}</code>" in page
    assert "eps_pfy" in page


def test_there_is_a_page_where_one_is_put(client, tmp_path, monkeypatch):
    monkeypatch.setattr("soap.serve.page.STATIC", tmp_path)
    with TestClient(create_app(SMALL), base_url=HERE) as fresh:
        missing = fresh.get("/")
        assert missing.status_code == 404
        assert "/docs" in missing.json()["error"]["message"]
        (tmp_path / "index.html").write_text("<p>hello</p>")
        (tmp_path / "page.js").write_text("1")
        assert fresh.get("/").text == "<p>hello</p>"
        assert fresh.get("/static/page.js").text == "1"
        assert fresh.get("/static/nothing.js").status_code == 404


def chunks(*parts):
    yield from parts


def test_a_body_is_counted_with_and_without_its_length():
    limits = Limits(body=1000)
    with TestClient(create_app(SMALL, limits=limits), base_url=HERE) as client:
        for body in (b"x" * 1001, chunks(b"x" * 500, b"x" * 501)):
            found = client.post("/v1/predict", content=body, headers=KIND)
            assert found.status_code == 413
            assert found.headers["Connection"] == "close"
        lie = client.post("/v1/predict", content=b"x", headers={**KIND, "Content-Length": "9" * 30})
        assert lie.status_code == 413
        assert client.post("/v1/predict", content=b"x" * 1000, headers=KIND).status_code == 415  # read, and no picture


def ask(app, messages, *, pause=0.0):
    """Call an ASGI application with request messages that come `pause` seconds apart; its answer, or its error."""
    sent, left = [], list(messages)

    async def receive():
        await asyncio.sleep(pause)
        return left.pop(0) if left else await asyncio.sleep(3600)

    async def send(message):
        sent.append(message)

    asyncio.run(app({"type": "http", "headers": [], "path": "/", "method": "POST"}, receive, send))
    return sent


def piece(content, more=True):
    return {"type": "http.request", "body": content, "more_body": more}


async def reading(scope, receive, send):
    while (await receive())["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200})


async def lingering(scope, receive, send):
    await receive()
    await asyncio.sleep(3600)


def test_a_slow_body_is_given_up():
    patience = Patience(reading, limits=Limits(seconds=0.2))
    with pytest.raises(RequestError, match="did not arrive") as refusal:
        ask(patience, [piece(b"x")] * 50, pause=0.05)
    assert refusal.value.status == 408
    assert patience.held == 0


def test_slow_work_is_given_up():
    with pytest.raises(RequestError, match="longer than") as refusal:
        ask(Patience(lingering, limits=Limits(seconds=0.1)), [piece(b"", more=False)])
    assert refusal.value.status == 503


def test_all_bodies_together_are_bounded_too():
    patience = Patience(reading, limits=Limits(bodies=10))
    patience.held = 8  # others are being read
    with pytest.raises(RequestError, match="large requests") as refusal:
        ask(patience, [piece(b"xxx")])
    assert refusal.value.status == 503
    assert patience.held == 8
    assert ask(patience, [piece(b"xx", more=False)])[0]["status"] == 200


def test_attacks_under_way_are_bounded(digits, monkeypatch):
    app = create_app(SMALL, limits=Limits(attacks=1))
    body = png(digits.x[0])
    with TestClient(app, base_url=HERE) as client:
        monkeypatch.setattr(app.state.service, "_attacks", 1)  # another is under way
        found = client.post("/v1/attack", content=body, headers=KIND)
        assert found.status_code == 503
        assert found.headers["Retry-After"] == "1"
        assert client.post("/v1/predict", content=body, headers=KIND).status_code == 200
        monkeypatch.undo()
        assert client.post("/v1/attack?attack=fgsm", content=body, headers=KIND).status_code == 200
        assert client.post("/v1/attack?attack=fgsm", content=body, headers=KIND).status_code == 200


def test_memory_is_given_back_after_requests_and_not_without(digits, monkeypatch):
    given, app = threading.Semaphore(0), create_app(SMALL)
    paint = app.state.service.paint

    async def painted(make):  # of this service alone: another of this process tidies up as well
        if make is give_back:
            given.release()
        return await paint(make)

    monkeypatch.setattr("soap.serve.service.TIDY", 0.05)
    monkeypatch.setattr(app.state.service, "paint", painted)
    with TestClient(app, base_url=HERE) as client:
        client.get("/healthz")
        assert not given.acquire(timeout=0.3)
        client.post("/v1/predict", content=png(digits.x[0]), headers=KIND)
        assert given.acquire(timeout=10)
        assert not given.acquire(timeout=0.3)


def test_a_defect_is_a_503_that_tells_nothing(client, digits, monkeypatch, caplog):
    def broken(*arguments, **options):
        raise RuntimeError("secret contents")

    monkeypatch.setattr("soap.serve.batching.perform", broken)
    found = client.post("/v1/predict", content=png(digits.x[0]), headers=KIND)
    assert found.status_code == 503
    assert "secret" not in found.text
    assert "secret" not in caplog.text
    assert json.loads(caplog.records[-1].message)["error"] == "RuntimeError"
    monkeypatch.undo()
    assert client.post("/v1/predict", content=png(digits.x[0]), headers=KIND).status_code == 200


def test_a_request_is_one_json_line_without_contents_or_secrets(client, digits, caplog):
    caplog.set_level(logging.INFO, "soap.serve")
    secret = {**KIND, "Authorization": "Bearer secret"}
    client.post("/v1/predict?model=secret", content=png(digits.x[0]), headers=secret)
    client.get("/secret/path")
    client.request("SECRET", "/healthz")
    noted = [record.message for record in caplog.records if record.name == "soap.serve"]
    assert "secret" not in "".join(noted).lower()
    lines = list(map(json.loads, noted))
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/v1/predict", 422), ("GET", "other", 404), ("other", "/healthz", 405),
    ]  # fmt: skip
    assert all(set(line) == {"time", "method", "route", "status", "ms"} for line in lines)


def test_metrics_count_requests_and_batches_in_a_registry_of_their_own(digits):
    with TestClient(create_app(SMALL), base_url=HERE) as client:
        for _ in range(3):
            client.post("/v1/predict", content=png(digits.x[0]), headers=KIND)
        client.get("/somewhere/else")
        text = client.get("/metrics").text
    assert 'soap_requests_total{route="/v1/predict",status="200"} 3.0' in text
    assert 'soap_requests_total{route="other",status="404"} 1.0' in text
    assert f'soap_batch_images_count{{model="{MODELS[0]}",operation="predict"}} 3.0' in text
    assert f'soap_queue_requests{{model="{MODELS[0]}"}} 0.0' in text
    assert f'soap_running_requests{{model="{MODELS[0]}"}} 0.0' in text


@pytest.mark.parametrize(("path", "near"), [("purify?eps=0.05", "eps_pfy"), ("predict?modell=x", "model")])
def test_a_parameter_that_a_route_does_not_have_is_told(client, path, near):
    """It was left unheard, and the answer was of other settings."""
    answer = client.post(f"/v1/{path}", content=b"", headers={"Content-Type": "image/png"})
    assert answer.status_code == 422
    told = answer.json()["error"]["message"]
    assert told.startswith("unknown parameter ")
    assert near in told


def test_nothing_that_every_request_passes_goes_to_another_thread():
    """FastAPI takes a plain function to a thread of its pool; under overload that cost a quarter of all answers."""
    working = [route for route in router(create_app(SMALL).state.service).routes if route.path in WORK]
    assert len(working) == 3
    for route in working:
        calls = [route.endpoint, *(part.call for part in route.dependant.dependencies)]
        assert len(calls) > 1
        assert all(inspect.iscoroutinefunction(call) for call in calls)
