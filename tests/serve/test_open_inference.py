"""Open Inference Protocol: tritonclient against a real service, errors of the protocol, places in the queue."""

import json
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from small_service import BASE_URL, MODELS

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
pytest.importorskip("tritonclient", reason="the test needs a client of the protocol")

from fastapi.testclient import TestClient
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from soap.purifiers import SOAP
from soap.serve import Limits, create_app
from soap.serve.batching import BatchWorker
from soap.serve.trajectories import Predict

INFER = f"/v2/models/{MODELS[0]}/infer"


@pytest.fixture(scope="module")
def triton(live):
    with InferenceServerClient(urlsplit(live).netloc) as made:
        yield made


@pytest.fixture(scope="module")
def images(model, digits):
    """Eight digits, attacked."""
    from soap.evaluation import PAPER

    return PAPER["mnist"]["pgd"](model, digits.x[:8], digits.y[:8])


def tensor(x, *, binary=True):
    made = InferInput("x", list(x.shape), "FP32")
    made.set_data_from_numpy(x.numpy(), binary_data=binary)
    return [made]


def body(x, changes=None, **fields):
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.flatten().tolist()}
    return {"inputs": [{**tensor, **(changes or {})}], **fields}


def test_nested_data_and_the_model_name_that_kserve_repeats_are_accepted(client, digits):
    x = digits.x[:2]
    flat = client.post(INFER, json=body(x)).json()
    assert client.post(INFER, json=body(x, {"data": x.tolist()}, model_name=MODELS[0])).json() == flat


