"""Admission: token, Host header, body size, deadline and queue; also security headers, log and metrics."""

import asyncio
import inspect
import json
import logging
import sys
import threading
import time

import pytest
from small_service import BASE_URL, MODELS, png

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException

import soap
from soap.serve import Limits, create_app
from soap.serve.admission import JOB_KEY, WORK_PATHS, Admission, is_loopback
from soap.serve.batching import BatchWorker
from soap.serve.errors import error_response
from soap.serve.monitoring import SECURITY_HEADERS, JsonFormatter

TOKEN = "a-token-of-some-length"
LOCAL = ("127.0.0.1", 5000)
PNG = {"Content-Type": "image/png"}
SMALL = [MODELS[0]]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_token_is_required_unless_the_address_is_loopback(host):
    with pytest.raises(soap.InputError, match="token"):
        create_app(SMALL, host=host)
    create_app(SMALL, host=host, token=TOKEN)


@pytest.mark.parametrize("token", ["", "short", "e" * 15, "ä" * 20, "with\na line end in it"])
def test_short_or_unprintable_token_is_refused(token):
    with pytest.raises(soap.InputError, match="16"):
        create_app(SMALL, token=token)


def test_is_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "localhost.example.org", "10.0.0.1", "127.0.0.1.nip.io")))


def test_unknown_models_are_refused_at_the_start():
    with pytest.raises(soap.InputError, match="no model"):
        create_app([])
    with pytest.raises(soap.InputError, match="unknown model"):
        create_app(["nobody"])


