"""Static files of the page: content types, caching, no external resources, and a gallery with true results."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

import page_suite_runs
import render_pages

from soap.recipes.trained_model import open_model
from soap.serve import Limits
from soap.serve.app import CONTENT_TYPES, STATIC
from soap.serve.trajectories import AttackClassifier, Predict, Purify, run_operation

FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
FILES = [name for name in FILES if not name.startswith("vendor/")]  # third-party files, not in every clone
GALLERY = json.loads((STATIC / "gallery" / "gallery.json").read_text(encoding="utf-8"))


def test_root_is_the_page(client):
    response = client.get("/")
    assert response.content == (STATIC / "index.html").read_bytes()
    assert response.headers["content-type"] == "text/html; charset=utf-8"


def test_content_types_do_not_depend_on_the_system(client):
    for name in FILES:
        response = client.get(f"/static/{name}")
        assert response.content == (STATIC / name).read_bytes()
        assert response.headers["content-type"].partition(";")[0] == CONTENT_TYPES[Path(name).suffix]
        assert response.headers["cache-control"] == "no-cache"


def test_unchanged_file_is_status_304(client):
    known = client.get("/static/page.js").headers["etag"]
    again = client.get("/static/page.js", headers={"If-None-Match": known})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/page.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "gallery", "//etc/passwd", "nothing.js"])
def test_other_files_are_not_served(client, path):
    assert client.get(f"/static/{path}").status_code == 404


def test_page_has_no_external_or_inline_scripts_and_styles():
    texts = {name: (STATIC / name).read_text(encoding="utf-8") for name in FILES if not name.endswith(".png")}
    outside = {name: re.findall(r"https?://[^\s\"'`]+", text) for name, text in texts.items()}
    assert {address for found in outside.values() for address in found} == {"http://www.w3.org/2000/svg"}
    page = texts["index.html"]
    assert re.findall(r"<style|style=|\son\w+=|javascript:", page) == []
    assert re.findall(r"<script[^>]*></script>", page) == re.findall(r"<script.*", page)
    wanted = set(re.findall(r"(?:src|href)=\"static/([^\"]+)\"", page))
    for name, text in texts.items():
        if name.endswith(".js"):
            wanted |= set(re.findall(r"from \"\./([^\"]+)\"", text))
    assert wanted <= set(FILES)
    assert {name for name in FILES if name.endswith((".js", ".css", ".svg"))} <= wanted


def test_every_element_used_by_a_script_is_on_the_page():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    asked = {name for path in STATIC.glob("*.js") for name in re.findall(r'byId\("([^"]+)"\)', path.read_text("utf-8"))}
    assert asked
    assert {name for name in asked if f'id="{name}"' not in page} == set()


def test_page_knows_the_body_limit():
    assert "const MAX_BODY_BYTES = 8 * 1024 * 1024;" in (STATIC / "api.js").read_text(encoding="utf-8")
    assert Limits().body == 8 * 1024 * 1024


def test_gallery_is_small_complete_and_shows_successes_and_failures():
    files = [name for name in FILES if name.startswith("gallery/")]
    assert sum((STATIC / name).stat().st_size for name in files) < 150_000
    stages = [entry[stage] for entry in GALLERY["entries"] for stage in ("input", "attacked", "purified")]
    named = {it["file"] for it in [*GALLERY["digits"], *filter(None, stages)]}
    assert {f"gallery/{name}" for name in named} | {"gallery/gallery.json"} == set(files)
    outcomes = [entry["outcome"] for entry in GALLERY["entries"]]
    assert min(outcomes.count("works"), outcomes.count("fails")) >= 4
    assert [digit["label"] for digit in GALLERY["digits"]] == list(range(10))


def image(name):
    return torch.from_numpy(np.array(Image.open(STATIC / "gallery" / name))).float()[None] / 255


def seen(served, operation, x, label):
    trajectory = run_operation(operation, served.model, [x], [label])[0]
    return trajectory.points[-1], int(trajectory.probabilities[-1].argmax())


@pytest.mark.parametrize("entry", GALLERY["entries"], ids=lambda entry: entry["description"])
def test_gallery_entry_equals_the_result_of_the_service(entry):
    served, x, label = open_model(entry["model"]), image(entry["input"]["file"]), entry["label"]
    x, found = seen(served, Predict(), x, label)
    assert (found, served.classes[found]) == (entry["input"]["class"], entry["input"]["name"])
    if entry["attacked"]:
        method = served.attack(entry["attack"], settings={"eps": entry["eps"]})
        x, found = seen(served, AttackClassifier(attack=method), x, label)
        assert found == entry["attacked"]["class"]
        assert (x - image(entry["attacked"]["file"])).abs().max() < 1.01 / 255
    if entry["purified"]:
        _, found = seen(served, Purify.of(served.model, entry["eps_pfy"]), x, label)
        assert found == entry["purified"]["class"]
    assert served.model.purifiable == bool(entry["purified"])
    assert (entry["outcome"] == "works") == (found == label)


def test_worst_cases_equal_the_committed_runs():
    found = json.loads((STATIC / "adaptive.json").read_text(encoding="utf-8"))
    assert found == json.loads(page_suite_runs.worst_cases_json(render_pages.runs()))
    assert found["mnist-fcn-dr"]["worst"] == 0
    assert "cifar10-resnet18-lc-stop" not in found
