"""Models that run in the browser: results equal those of the service, which receives no picture."""

import base64
import contextlib
import io
import json
import shutil

import numpy as np
import pytest
import torch
from browsing import visited
from PIL import Image
from service_process import service_process
from small_service import MODELS

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from soap.data import pictures
from soap.evaluation import fingerprint
from soap.serve.app import STATIC

vendored = pytest.mark.skipif(
    not (STATIC / "vendor" / "manifest.json").is_file(),
    reason="there are no files for the browser alone; `make browser` fetches them",
)
SWITCH = "Run in this browser"
SHAPE = (1, 28, 28)


@pytest.fixture
def static(tmp_path):
    """A copy of the page's files without those for models in the browser."""
    folder = tmp_path / "static"
    shutil.copytree(STATIC, folder, ignore=shutil.ignore_patterns("vendor", ".*"))
    return folder


@contextlib.contextmanager
def visit_copy(browser, static):
    """The page of a service whose static files are in another folder."""
    patch = f"from pathlib import Path; from soap.serve import app; app.STATIC = Path({str(static)!r})"
    with (
        service_process(static.parent / "log", models=MODELS, patch=patch) as service,
        visited(browser, service.address) as visit,
    ):
        yield visit


def work(visit):
    """The routes that got a picture."""
    return [url.split("/v1/")[1].split("?")[0] for url in visit.asked if "/v1/" in url and "/v1/models" not in url]


def steps(visit):
    """Phase, step, class, probability and loss of every row of the table."""
    return visit.page.locator("#steps tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )


def levels(base64_png):
    """Of a grey picture."""
    return np.array(Image.open(io.BytesIO(base64.b64decode(base64_png))).convert("L"), dtype=float)


def shown(visit):
    """The purified picture and what purification changed."""
    images = visit.page.locator("#stage-purified img").all()
    return [levels(image.get_attribute("src").partition("base64,")[2]) for image in images]


def switch_on(visit):
    """By keyboard, until all is loaded."""
    visit.page.get_by_label(SWITCH).focus()
    visit.page.keyboard.press("Space")
    visit.wait_for_status("classified and purified in this browser")


@vendored
def test_purification_in_the_browser_equals_the_service_and_sends_no_request(visit):
    visit.open()
    visit.press("Attack")
    visit.wait_for_status("Attacked: the network saw 7")
    before = visit.seen("attacked")
    switch_on(visit)
    del visit.asked[:]
    visit.press("Purify")
    visit.wait_for_status("Purified: the network sees 7 again")
    assert visit.seen("purified") == "7" != before
    assert work(visit) == []
    said, here, pair = visit.page.locator("#status").inner_text(), steps(visit), shown(visit)
    visit.page.get_by_label(SWITCH).uncheck()
    visit.wait_for_status("classified and purified by the service")
    visit.press("Purify")
    visit.wait_for_status("Radius")
    assert work(visit) == ["purify"]
    assert visit.page.locator("#status").inner_text() == said
    there = steps(visit)
    assert [row[:4] for row in here] == [row[:4] for row in there]
    assert [float(row[4]) for row in here] == pytest.approx([float(row[4]) for row in there], rel=0.01)
    assert len(pair) == 2
    for picture, other in zip(pair, shown(visit), strict=True):
        assert np.abs(picture - other).max() <= 1


@vendored
def test_examples_drawings_and_files_are_classified_without_the_service(visit, digits):
    visit.open()
    switch_on(visit)
    del visit.asked[:]
    visit.page.get_by_role("button", name="Example: 4").click()
    visit.wait_for_status("The network sees 4")
    visit.draw([(0.5, 0.15), (0.5, 0.85)])
    visit.wait_for_status("The network sees 1")
    body = io.BytesIO()
    Image.fromarray(255 - (digits.x[3, 0] * 255).byte().numpy()).resize((224, 224)).save(body, format="JPEG")
    visit.page.set_input_files("#file", {"name": "three.jpg", "mimeType": "image/jpeg", "buffer": body.getvalue()})
    visit.wait_for_status("The network sees 3")
    assert visit.page.get_by_label("swap dark and light").is_checked()
    visit.page.set_input_files("#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"})
    visit.page.locator("#trouble", has_text="not a picture that this browser can read").wait_for()
    visit.page.get_by_label("Purification radius").select_option("0.2")
    visit.press("Purify")
    visit.wait_for_status("Radius 0.2")
    assert work(visit) == []
    visit.press("Attack")
    visit.wait_for_status("Attacked")
    assert work(visit) == ["attack"]


