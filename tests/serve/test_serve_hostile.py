"""Hostile request bodies: each is refused with its status in the error format, and the service goes on."""

import io
import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

PIXELS = np.arange(28 * 28, dtype=np.uint32).reshape(28, 28).astype(np.uint8)
ROWS = [[0.5] * 28] * 28


def saved(kind, image=None, **options):
    buffer = io.BytesIO()
    (image or Image.fromarray(PIXELS)).save(buffer, format=kind, **options)
    return buffer.getvalue()


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def header(width, height, depth=8, colour=0, *rest):
    """A PNG whose header has this size."""
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return start + b"".join(rest)


def data(raw):
    return chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


GOOD, PHOTO = saved("PNG"), saved("JPEG")
SIZED = PHOTO.index(b"\xff\xc0") + 5  # offset of height and width


def jpeg_with_size(height, width):
    return PHOTO[:SIZED] + struct.pack(">HH", height, width) + PHOTO[SIZED + 4 :]


BOMB = b"\0" * 20_000
HOSTILE_PICTURES = {
    "empty": (b"", 422),
    "one byte": (b"\x89", 415),
    "text": (b"hello", 415),
    "20000 x 20000 header alone": (header(20_000, 20_000), 422),
    "20000 x 20000 with data": (header(20_000, 20_000, 8, 0, data(BOMB)), 413),
    "largest header alone": (header(2**31 - 1, 2**31 - 1), 422),
    "largest header with data": (header(2**31 - 1, 2**31 - 1, 8, 0, data(BOMB)), 413),
    "JPEG of 65535 x 65535": (jpeg_with_size(65_535, 65_535), 413),
    "no pixels": (header(0, 0, 8, 0, data(b"")), 422),
    "no width": (header(0, 5, 8, 0, data(b"")), 422),
    "header alone": (header(28, 28), 422),
    "four thousand by a thousand and one": (header(4000, 1001, 1, 0, data(BOMB)), 413),
    "header larger than data": (header(1000, 1000, 8, 0, data(b"\0" * 100)), 422),
    "unknown depth": (header(28, 28, 7, 0, data(BOMB)), 422),
    "unknown colour": (header(28, 28, 8, 9, data(BOMB)), 422),
    "PNG cut in half": (GOOD[: len(GOOD) // 2], 422),
    "PNG cut at the end": (GOOD[:-16], 422),
    "PNG signature alone": (GOOD[:8], 422),
    "PNG with a wrong checksum": (GOOD[:29] + b"\0\0\0\0" + GOOD[33:], 422),
    "PNG of damaged data": (header(28, 28, 8, 0, chunk(b"IDAT", b"not zlib"), chunk(b"IEND", b"")), 422),
    "PNG text bomb": (header(28, 28, 8, 0, chunk(b"zTXt", b"k\0\0" + zlib.compress(b"\0" * 2**26)), data(BOMB)), 422),
    "JPEG cut in half": (PHOTO[: len(PHOTO) // 2], 422),
    "JPEG signature alone": (PHOTO[:3], 422),
    "JPEG without pixels": (PHOTO[: PHOTO.index(b"\xff\xda")], 422),
    "JPEG of endless scans": (PHOTO[:-2] + b"\xff\xda" * 200 + PHOTO[-2:], 422),
    "GIF": (saved("GIF"), 415),
    "WebP": (saved("WEBP"), 415),
    "TIFF": (saved("TIFF"), 415),
    "BMP": (saved("BMP"), 415),
    "ICO": (saved("ICO"), 415),
    "PDF": (saved("PDF"), 415),
    "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n", 415),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>', 415),
    "SVG after a byte-order mark": (b"\xef\xbb\xbf<svg/>", 415),
    "page": (b"<!doctype html><script>alert(1)</script>", 415),
    "zip": (b"PK\x03\x04" + b"\0" * 100, 415),
    "pickle": (b"\x80\x04\x95" + b"\0" * 100, 415),
    "numpy": (b"\x93NUMPY\x01\x00" + b"\0" * 100, 415),
    "GIF before a PNG": (b"GIF89a" + GOOD, 415),
    "script before a JPEG": (b"#!/bin/sh\n" + PHOTO, 415),
}


def deep(levels):
    return b'{"image": ' + b"[" * levels + b"]" * levels + b"}"


HOSTILE_JSON = {
    "nothing": (b"", 422),
    "no JSON": (b"{", 400),
    "not UTF-8": (b'{"image": "\xff"}', 400),
    "NaN": (json.dumps({"image": [[float("nan")] * 28] * 28}).encode(), 422),
    "infinity": (b'{"image": [[Infinity]]}', 422),
    "a number beyond double": (b'{"image": [[1e999]]}', 422),
    "beyond single in the right shape": (json.dumps({"image": [[1e300] * 28] * 28}).encode(), 422),
    "a number of many digits": (b'{"image": [[' + b"9" * 10_000 + b"]]}", 400),
    "above 1": (json.dumps({"image": [[255] * 28] * 28}).encode(), 422),
    "below 0": (json.dumps({"image": [[-0.01] * 28] * 28}).encode(), 422),
    "wrong shape": (json.dumps({"image": [[0.5] * 27] * 28}).encode(), 422),
    "colour": (json.dumps({"image": [ROWS] * 3}).encode(), 422),
    "a batch": (json.dumps({"image": [[ROWS]] * 2}).encode(), 422),
    "ragged": (json.dumps({"image": [*ROWS[:-1], [0.5]]}).encode(), 422),
    "different depth": (json.dumps({"image": [*ROWS[:-1], [[0.5]] * 28]}).encode(), 422),
    "different depth, first": (json.dumps({"image": [[[0.5]] * 28, *ROWS[1:]]}).encode(), 422),
    "text": (json.dumps({"image": [["0.5"] * 28] * 28}).encode(), 422),
    "null": (json.dumps({"image": [[None] * 28] * 28}).encode(), 422),
    "truth": (json.dumps({"image": [[True] * 28] * 28}).encode(), 422),
    "number": (b'{"image": 0.5}', 422),
    "object": (b'{"image": {"0": [0.5]}}', 422),
    "another key": (json.dumps({"image": ROWS, "url": "http://127.0.0.1/"}).encode(), 422),
    "an array": (json.dumps(ROWS).encode(), 422),
    "deep": (deep(60), 422),
    "deeper": (deep(2_000), (400, 422)),
    "deepest": (deep(400_000), 400),
    "large": (b'{"image": [' + b"[]," * 400_000 + b"[]]}", 413),
}
ROUTES = ("predict", "purify", "attack")


def refused(response, status):
    assert response.status_code in np.atleast_1d(status), response.text
    error = response.json()["error"]
    assert set(error) == {"kind", "message"}
    assert error["message"].endswith(".")
    return error["kind"]


@pytest.mark.parametrize("name", HOSTILE_PICTURES)
def test_hostile_picture_is_refused(client, name):
    body, status = HOSTILE_PICTURES[name]
    for kind in ("image/png", "image/jpeg"):
        found = client.post("/v1/predict", content=body, headers={"Content-Type": kind})
        assert refused(found, status) == {413: "size", 415: "format", 422: "input"}[status]


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_json_is_refused(client, name):
    body, status = HOSTILE_JSON[name]
    refused(client.post("/v1/predict", content=body, headers={"Content-Type": "application/json"}), status)


def test_every_route_refuses_and_the_service_continues(client):
    for route in ROUTES:
        for body in (b"GIF89a", GOOD[:50]):
            refused(client.post(f"/v1/{route}", content=body, headers={"Content-Type": "image/png"}), (415, 422))
    assert client.post("/v1/predict", content=GOOD, headers={"Content-Type": "image/png"}).status_code == 200


@pytest.mark.parametrize("kind", ["image/gif", "text/plain", "application/octet-stream", "image/*", "", None])
def test_other_content_types_are_refused(client, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    assert refused(client.post("/v1/predict", content=GOOD, headers=headers), 415) == "format"


def test_format_is_recognised_by_content_not_by_content_type(client):
    contents = [
        client.post("/v1/predict", content=body, headers={"Content-Type": kind}).json()
        for body, kind in ((PHOTO, "image/jpeg"), (PHOTO, "image/png"), (PHOTO, "IMAGE/PNG; charset=x"))
    ]
    assert "probabilities" in contents[0]
    assert contents[0] == contents[1] == contents[2]


def test_data_after_a_picture_is_ignored(client):
    plain = client.post("/v1/predict", content=GOOD, headers={"Content-Type": "image/png"}).json()
    script = GOOD + b"<script>alert(1)</script>PK\x03\x04"
    assert client.post("/v1/predict", content=script, headers={"Content-Type": "image/png"}).json() == plain
    text = header(28, 28, 8, 0) + chunk(b"tEXt", b"Comment\0<?php system('id') ?>") + GOOD[33:]
    assert client.post("/v1/predict", content=text, headers={"Content-Type": "image/png"}).json() == plain


BAD_QUERIES = {
    "predict?model=no-such-model": "'mnist-fcn-dr'",
    "predict?model=../../etc/passwd": "'mnist-fcn-dr'",
    "predict?invert=perhaps": "invert",
    "purify?model=mnist-fcn-no-def": "without an auxiliary task",
    "purify?eps_pfy=oracle": "min-aux",
    "purify?eps_pfy=min-aux-batch": "min-aux",
    "purify?eps_pfy=nan": "or equal to",
    "purify?eps_pfy=1.5": "less than or equal to 1",
    "purify?eps_pfy=-0.1": "greater than or equal to 0",
    "purify?steps=0": "steps",
    "purify?steps=101": "steps",
    "purify?steps=1e9": "steps",
    "attack?attack=cw": "'fgsm', 'pgd' or 'df'",
    "attack?eps=2": "eps",
    "attack?eps=nan": "eps",
    "attack?steps=1000000": "steps",
    "attack?attack=fgsm&steps=3": "steps is a setting of pgd",
    "attack?attack=df&eps=0.1": "eps is a setting of fgsm and pgd",
    "attack?label=10": "label is 10",
    "attack?label=-1": "label",
    "attack?label=99999999999999999999999": "label",
}


@pytest.mark.parametrize("query", BAD_QUERIES)
def test_bad_parameter_is_named(client, query):
    found = client.post(f"/v1/{query}", content=GOOD, headers={"Content-Type": "image/png"})
    assert refused(found, 422) == "input"
    assert BAD_QUERIES[query] in found.json()["error"]["message"]


ELSEWHERE = [("GET", "/v1/predict", 405), ("PUT", "/healthz", 405), ("TRACE", "/", 405), ("GET", "/v1/load", 404),
             ("GET", "/static/../app.py", 404), ("GET", "/static/%2e%2e/app.py", 404)]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "status"), ELSEWHERE)
def test_other_routes_and_methods_are_refused(client, method, path, status):
    refused(client.request(method, path), status)
