"""docs/service.md agrees with the committed rows and the limits, and the load tool counts correctly."""

import copy
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from small_service import png

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

import load_service as load
import page_measurements
import render_pages

from soap.serve import Limits
from soap.serve.picture_api import MAX_STEPS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def row():
    figures = {"requests": 1000, "errors": 0, "requests_per_second": 123.4, "p50_ms": 12.3, "p99_ms": 45.6}
    return {
        "schema": load.SCHEMA,
        "server": load.SERVER,
        "model": "mnist-cnn-dr",
        "operation": "purify",
        "clients": 32,
        "seconds": 60.0,
        "batch_size": 32,
        "ways": {"batched": figures, "single": {**figures, "requests_per_second": 41.1}},
        "ratio": 3.0,
        "provenance": {"processor": "some CPU", "threads": 2, "commit": "a" * 40, "date": "2026-01-02T03:04:05",
                       "torch": "2.13.0", "python": "3.11.7", "command": "python tools/load_service.py"},
    }  # fmt: skip


def test_later_row_of_the_same_measurement_is_rendered(row, tmp_path):
    path = tmp_path / "service.jsonl"
    later = copy.deepcopy(row)
    later["ways"]["batched"]["errors"] = 7
    other = {**row, "clients": 8}
    path.write_text("".join(json.dumps(each) + "\n" for each in (row, later, other)))
    rows = page_measurements.service_rows(path)
    assert rows == [later, other]
    lines = [line for line in page_measurements.service_table(rows).splitlines() if line.startswith("| granian |")]
    assert len(lines) == 4
    assert (
        lines[0] == "| granian | `mnist-cnn-dr` | purify | 32 | 60 | up to 32 | 1,000 | 7 | 123 | 12 | 46 | **3.0 x** |"
    )
    assert "| one at a time | 1,000 | 0 | 41 |" in lines[1]
    assert page_measurements.service_table([]) == page_measurements.NO_SERVICE
    assert page_measurements.service_rows(tmp_path / "none.jsonl") == []


def test_rows_of_the_earlier_server_are_marked(row):
    assert page_measurements.EARLIER_NOTE not in page_measurements.service_table([row])
    older = {key: value for key, value in row.items() if key != "server"}
    text = page_measurements.service_table([older])
    assert text.startswith(page_measurements.EARLIER_NOTE)
    assert "| uvicorn | `mnist-cnn-dr` | purify |" in text
    assert page_measurements.EARLIER_NOTE in render_pages.rendered(
        render_pages.DOCS / "service.md"
    )  # its 32 clients were not measured again


def test_limits_on_the_page_are_the_defaults():
    page, limits = (render_pages.DOCS / "service.md").read_text(encoding="utf-8"), Limits()
    stated = {
        "8 MiB, counted": limits.body == 8 * 2**20,
        "JSON 1 MiB": limits.json == 2**20,
        "4 megapixels": limits.pixels == 4_000_000,
        "its body included | 10 s": limits.timeout_s == 10,
        f"one model | {limits.queue} (": True,
        f"purification | {MAX_STEPS} |": True,
        f"open connections | {limits.connections} |": True,
        "64 MiB": limits.total_body == 64 * 2**20,
        f"up to {1000 * limits.gather_s:g} ms": True,
        f"at most {limits.batch_size} at a time": True,
    }
    assert [words for words, true in stated.items() if not (true and words in page)] == []


def test_every_route_is_on_the_page(client):
    page = (render_pages.DOCS / "service.md").read_text(encoding="utf-8")
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, route in methods.items():
            (line,) = [line for line in page.splitlines() if re.search(rf"`{method.upper()} {path}`", line)]
            for parameter in route.get("parameters", ()):
                assert f"`{parameter['name']}`" in line


def test_load_tool_counts_responses_and_errors(live, digits):
    place = urlsplit(live).netloc
    latencies, errors = load.send_load(place, "predict", [png(digits.x[0])], clients=2, seconds=0.2)
    assert len(latencies) > 0
    assert errors == 0
    latencies, errors = load.send_load(place, "predict", [b"no picture"], clients=2, seconds=0.1)
    assert latencies == []
    assert errors > 0


def test_quantiles():
    values = [float(value) for value in range(1, 101)]
    assert [load.quantile(values, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert load.quantile([3.0], 0.5) == 3
