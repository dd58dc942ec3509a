"""The page in a real browser: draw, attack, purify, see the label return; files, the gallery, and errors in words."""

import io
import json
import re

import numpy as np
import pytest
from browsing import visited
from PIL import Image
from service_process import service_process
from small_service import MODELS, png

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

FOUR = [(0.32, 0.15), (0.25, 0.5), (0.72, 0.5)], [(0.68, 0.18), (0.64, 0.86)]
TOKEN = "a-token-of-some-length"


def on_paper(x):
    """A digit as it looks on paper: dark on light, and larger than the model takes."""
    buffer = io.BytesIO()
    levels = 255 - np.kron((x[0] * 255).round().byte().numpy(), np.ones((8, 8), np.uint8))
    Image.fromarray(levels).save(buffer, format="JPEG", quality=95)
    return buffer.getvalue()


def drop(visit, name, kind, body, more=0):
    """Drop a file on the page, as a hand would; `more` zeros follow its body."""
    visit.page.evaluate(
        """([name, type, bytes, more]) => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([new Uint8Array(bytes), new Uint8Array(more)], name, { type }));
            for (const kind of ["dragover", "drop"])
                document.body.dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
        }""",
        [name, kind, list(body), more],
    )


def test_drawn_digit_is_attacked_and_purification_restores_its_label(visit):
    visit.open()
    visit.draw(*FOUR)
    visit.wait_for_status("The network sees 4")
    visit.press("Attack")
    visit.wait_for_status("Attacked: the network saw 4, now it sees")
    assert visit.seen("input") == "4" != visit.seen("attacked")
    visit.press("Purify")
    visit.wait_for_status("Purified: the network sees 4 again")
    assert visit.seen("purified") == "4"
    page = visit.page
    for stage in ("input", "attacked", "purified"):
        picture = page.locator(f"#stage-{stage} .frame img")
        assert picture.evaluate("it => it.complete && it.naturalWidth") == 28
        assert picture.evaluate("it => it.width") >= 150
        assert page.locator(f"#stage-{stage} .bars li").count() == 10
    assert page.locator("#stage-attacked .change").inner_text().startswith("what the attack changed")
    assert page.locator("#steps tbody tr").count() == 41 + 6
    assert page.locator("#chart polyline").count() == 2


def test_attack_pressed_at_once_uses_the_latest_drawing(visit):
    visit.open()
    held = []
    visit.page.route("**/v1/predict*", lambda route: held.append(route))
    for stroke in FOUR:
        with visit.page.expect_request("**/v1/predict*"):
            visit.draw(stroke)
    visit.press("Attack")
    visit.press("Purify")
    held[-1].continue_()
    visit.wait_for_status("Purified: the network sees 4 again")


def test_touch_draws_and_the_pad_can_be_cleared(browser, live):
    blank = """pad => pad.getContext("2d").getImageData(0, 0, 280, 280).data
        .every((level, i) => level === 0 || i % 4 === 3)"""
    with visited(browser, live, has_touch=True, viewport={"width": 360, "height": 700}) as visit:
        visit.open()
        pad = visit.page.locator("#pad")
        assert pad.evaluate(blank)
        pad.tap()
        assert not pad.evaluate(blank)
        visit.press("Clear")
        assert pad.evaluate(blank)


def test_steps_are_animated_unless_reduced_motion_is_requested(browser, live):
    count = """() => { window.shown = new Set();
        new MutationObserver(() => window.shown.add(document.getElementById("step-text").textContent))
            .observe(document.getElementById("step-text"), { childList: true }); }"""
    for motion, wanted in (("no-preference", 41), ("reduce", 1)):
        with visited(browser, live, reduced_motion=motion) as visit:
            visit.open()
            visit.page.evaluate(count)
            visit.press("Attack")
            visit.wait_for_status("Attacked")
            assert visit.page.evaluate("() => window.shown.size") == wanted


def test_steps_can_be_selected_one_by_one(visit):
    visit.open()
    visit.press("Attack")
    visit.wait_for_status("Attacked")
    step = visit.page.get_by_label("Step", exact=True)
    end = visit.seen("attacked")
    step.press("Home")
    assert step.get_attribute("aria-valuetext").startswith("Attack, step 0 of 40: 7 ")
    assert visit.seen("attacked") == "7" != end
    step.press("End")
    assert visit.seen("attacked") == end


