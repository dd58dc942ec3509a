"""Files for running models in the browser: content types, and the models they are offered for."""

import json

import pytest
from small_service import BASE_URL, MODELS

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from fastapi.testclient import TestClient

from soap.errors import FileError
from soap.evaluation import fingerprint
from soap.serve import create_app


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    """An empty folder for these files."""
    monkeypatch.setattr("soap.serve.app.STATIC", tmp_path)
    (tmp_path / "vendor").mkdir()
    return tmp_path / "vendor"


def offered():
    """browser_bytes of each model."""
    with TestClient(create_app(MODELS), base_url=BASE_URL) as client:
        return {it["name"]: it["browser_bytes"] for it in client.get("/v1/models").json()["models"]}


def manifest(vendor, **models):
    listed = {name: {"weights_sha256": weights, "bytes": 123} for name, weights in models.items()}
    (vendor / "manifest.json").write_text(json.dumps({"models": listed}))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ort.wasm.min.mjs", "text/javascript; charset=utf-8"),
        ("ort-wasm-simd-threaded.wasm", "application/wasm"),
        ("mnist-fcn-dr/step.onnx", "application/octet-stream"),
        ("manifest.json", "application/json"),
    ],
)
def test_content_types_and_range_requests(vendor, name, kind):
    path = vendor / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"0123456789" if path.suffix != ".json" else b'{"models": {}}')
    with TestClient(create_app(MODELS[:1]), base_url=BASE_URL) as client:
        whole = client.get(f"/static/vendor/{name}")
        piece = client.get(f"/static/vendor/{name}", headers={"Range": "bytes=2-4"})
    assert whole.content == path.read_bytes()
    assert (piece.status_code, piece.content) == (206, path.read_bytes()[2:5])
    assert piece.headers["content-range"] == f"bytes 2-4/{len(whole.content)}"
    for response in (whole, piece):
        assert response.headers["content-type"] == kind
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-content-type-options"] == "nosniff"


def test_no_model_runs_in_the_browser_without_files(vendor):
    assert offered() == {MODELS[0]: None, MODELS[1]: None}


def test_model_runs_in_the_browser_if_the_weights_are_equal(vendor, model):
    manifest(vendor, **{MODELS[0]: fingerprint(model), MODELS[1]: "0" * 64, "not-served": "0" * 64})
    assert offered() == {MODELS[0]: 123, MODELS[1]: None}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"models": []}', '{"models": {"mnist-fcn-dr": {}}}', '{"models": {"a": 1}}', "[" * 10**5]
)
def test_invalid_manifest_is_an_error_at_the_start(vendor, text):
    (vendor / "manifest.json").write_text(text)
    with pytest.raises(FileError, match="make browser"):
        create_app(MODELS)
