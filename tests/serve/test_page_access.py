"""The page for everybody: by keyboard, by ear, with little light, on a small screen; and digits made as MNIST's are."""

import re
from itertools import pairwise

import pytest
from browsing import visited

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

NAMED = {
    "button", "textbox", "combobox", "slider", "spinbutton", "checkbox", "link", "image", "DisclosureTriangle", "status"
}  # fmt: skip
READ = (
    "body", "header p", "a", "#status", ".hint", "#stage-input .seen", "#stage-attacked .seen", "#stage-purified .seen",
    ".bars li", ".bars .top", "label", ".panel .label", "#do-attack", "#do-purify", "select", "#clear",
    ".card .description", ".card .hint", "figcaption", ".note", "footer p", "#step-text",
    "summary", "th", "td", "#replay",
)  # fmt: skip


def purified(visit):
    """Attack and purify the first example."""
    visit.open()
    visit.press("Attack")
    visit.wait_for_status("Attacked")
    visit.press("Purify")
    visit.wait_for_status("Radius")


def tab_to(visit, selector):
    """Press Tab until the element has the focus, and see that the focus shows."""
    page = visit.page
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
            return
    pytest.fail(f"Tab does not lead to {selector}")


def test_every_action_works_by_keyboard(visit):
    visit.open()
    keyboard = visit.page.keyboard
    tab_to(visit, ".skip")
    tab_to(visit, "#digits li:nth-child(5) button")
    keyboard.press("Enter")
    visit.wait_for_status("The network sees 4")
    tab_to(visit, "#file")
    tab_to(visit, "#model")
    tab_to(visit, "#strength")
    keyboard.press("ArrowLeft")
    assert visit.page.locator("#strength-number").input_value() == "0.29"
    tab_to(visit, "#do-attack")
    keyboard.press("Enter")
    visit.wait_for_status("Attacked: the network saw 4")
    tab_to(visit, "#do-purify")
    keyboard.press("Space")
    visit.wait_for_status("Radius")
    tab_to(visit, "#replay")
    tab_to(visit, "#step")
    keyboard.press("Home")
    assert visit.page.locator("#step-text").inner_text().startswith("Attack, step 0 of 40: 4")
    tab_to(visit, "summary")
    tab_to(visit, ".card")
    keyboard.press("Enter")
    visit.wait_for_status("The network sees 3")


def test_every_control_and_image_has_an_accessible_name(visit):
    purified(visit)
    session = visit.page.context.new_cdp_session(visit.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in NAMED]
    roles = {node["role"]["value"] for node in shown}
    assert {"button", "combobox", "slider", "spinbutton", "image"} <= roles
    unnamed = [node for node in shown if not node["name"]["value"].strip() and node["role"]["value"] != "status"]
    assert unnamed == []
    names = [node["name"]["value"] for node in shown]
    assert any("draw a digit" in name and "choose an example" in name for name in names)
    assert any(re.match(r"Attack: from 7 to \d in 40 steps, auxiliary loss from", name) for name in names)


def test_screen_readers_are_notified_of_results(visit):
    visit.open()
    page = visit.page
    assert page.get_by_role("status").first.inner_text().startswith("The network sees 7")
    assert page.locator("#trouble").get_attribute("role") == "alert"
    assert page.locator("html").get_attribute("lang") == "en"
    levels = page.evaluate("() => [...document.querySelectorAll('h1, h2, h3')].map(it => Number(it.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def luminance(colour):
    """Of an rgb() text, by WCAG 2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_ratio_formula():
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser, live, scheme):
    colours = """selectors => selectors.map(selector => {
        const letters = document.querySelector(selector);
        let behind = letters;
        while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
        return [getComputedStyle(letters).color, getComputedStyle(behind ?? document.body).backgroundColor];
    })"""
    with visited(browser, live, color_scheme=scheme) as visit:
        purified(visit)
        found = dict(zip(READ, visit.page.evaluate(colours, list(READ)), strict=True))
        assert (luminance(found["body"][1]) > 0.5) == (scheme == "light")
        assert {name: pair for name, pair in found.items() if contrast(*pair) < 4.5} == {}
        cell = "() => getComputedStyle(document.querySelector('{}')).fill"
        letters, *behind = (
            visit.page.evaluate(cell.format(part)) for part in (".seen-here", ".cell.correct", ".cell.wrong")
        )
        assert min(contrast(letters, colour) for colour in behind) >= 4.5


@pytest.mark.parametrize(
    "options",
    [
        {"viewport": {"width": 360, "height": 740}, "has_touch": True},
        {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2},
        {"viewport": {"width": 1280, "height": 800}},
    ],
    ids=["phone", "twice as large", "desk"],
)
def test_page_has_no_horizontal_scroll(browser, live, options):
    with visited(browser, live, **options) as visit:
        purified(visit)
        assert visit.page.evaluate("() => document.scrollingElement.scrollWidth") == options["viewport"]["width"]
        small = """() => [...document.querySelectorAll("button, select, input:not([type=checkbox])")]
            .filter(it => it.offsetParent && Math.min(it.offsetWidth, it.offsetHeight) < 24).map(it => it.id)"""
        assert visit.page.evaluate(small) == []


def test_drawing_is_scaled_and_centred_like_mnist_digits(visit):
    visit.open()
    levels = visit.page.evaluate(
        """async () => {
            const { centred } = await import("/static/centre.js");
            const drawn = new Uint8Array(280 * 280); // an L near a corner
            for (let i = 0; i < 120; i++) for (let j = 0; j < 24; j++) {
                drawn[(100 + i) * 280 + 10 + j] = 255;
                drawn[(196 + j) * 280 + 10 + i * 0.5] = 255;
            }
            return [[...centred(drawn, 280, 280)], centred(new Uint8Array(280 * 280), 280, 280)];
        }"""
    )
    assert levels[1] is None
    rows = [levels[0][28 * row : 28 * row + 28] for row in range(28)]
    mass = sum(map(sum, rows))
    assert sum(sum(row) * (i + 0.5) for i, row in enumerate(rows)) / mass == pytest.approx(14, abs=0.1)
    assert sum(level * (j + 0.5) for row in rows for j, level in enumerate(row)) / mass == pytest.approx(14, abs=0.1)
    assert sum(max(row) > 32 for row in rows) in (20, 21)
    assert max(levels[0]) == 255
