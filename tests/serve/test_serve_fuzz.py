"""Fuzzing of the API from its OpenAPI schema: no 5xx except 503, and every response conforms to the schema."""

import io
from collections import Counter

import numpy as np
import pytest
from counting import amount, count
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_service import png

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
pytest.importorskip("schemathesis", reason="fuzzing the API needs schemathesis")

import schemathesis
import torch
from schemathesis import checks

EXAMPLES, LONG_EXAMPLES = 25, 13_000


def picture(seed: int, kind: str, cut: int) -> bytes:
    """A picture, possibly without its last bytes."""
    rng = np.random.default_rng(seed)
    if kind == "digit":
        return png(torch.from_numpy(rng.random((1, 28, 28), np.float32)))
    buffer = io.BytesIO()
    pixels = rng.integers(0, 256, (rng.integers(1, 40), rng.integers(1, 40), 3), np.uint8)
    Image.fromarray(pixels).save(buffer, format=kind)
    return buffer.getvalue()[: len(buffer.getvalue()) - cut]


PICTURES = st.builds(
    picture, st.integers(0, 2**32 - 1), st.sampled_from(["digit", "PNG", "JPEG", "GIF"]), st.sampled_from([0, 0, 1, 20])
)
for media_type in ("image/png", "image/jpeg"):
    schemathesis.openapi.media_type(media_type, st.one_of(PICTURES, st.binary(max_size=200)))


INFER = "/v2/models/{name}/infer"
ROUTES = (
    ("POST", "/v1/predict"), ("POST", "/v1/purify"), ("POST", "/v1/attack"), ("GET", "/v1/models"), ("GET", "/healthz"),
    ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/v2"), ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"), ("GET", "/v2/models/{name}"), ("GET", "/v2/models/{name}/ready"), ("POST", INFER),
)  # fmt: skip
CONFORMANCE = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def schema(live):
    return schemathesis.openapi.from_url(f"{live}/openapi.json")


def test_every_route_is_fuzzed(schema):
    assert {(found.ok().method.upper(), found.ok().path) for found in schema.get_all_operations()} == set(ROUTES)


# A route without parameters has no invalid requests.
MODES = list(schemathesis.GenerationMode)
CASES = [(*route, mode) for route in ROUTES for mode in MODES if route[0] == "POST" or mode.is_positive]


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_responses_conform_to_the_schema(schema, method, path, mode):
    operation, statuses = schema[path][method], Counter()
    examples = amount(EXAMPLES, LONG_EXAMPLES) if method == "POST" else amount(2, 100)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def fuzz(case):
        response = case.call()
        statuses[response.status_code] += 1
        assert response.status_code < 500 or response.status_code == 503
        assert "the service failed" not in response.text  # an exception that nothing expects
        case.validate_response(response, checks=CONFORMANCE)

    failures = []
    try:
        fuzz()
    except Exception as error:  # hypothesis stops at the first failure; the count below is stored, then it fails
        failures.append(f"{type(error).__name__}: {error}")
    promise = f"API fuzz, {method} {path}, {mode.value} cases: no 5xx but 503, each response as the schema says"
    count(promise, statuses.total(), failures, {f"status {status}": n for status, n in sorted(statuses.items())})