@vendored
def test_model_only_on_the_service_gets_no_picture_before_a_button_is_pressed(visit):
    visit.open()
    switch_on(visit)
    del visit.asked[:]
    visit.page.get_by_label("Model").select_option(MODELS[1])
    visit.wait_for_status("This model runs in the service alone: what you choose now is sent there.")
    switch = visit.page.get_by_label(SWITCH)
    assert not switch.is_visible()
    visit.page.get_by_label("Model").select_option(MODELS[0])
    visit.wait_for_status("The network sees 7")
    assert switch.is_visible()
    assert not switch.is_checked()


def test_page_without_the_files_has_no_switch_and_does_not_request_them(browser, static):
    with visit_copy(browser, static) as visit:
        visit.open()
        assert not visit.page.get_by_label(SWITCH).is_visible()
        assert [url for url in visit.asked if "vendor" in url] == []


def test_files_that_cannot_be_loaded_are_reported_and_the_picture_stays(browser, static, model):
    (static / "vendor").mkdir()
    listed = {MODELS[0]: {"weights_sha256": fingerprint(model), "bytes": 19_000_000}}
    (static / "vendor" / "manifest.json").write_text(json.dumps({"models": listed}))
    with visit_copy(browser, static) as visit:
        visit.open()
        switch = visit.page.get_by_role("checkbox", name=SWITCH)
        said = visit.page.locator(f"#{switch.get_attribute('aria-describedby')}").inner_text()
        assert "your picture stays in this browser" in said
        assert "Attack still sends it to the service" in said
        assert "19 MB" in said
        switch.check()
        visit.trouble("This browser cannot run the network")
        (static / "vendor" / "ort.wasm.min.mjs").write_text("export const env = { wasm: {} };")
        del visit.asked[:]
        visit.press("Purify")
        visit.trouble("static/vendor/ort-wasm-simd-threaded.wasm cannot be loaded (status 404). Run `make browser`")
        assert work(visit) == []
        switch.uncheck()
        visit.press("Purify")
        visit.wait_for_status("Radius")


STUB_RUNTIME = """
export const env = { wasm: {} };
export class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
const images = ({ dims: [count] }) => Array.from({ length: count }, (_, i) => i);
const parts = {
  classifier: ({ x }) => Float32Array.from(images(x).flatMap(() => [0, 0, 0, 1, 0, 0, 0, 0, 0, 0])),
  loss: ({ x }) => Float32Array.from(images(x), (i) => x.data.slice(784 * i, 784 * (i + 1)).reduce((a, b) => a + b)),
  step: ({ x, x0, step_size, eps }) => x.data.map((value, k) =>
    Math.max(0, value - step_size.data[0], x0.data[k] - eps.data[Math.floor(k / 784)])),
};
export const InferenceSession = { create: async (bytes) => {
  const part = parts[new TextDecoder().decode(bytes)];
  return { outputNames: ["out"], run: async (inputs) => ({ out: { data: part(inputs) } }) };
} };
"""
"""onnxruntime-web with one class, the sum of the pixels as the loss, and a step that darkens every pixel."""


