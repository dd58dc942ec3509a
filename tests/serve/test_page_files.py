"""The files of the page: types and caching, nothing from elsewhere, and a gallery that tells the truth."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

import make_gallery
from soap.serve.page import STATIC, TYPES
from soap.serve.subject import load

from soap.serve import Limits
from soap.serve.operations import Mislead, Predict, Purify, perform

FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
FILES = [name for name in FILES if not name.startswith("vendor/")]  # others' work, and not in every clone
GALLERY = json.loads((STATIC / "gallery" / "gallery.json").read_text(encoding="utf-8"))


def test_the_root_is_the_page(client):
    answer = client.get("/")
    assert answer.content == (STATIC / "index.html").read_bytes()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_every_file_has_its_type_whatever_the_machine_thinks(client, monkeypatch):
    monkeypatch.setattr("starlette.responses.guess_type", lambda *_: ("text/plain", None))
    for name in FILES:
        answer = client.get(f"/static/{name}")
        assert answer.content == (STATIC / name).read_bytes()
        assert answer.headers["content-type"] == TYPES[Path(name).suffix]
        assert answer.headers["cache-control"] == "no-cache"


def test_a_file_that_is_known_already_is_not_sent_again(client):
    known = client.get("/static/page.js").headers["etag"]
    again = client.get("/static/page.js", headers={"If-None-Match": known})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/page.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "gallery", "//etc/passwd", "nothing.js"])
def test_nothing_else_is_given_away(client, path):
    assert client.get(f"/static/{path}").status_code == 404


def test_the_page_needs_nobody_else_and_no_inline_script_or_style():
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


def test_every_element_that_a_script_asks_for_is_on_the_page():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    asked = {name for path in STATIC.glob("*.js") for name in re.findall(r'byId\("([^"]+)"\)', path.read_text("utf-8"))}
    assert asked
    assert {name for name in asked if f'id="{name}"' not in page} == set()


def test_the_page_knows_how_much_may_be_sent():
    assert "const MOST = 8 * 1024 * 1024;" in (STATIC / "api.js").read_text(encoding="utf-8")
    assert Limits().body == 8 * 1024 * 1024


def test_the_gallery_is_small_whole_and_shows_both_sides():
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


def seen(subject, operation, x, label):
    walk = perform(operation, subject.model, [x], [label])[0]
    return walk.points[-1], int(walk.probabilities[-1].argmax())


@pytest.mark.parametrize("entry", GALLERY["entries"], ids=lambda entry: entry["said"])
def test_an_entry_of_the_gallery_is_what_the_service_does(entry):
    subject, x, label = load(entry["model"], device="cpu"), image(entry["input"]["file"]), entry["label"]
    x, found = seen(subject, Predict(), x, label)
    assert (found, subject.classes[found]) == (entry["input"]["class"], entry["input"]["name"])
    if entry["attacked"]:
        method = subject.attack(entry["attack"], eps=entry["eps"])
        x, found = seen(subject, Mislead(attack=method), x, label)
        assert found == entry["attacked"]["class"]
        assert (x - image(entry["attacked"]["file"])).abs().max() < 1.01 / 255
    if entry["purified"]:
        _, found = seen(subject, Purify.of(subject.model, entry["eps_pfy"]), x, label)
        assert found == entry["purified"]["class"]
    assert subject.model.purifiable == bool(entry["purified"])
    assert (entry["outcome"] == "works") == (found == label)


def test_the_worst_cases_are_those_of_the_committed_runs():
    told = json.loads((STATIC / "adaptive.json").read_text(encoding="utf-8"))
    assert told == make_gallery.worst_cases()
    assert told["mnist-fcn-dr"]["worst"] == 0
    assert "cifar10-resnet18-lc-stop" not in told