def test_health_and_metadata(triton, model):
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready(MODELS[0])
    assert not triton.is_model_ready("unknown")
    assert "binary_tensor_data" in triton.get_server_metadata()["extensions"]
    first, second = (triton.get_model_metadata(name) for name in MODELS)
    assert first["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, *model.input_shape]}]
    outputs = {one["name"]: (one["datatype"], one["shape"]) for one in first["outputs"]}
    assert outputs["logits"] == ("FP32", [-1, 10])
    assert outputs["label"] == ("INT64", [-1])
    assert [one["name"] for one in second["outputs"]] == ["logits", "label"]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("eps", ["min-aux", 0.2])
def test_infer_equals_the_purifier_of_the_library(triton, model, images, eps, binary):
    found = triton.infer(MODELS[0], tensor(images, binary=binary), parameters={"eps_pfy": eps}, request_id="seven")
    purified = SOAP(model, eps)(images)
    with torch.no_grad():
        logits = model(purified.x)
    assert found.get_response()["id"] == "seven"
    assert np.array_equal(found.as_numpy("label"), logits.argmax(1).numpy())
    assert np.allclose(found.as_numpy("eps"), purified.eps.numpy())
    for name, wanted in {
        "logits": logits,
        "loss_before": purified.loss_before,
        "loss_after": purified.loss_after,
        "score": purified.loss_before,
    }.items():
        assert found.as_numpy(name).shape == tuple(wanted.shape)
        assert np.allclose(found.as_numpy(name), wanted.numpy(), rtol=1e-3, atol=1e-3)


def test_example_of_the_page_runs(live, model, images):
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names = {"x": images.numpy()}
    exec(example.replace("127.0.0.1:8000", urlsplit(live).netloc), names)
    with torch.no_grad():
        assert names["labels"].tolist() == model(SOAP(model)(images).x).argmax(1).tolist()
    assert names["scores"].shape == (len(images),)


def test_infer_without_purification_returns_only_the_requested_outputs(triton, model, images):
    wanted = [
        InferRequestedOutput("label", binary_data=False),
        InferRequestedOutput("logits"),
        InferRequestedOutput("eps"),
    ]
    found = triton.infer(MODELS[0], tensor(images), outputs=wanted, parameters={"purify": False})
    with torch.no_grad():
        logits = model(images)
    assert [one["name"] for one in found.get_response()["outputs"]] == ["label", "logits", "eps"]
    assert found.get_output("label")["data"] == logits.argmax(1).tolist()
    assert "data" not in found.get_output("logits")
    assert np.allclose(found.as_numpy("logits"), logits.numpy(), atol=1e-4)
    assert not found.as_numpy("eps").any()


def test_model_without_auxiliary_task_is_not_purified(triton, images):
    found = triton.infer(MODELS[1], tensor(images))
    assert [one["name"] for one in found.get_response()["outputs"]] == ["logits", "label"]
    with pytest.raises(InferenceServerException, match="auxiliary task") as refusal:
        triton.infer(MODELS[1], tensor(images), parameters={"purify": True})
    assert refusal.value.status() == "422"


def test_client_gets_the_message_and_status_of_an_error(triton, images):
    with pytest.raises(InferenceServerException, match=r"\[n, 1, 28, 28\] with n from 1 to 16") as refusal:
        triton.infer(MODELS[0], tensor(images[:1].repeat(33, 1, 1, 1)))
    assert refusal.value.status() == "422"
    with pytest.raises(InferenceServerException, match="unknown model") as refusal:
        triton.infer("unknown", tensor(images))
    assert refusal.value.status() == "404"


X = torch.full((1, 1, 28, 28), 0.5)
LENGTH = "Inference-Header-Content-Length"
REFUSED = {
    "no JSON": (b"{", 400, "JSON"),
    "deep": (b'{"inputs": ' + b"[" * 100_000, 400, "JSON"),
    "JSON beyond its limit": (b" " * (2**20 + 1), 413, "1,048,576"),
    "no input": ({"inputs": []}, 422, "inputs"),
    "text": (body(X, {"data": ["0.5"] * 784}), 422, "data"),
    "NaN": (body(X, {"data": [float("nan")] * 784}), 422, "data"),
    "above 1": (body(X * 510), 422, "divide by 255"),
    "beyond single": (body(X, {"data": [1e300] * 784}), 422, "infinite"),
    "too few numbers": (body(X, {"data": [0.5] * 783}), 422, "784"),
    "ragged": (body(X, {"data": [[0.5], []]}), 422, "784"),
    "different depth": (body(X, {"data": [[0.5], [[0.5]]]}), 422, "784"),
    "no image": (body(X[:0]), 422, "n from 1"),
    "another shape": (body(X[0]), 422, "[n, 1, 28, 28]"),
    "a huge shape": (body(X, {"shape": [10**4000, 1, 28, 28]}), 422, "shape"),
    "another datatype": (body(X, {"datatype": "FP64"}), 422, "datatype"),
    "no data": (body(X, {"data": None}), 422, "3136 bytes"),
    "unknown parameter": (body(X, parameters={"purifiy": True}), 422, "purifiy"),
    "radius above 1": (body(X, parameters={"eps_pfy": 2}), 422, "eps_pfy"),
    "radius without purification": (body(X, parameters={"eps_pfy": 0.1, "purify": False}), 422, "eps_pfy is a setting"),
    "unknown output": (body(X, outputs=[{"name": "probability"}]), 422, "outputs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_request_gets_an_error_of_the_protocol(client, name):
    content, status, words = REFUSED[name]
    response = client.post(INFER, content=content if isinstance(content, bytes) else json.dumps(content))
    assert (response.status_code, set(response.json())) == (status, {"error"})
    assert words in response.json()["error"]


@pytest.mark.parametrize("length", ["9" * 15, "9" * 5000, "-1", "", "0x10", "²"])
def test_length_of_the_json_must_be_a_part_of_the_body(client, length):
    response = client.post(INFER, json=body(X), headers={LENGTH: length.encode()})
    assert response.status_code == 400
    assert "number of bytes" in response.json()["error"]


@pytest.mark.parametrize("announced", [3136, 3132, 6272])
@pytest.mark.parametrize("sent", [3136, 3132, 3137])
def test_binary_data_must_have_the_announced_size(client, announced, sent):
    tensor = {"name": "x", "shape": [1, 1, 28, 28], "datatype": "FP32", "parameters": {"binary_data_size": announced}}
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {LENGTH: str(len(text))}
    response = client.post(INFER, content=text + b"\0" * sent, headers=headers)
    assert response.status_code == (200 if announced == sent == 3136 else 422)


def test_admission_is_that_of_the_other_routes(digits):
    token, x = "a-token-of-some-length", digits.x[:2]
    limits = Limits(queue=1, body=100_000)
    with TestClient(create_app(MODELS, token=token, limits=limits), base_url=BASE_URL) as client:
        valid = {"Authorization": f"Bearer {token}"}
        refused = client.post(INFER, json=body(x))
        assert (refused.status_code, refused.json()["error"][:9]) == (401, "the token")
        assert client.post(INFER, json=body(x), headers=valid).status_code == 200
        assert client.post(INFER, content=b"x" * 100_001, headers=valid).status_code == 413
        worker = client.app.state.service.workers[MODELS[0]]
        job = worker.admit(time.monotonic() + 60)
        full = client.post(INFER, json=body(x), headers=valid)
        assert (full.status_code, full.headers["Retry-After"]) == (503, "1")
        assert "is full" in full.json()["error"]
        job.future.cancel()
        metrics = client.get("/metrics", headers=valid).text
    counted = f'soap_requests_total{{model="{MODELS[0]}",route="/v2/models/{{name}}/infer",status='
    for count in ('"200"} 1.0', '"413"} 1.0', '"503"} 1.0'):
        assert counted + count in metrics


def test_request_of_many_images_has_one_place_and_is_not_split(model, digits):
    worker, batches = BatchWorker(model, Limits(queue=3, batch_size=4)), []
    worker.on_batch = lambda operation, images: batches.append((images, worker.waiting))
    first, second, third = (worker.admit(time.monotonic() + 60) for _ in range(3))
    many = worker.submit(first, Predict(), list(digits.x[:10]))
    three, one = worker.submit(second, Predict(), list(digits.x[:3])), worker.submit(third, Predict(), [digits.x[9]])
    assert worker.waiting == 3
    worker.start()
    worker.close()
    with torch.no_grad():
        wanted = model(digits.x[:10]).argmax(1).tolist()
    assert [one.label for one in many.result()] == wanted
    assert [one.label for one in [*three.result(), *one.result()]] == [*wanted[:3], wanted[9]]
    assert batches == [(10, 2), (4, 0)]  # in the order of admission