def test_token_is_checked_before_the_body_is_read(digits):
    body = png(digits.x[0])
    with TestClient(create_app(SMALL, token=TOKEN, host="0.0.0.0"), base_url="http://anywhere") as client:
        for header in (None, "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer é"):
            headers = {} if header is None else {"Authorization": header.encode()}
            for method, path in (("POST", "/v1/predict"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/x")):
                found = client.request(method, path, headers=headers, content=b"never read")
                assert found.status_code == 401
                assert found.json()["error"]["kind"] == "token"
                assert found.headers["WWW-Authenticate"] == "Bearer"
        valid = {"Authorization": f"Bearer {TOKEN}"}
        assert client.post("/v1/predict", content=body, headers={**PNG, **valid}).status_code == 200
        assert client.get("/metrics", headers=valid).status_code == 200
        assert client.get("/healthz").status_code == 200
        assert client.get("/docs").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a@evil", "", "["])
def test_foreign_host_header_is_refused_on_loopback(client, host):
    found = client.get("/healthz", headers={"Host": host})
    assert found.status_code == 421
    assert found.json()["error"]["kind"] == "host"


@pytest.mark.parametrize(
    ("address", "host", "status"),
    [
        ("127.0.0.1", "soap.example.org", 200),
        ("127.0.0.1", "SOAP.example.org:443", 200),
        ("127.0.0.1", "localhost:8000", 200),
        ("127.0.0.1", "a.soap.example.org", 421),
        ("0.0.0.0", "soap.example.org", 200),
        ("0.0.0.0", "other.example.org", 421),  # any name without allowed hosts
    ],
)
def test_allowed_hosts_are_names_of_the_service(address, host, status):
    app = create_app(SMALL, token=TOKEN, host=address, allowed_hosts=["soap.example.org"])
    assert TestClient(app).get("/openapi.json", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000"])
def test_loopback_host_headers_are_accepted(client, host):
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


def test_every_response_has_security_headers_and_none_allows_other_origins(client, digits):
    responses = [
        client.get("/healthz"),
        client.get("/nowhere"),
        client.get("/healthz", headers={"Host": "evil.example"}),
        client.post("/v1/predict", content=png(digits.x[0]), headers={**PNG, "Origin": "https://evil.example"}),
        client.options("/v1/predict", headers={"Origin": "https://e.example", "Access-Control-Request-Method": "POST"}),
    ]
    assert [response.status_code for response in responses] == [200, 404, 421, 200, 405]
    for response in responses:
        assert {name: response.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        policy = dict(rule.split(" ", 1) for rule in response.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'self'"
        assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
        assert "unsafe-inline" not in str(policy)
        assert not {"worker-src", "connect-src", "style-src", "font-src"} & set(policy)  # default-src applies
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


def test_docs_page_names_every_route_and_loads_nothing_external(client):
    page = client.get("/docs").text
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    for path in client.get("/openapi.json").json()["paths"]:
        assert f"{path}</code>" in page
    assert "eps_pfy" in page


def chunks(*parts):
    yield from parts


def test_body_is_limited_with_and_without_content_length():
    limits = Limits(body=1000)
    with TestClient(create_app(SMALL, limits=limits), base_url=BASE_URL) as client:
        for body in (b"x" * 1001, chunks(b"x" * 500, b"x" * 501)):
            found = client.post("/v1/predict", content=body, headers=PNG)
            assert found.status_code == 413
            assert found.headers["Connection"] == "close"
        false = client.post("/v1/predict", content=b"x", headers={**PNG, "Content-Length": "9" * 30})
        assert false.status_code == 413
        assert client.post("/v1/predict", content=b"x" * 1000, headers=PNG).status_code == 415  # read, not a picture


@pytest.fixture
def admission(model):
    """Makes the middleware around an application, for a model whose worker is not started."""

    def make(app, models=("model",), token=None, **limits):
        workers = {name: BatchWorker(model, Limits(**limits)) for name in models}
        return Admission(app, host="127.0.0.1", token=token, limits=Limits(**limits), workers=workers)

    return make


def call(app, messages, *, pause=0.0, path="/v1/predict", query=b""):
    """Call an ASGI application with request messages `pause` seconds apart; returns what it sent."""
    sent, left = [], list(messages)

    async def receive():
        await asyncio.sleep(pause)
        return left.pop(0) if left else await asyncio.sleep(3600)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "headers": [(b"host", b"localhost")],
        "path": path,
        "method": "POST",
        "query_string": query,
    }
    asyncio.run(app(scope, receive, send))
    return sent


def part(content, more=True):
    return {"type": "http.request", "body": content, "more_body": more}


async def respond(scope, receive, send):
    """Status 200 with the body that the job got; an unknown model has no job."""
    received = scope[JOB_KEY].body if JOB_KEY in scope else None
    await send({"type": "http.response.start", "status": 200, "received": received})


async def never_respond(scope, receive, send):
    await asyncio.sleep(3600)


def test_slow_body_is_status_408(admission):
    app = admission(respond, timeout_s=0.2)
    with pytest.raises(HTTPException, match="did not arrive") as refusal:
        call(app, [part(b"x")] * 50, pause=0.05)
    assert refusal.value.status_code == 408
    assert app.body_bytes == 0


def test_request_past_its_deadline_is_status_503(admission):
    with pytest.raises(HTTPException, match="longer than") as refusal:
        call(admission(never_respond, timeout_s=0.1), [part(b"", more=False)])
    assert refusal.value.status_code == 503


def test_client_that_leaves_while_it_sends_is_status_400_and_not_a_failure(admission):
    with pytest.raises(HTTPException, match="incomplete") as refusal:
        call(admission(respond), [part(b"x"), {"type": "http.disconnect"}])
    assert refusal.value.status_code == 400


def test_total_bytes_of_all_bodies_are_limited(admission):
    app = admission(respond, total_body=10)
    app.body_bytes = 8  # of other requests
    with pytest.raises(HTTPException, match="large requests") as refusal:
        call(app, [part(b"xxx")])
    assert refusal.value.status_code == 503
    assert app.body_bytes == 8
    assert call(app, [part(b"x"), part(b"y", more=False)])[0]["received"] == b"xy"


def test_full_queue_refuses_before_routing_and_only_for_its_own_model(admission):
    app = admission(respond, models=("first", "second"), queue=1)
    app.workers["first"].admit(time.monotonic() + 60)
    whole = [part(b"", more=False)]
    for query in (b"", b"model=first", b"model=second&model=first"):
        with pytest.raises(HTTPException, match=r"is full; try again in 1 s\.") as refusal:
            call(app, whole, query=query)
        assert error_response(refusal.value).headers["Retry-After"] == "1"
    for query in (b"model=second", b"model=unknown", b"model="):  # the route reports an unknown model
        assert call(app, whole, query=query)[0]["status"] == 200


def test_request_without_the_token_does_not_reach_the_queue(admission):
    app = admission(respond, token=TOKEN)
    app.workers = {}  # an attempt to enter the queue would fail
    with pytest.raises(HTTPException) as refusal:
        call(app, [part(b"", more=False)])
    assert refusal.value.status_code == 401


def test_freed_memory_is_trimmed_regularly(monkeypatch):
    trimmed, app = threading.Semaphore(0), create_app(SMALL)
    codecs = app.state.service._codecs
    submit = codecs.submit

    def noted(function, *arguments):
        if getattr(function, "__name__", "") == "return_free_memory":
            trimmed.release()
        return submit(function, *arguments)

    monkeypatch.setattr("soap.serve.inference.TRIM_INTERVAL_S", 0.05)
    monkeypatch.setattr(codecs, "submit", noted)
    with TestClient(app, base_url=BASE_URL):
        assert trimmed.acquire(timeout=10)
        assert trimmed.acquire(timeout=10)


def test_unexpected_exception_is_status_503_without_its_message(client, digits, monkeypatch, caplog):
    def broken(*arguments, **options):
        raise RuntimeError("secret contents")

    monkeypatch.setattr("soap.serve.batching.run_operation", broken)
    found = client.post("/v1/predict", content=png(digits.x[0]), headers=PNG)
    assert found.status_code == 503
    assert "secret" not in found.text
    assert "secret" not in caplog.text
    assert caplog.records[-1].msg["error"] == "RuntimeError"
    monkeypatch.undo()
    assert client.post("/v1/predict", content=png(digits.x[0]), headers=PNG).status_code == 200


def test_access_log_has_one_line_per_request_without_client_input(client, digits, caplog):
    caplog.set_level(logging.INFO, "soap.serve")
    secret = {**PNG, "Authorization": "Bearer secret"}
    client.post("/v1/predict?model=secret", content=png(digits.x[0]), headers=secret)
    client.get("/secret/path")
    client.request("SECRET", "/healthz")
    noted = [JsonFormatter().format(record) for record in caplog.records if record.name == "soap.serve"]
    assert "secret" not in "".join(noted).lower()
    lines = list(map(json.loads, noted))
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/v1/predict", 422), ("GET", "other", 404), ("other", "/healthz", 405),
    ]  # fmt: skip
    assert all(set(line) == {"time", "request_id", "method", "route", "status", "ms"} for line in lines)


def test_health_routes_need_no_token_and_fail_once_a_thread_has_stopped():
    paths = ["/healthz", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready"]
    with TestClient(create_app(SMALL, token=TOKEN, host="0.0.0.0"), base_url=BASE_URL) as client:
        assert [client.get(path).status_code for path in paths] == [200] * 5
        for worker in client.app.state.service.workers.values():
            worker.close()
        assert [client.get(path).status_code for path in paths] == [503] * 5
        assert (
            client.get(f"/v2/models/{SMALL[0]}/ready", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 503
        )


@pytest.mark.parametrize(
    ("client", "headers", "status"),
    [
        (LOCAL, {}, 200),
        (("::1", 5000), {"Host": "[::1]:8000"}, 200),
        (("10.0.0.7", 5000), {}, 401),
        (LOCAL, {"Host": "evil.example"}, 401),  # a web page whose name resolves to 127.0.0.1
        (LOCAL, {"X-Forwarded-For": "10.0.0.7"}, 401),  # a proxy
        (LOCAL, {"Forwarded": "for=10.0.0.7"}, 401),
    ],
)
def test_metrics_need_no_token_on_this_machine(client, headers, status):
    app = create_app(SMALL, token=TOKEN, host="0.0.0.0")
    local = TestClient(app, base_url=BASE_URL, client=client)
    assert local.get("/metrics", headers=headers).status_code == status
    assert local.get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize("given", ["4bf92f3577b34da6a3ce929d0e0e4736", "a-Z_0.9:=+/"])
def test_request_id_is_that_of_the_client(client, given, caplog):
    caplog.set_level(logging.INFO, "soap.serve")
    assert client.get("/livez", headers={"X-Request-Id": given}).headers["X-Request-Id"] == given
    assert caplog.records[-1].msg["request_id"] == given


@pytest.mark.parametrize("given", [None, "", "a b", 'a"b', "é", "x" * 129])
def test_request_id_is_made_if_the_client_sends_none_or_a_wrong_one(client, given, caplog):
    caplog.set_level(logging.INFO, "soap.serve")
    headers = {} if given is None else {"X-Request-Id": given.encode()}
    made = [client.get(path, headers=headers).headers["X-Request-Id"] for path in ("/livez", "/nowhere")]
    assert len({*made, given}) == 3
    assert all(len(one) == 32 and one.isalnum() for one in made)
    assert [record.msg["request_id"] for record in caplog.records if record.name == "soap.serve"] == made


def test_schema_says_which_routes_need_the_token(client):
    def secured(app):
        paths = TestClient(app, base_url=BASE_URL).get("/openapi.json").json()["paths"]
        return {path for path, methods in paths.items() for route in methods.values() if route.get("security")}

    protected = secured(create_app(SMALL, token=TOKEN))
    assert {"/v1/predict", "/v1/models", "/metrics", "/v2/models/{name}/infer"} <= protected
    assert not {"/healthz", "/livez", "/v2/health/live"} & protected
    assert secured(client.app) == set()
    assert client.get("/openapi.json").json()["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_metrics_count_requests_and_batches(digits):
    with TestClient(create_app(SMALL), base_url=BASE_URL) as client:
        for _ in range(3):
            client.post("/v1/predict", content=png(digits.x[0]), headers=PNG)
        client.get("/somewhere/else")
        text = client.get("/metrics").text
    assert f'soap_requests_total{{model="{MODELS[0]}",route="/v1/predict",status="200"}} 3.0' in text
    assert 'soap_requests_total{model="",route="other",status="404"} 1.0' in text
    assert f'soap_batch_images_count{{model="{MODELS[0]}",operation="predict"}} 3.0' in text
    assert f'soap_queue_requests{{model="{MODELS[0]}"}} 0.0' in text
    assert f'soap_running_requests{{model="{MODELS[0]}"}} 0.0' in text
    assert f'version="{soap.__version__}"' in next(
        line for line in text.splitlines() if line.startswith("soap_build_info")
    )
    if sys.platform == "linux":
        assert "process_resident_memory_bytes" in text


@pytest.mark.parametrize(("path", "near"), [("purify?eps=0.05", "eps_pfy"), ("predict?modell=x", "model")])
def test_unknown_query_parameter_is_refused(client, path, near):
    response = client.post(f"/v1/{path}", content=b"", headers={"Content-Type": "image/png"})
    assert response.status_code == 422
    message = response.json()["error"]["message"]
    assert message.startswith("unknown parameter ")
    assert near in message


def test_routes_run_on_the_event_loop():
    """FastAPI runs a plain function in another thread; under overload that cost a quarter of all responses."""
    routes = [route for route in create_app(SMALL).routes if route.path in WORK_PATHS]
    assert len(routes) == 3
    for route in routes:
        calls = [route.endpoint, *(part.call for part in route.dependant.dependencies)]
        assert all(inspect.iscoroutinefunction(call) for call in calls)