def test_dropped_photograph_of_ink_on_paper_is_inverted_and_classified(visit, digits):
    visit.open()
    drop(visit, "three.jpg", "image/jpeg", on_paper(digits.x[3]))
    visit.wait_for_status("The network sees 3")
    swap, shown = visit.page.get_by_label("swap dark and light"), visit.page.locator("#stage-input .frame img")
    assert swap.is_checked()
    swapped = shown.get_attribute("src")
    swap.uncheck()
    visit.page.wait_for_function("before => document.querySelector('#stage-input img').src !== before", arg=swapped)
    swap.check()
    visit.page.wait_for_function("before => document.querySelector('#stage-input img').src === before", arg=swapped)


def test_chosen_file_is_classified_as_by_the_service(visit, digits):
    visit.open()
    body = png(digits.x[2])
    visit.page.set_input_files("#file", {"name": "two.png", "mimeType": "image/png", "buffer": body})
    visit.wait_for_status("The network sees 2")
    assert not visit.page.get_by_label("swap dark and light").is_checked()


def test_every_gallery_entry_gives_the_result_it_describes(visit):
    visit.open()
    cards = visit.page.locator(".card")
    assert cards.count() >= 4
    for card in cards.all():
        named = re.findall(r"(input|attacked|purified): (\w+)", re.sub(r"\s+", " ", card.inner_text()))
        card.click()
        for stage, name in named:
            if stage != "input":
                visit.press({"attacked": "Attack", "purified": "Purify"}[stage])
            visit.page.locator(f"#stage-{stage} .seen b", has_text=name).wait_for()
            visit.page.locator("body:not([aria-busy])").wait_for()


def test_model_without_a_purifier_has_no_purify_button(visit):
    visit.open()
    assert visit.page.get_by_role("button", name="Purify", exact=True).is_enabled()
    visit.page.get_by_label("Model").select_option(MODELS[1])
    visit.page.get_by_text("this model cannot purify").wait_for()
    assert visit.page.get_by_role("button", name="Purify", exact=True).is_disabled()
    visit.press("Attack")
    visit.wait_for_status("Attacked: the network saw 7")
    assert visit.page.locator("#chart polyline").count() == 0
    assert "no auxiliary task" in visit.page.locator("#chart-hint").inner_text()


def test_worst_case_of_the_chosen_model_is_shown(visit):
    visit.open()
    told = visit.page.locator("#limits-text")
    assert "do not know the purifier" in told.inner_text()
    assert "soap evaluate mnist-fcn-dr --suite full" in told.inner_text()
    assert visit.page.locator("#worst").inner_text() == "0.0 %"
    visit.page.get_by_label("Model").select_option(MODELS[1])
    assert "nothing is claimed" in told.inner_text()


def test_errors_are_shown_and_the_page_stays_usable(visit):
    visit.open()
    visit.page.get_by_label("Strength, as a number").fill("7")
    visit.press("Attack")
    visit.trouble("Eps: Input should be less than or equal to 1")
    drop(visit, "notes.txt", "text/plain", b"hello")
    visit.trouble("This file is not a PNG or JPEG picture.")
    drop(visit, "half.png", "image/png", b"\x89PNG\r\n\x1a\n")
    visit.trouble("damaged")
    drop(visit, "large.png", "image/png", b"", more=8 * 2**20 + 1)
    visit.trouble("too large: 8 MiB at most")
    visit.page.get_by_label("Strength, as a number").fill("0.3")
    visit.press("Attack")
    visit.wait_for_status("Attacked")
    assert visit.page.locator("#trouble").inner_text() == ""


def test_busy_and_unreachable_services_have_their_own_messages(visit):
    visit.open()
    busy = json.dumps({"error": {"kind": "busy", "message": "16 attacks are under way already; try again in 1 s."}})
    visit.page.route("**/v1/attack*", lambda route: route.fulfill(status=503, headers={"Retry-After": "3"}, body=busy))
    visit.press("Attack")
    visit.trouble("The service is busy. Wait 3 s, then try again.")
    visit.page.route("**/v1/purify*", lambda route: route.abort())
    visit.press("Purify")
    visit.page.locator("#trouble", has_text="The service does not respond. Is it still running?").wait_for()
    visit.complaints = [each for each in visit.complaints if "Failed to load resource" not in each]


def test_page_asks_for_the_token_if_one_is_required(browser, tmp_path):
    with (
        service_process(tmp_path / "log", models=MODELS[:1], token=TOKEN) as service,
        visited(browser, service.address) as visit,
    ):
        visit.page.goto(service.address)
        field = visit.page.get_by_label("This service requires a token")
        visit.trouble("The token is missing or wrong.")
        field.fill("wrong")
        field.press("Enter")
        visit.trouble("The token is missing or wrong.")
        field.fill(TOKEN)
        visit.press("Use it")
        visit.wait_for_status("The network sees 7")
        assert not field.is_visible()
        visit.press("Attack")
        visit.wait_for_status("Attacked")