def test_purification_with_a_stub_runtime_chooses_the_radius_of_the_lowest_loss(browser, static, model):
    folder = static / "vendor" / MODELS[0]
    folder.mkdir(parents=True)
    listed = {MODELS[0]: {"weights_sha256": fingerprint(model), "bytes": 1000}}
    (static / "vendor" / "manifest.json").write_text(json.dumps({"models": listed}))
    (static / "vendor" / "ort.wasm.min.mjs").write_text(STUB_RUNTIME)
    (static / "vendor" / "ort-wasm-simd-threaded.wasm").write_bytes(b"0")
    for part in ("classifier", "loss", "step"):
        (folder / f"{part}.onnx").write_text(part)
    own = model.purification
    reach = own.steps * own.step_size
    radius = next((eps for eps in own.grid if eps >= reach * (1 - 1e-6)), own.grid[-1])
    with visit_copy(browser, static) as visit:
        visit.open()
        switch_on(visit)
        del visit.asked[:]
        visit.press("Purify")
        visit.wait_for_status(f"Radius {radius:.3g}.")
        assert visit.seen("purified") == "3"
        rows = steps(visit)
        losses = [float(row[4]) for row in rows]
        assert len(rows) == own.steps + 1
        assert losses == sorted(losses, reverse=True)
        assert losses[0] > losses[-1]
        assert work(visit) == []


def files():
    """Pictures of many kinds, by name."""
    chance = np.random.default_rng(0)
    colour = Image.fromarray(chance.integers(0, 256, (9, 7, 3), dtype=np.uint8))
    smooth = colour.resize((300, 211), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation
    made = {
        "as it is": (Image.fromarray(chance.integers(0, 256, (28, 28), dtype=np.uint8)), {"format": "PNG"}),
        "smaller": (Image.fromarray(chance.integers(0, 256, (5, 9), dtype=np.uint8)), {"format": "PNG"}),
        "larger": (Image.fromarray(chance.integers(0, 256, (100, 140, 3), dtype=np.uint8)), {"format": "PNG"}),
        "transparent": (Image.fromarray(chance.integers(0, 256, (60, 50, 4), dtype=np.uint8)), {"format": "PNG"}),
        "photograph": (smooth, {"format": "JPEG", "quality": 95}),
        "turned photograph": (smooth, {"format": "JPEG", "quality": 95, "exif": turned}),
    }
    for name, (image, options) in made.items():
        body = io.BytesIO()
        image.save(body, **options)
        yield name, body.getvalue()


@pytest.mark.parametrize("invert", [False, True])
def test_pictures_are_read_as_the_service_reads_them(visit, invert):
    visit.open()
    read = """async ([bytes, shape, invert]) => {
        const { decode } = await import("/static/levels.js");
        return [...await decode(new Blob([new Uint8Array(bytes)]), shape, invert)];
    }"""
    for name, body in files():
        found = torch.tensor(visit.page.evaluate(read, [list(body), SHAPE, invert])).reshape(SHAPE)
        wanted = pictures.read_picture(body, SHAPE, resize=True, max_pixels=10**6, invert=invert)
        assert (found - wanted).abs().max() <= (1.01 / 255 if name != "as it is" else 0), name


def test_pictures_are_written_and_magnified_as_the_service_does(visit):
    visit.open()
    write = """async ([before, after, shape]) => {
        const { encode, magnified } = await import("/static/levels.js");
        const { difference, magnification } = magnified(Float32Array.from(before), Float32Array.from(after));
        return [await encode(difference, shape), magnification];
    }"""
    chance = torch.Generator().manual_seed(0)
    before = torch.rand(SHAPE, generator=chance)
    for after in (before, (before + 0.1).clamp(max=1), torch.rand(SHAPE, generator=chance)):
        inputs = [before.flatten().tolist(), after.flatten().tolist(), SHAPE]
        painted, magnification = visit.page.evaluate(write, inputs)
        difference, wanted = pictures.magnify_difference(after - before)
        assert magnification == pytest.approx(wanted, rel=1e-5)
        assert np.abs(levels(painted) - 255 * difference[0].numpy()).max() <= 0.51
