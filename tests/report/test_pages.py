"""The page in a real browser, where one is installed: it loads, charts draw, the filter works, nothing complains."""

import re

import pytest

from headwise import studies
from headwise.report.page import write_page
from headwise.report.sections import sections_of
from headwise.store.store import Store
from helpers import browser
from helpers.pages import EVIL, fill

PROGRAM = browser.find()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium is installed here; install it, or name one in HEADWISE_CHROMIUM"
)
STUDIES = ("rank-cliff", "in-context", "rank-bound")
VISIBLE = "[...document.querySelectorAll('{}')].filter((one) => one.checkVisibility())"
SHOWN = VISIBLE.format(".ledger tbody th") + ".map((one) => one.textContent)"
SECTIONS = VISIBLE.format(".study") + ".map((one) => one.id)"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with Store(":memory:") as store:
        fill(store)
        sections = list(sections_of([studies.load(name) for name in STUDIES], store))
    return write_page(sections, [], EVIL, tmp_path_factory.mktemp("page")).as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    driven = browser.Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield driven
    driven.close()


@pytest.fixture
def tab(chromium, address):
    chromium.look(1280)
    chromium.open(address)
    return chromium


def test_it_loads_alone_and_without_complaint(tab, address):
    assert "attention" in tab.ask("document.title")
    assert {url for url in tab.requests if not url.startswith("data:image/svg+xml")} == {address}
    assert tab.console == []
    assert tab.ask("window.hacked") is None


DRAWN = """(async () => {
    document.querySelectorAll('details').forEach((part) => { part.open = true });
    for (const figure of document.querySelectorAll('.chart')) {
        figure.scrollIntoView();
        while (!figure.querySelector('.chart-help')) await new Promise(requestAnimationFrame);
    }
    return [...document.querySelectorAll('.chart svg')].map((svg) => [svg.clientWidth, svg.getAttribute('aria-label')]);
})()"""


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_charts_come_to_life_where_they_are_seen(tab, width, address):
    """Each fits its place, is described, and takes the place of its picture; nothing is fetched or refused."""
    tab.look(width)
    charts = tab.ask(DRAWN)
    assert charts[0][1].startswith("Q7, holds: ")
    assert charts[1][1].startswith("The rank cliff")
    assert all(150 < shown <= width for shown, _ in charts)
    assert tab.ask("document.images.length") == 0
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert {url for url in tab.requests if not url.startswith("data:image/svg+xml")} == {address}
    assert tab.console == []


def test_a_mark_says_its_numbers_and_the_wheel_zooms(tab):
    tab.ask(DRAWN)
    mark, ticks = ".chart svg .mark-symbol path", ".chart svg .role-axis-label text"
    tab.ask("document.querySelector('.chart').scrollIntoView()")
    at = f"(() => {{ const box = document.querySelector('{mark}').getBoundingClientRect();"
    x, y = tab.ask(f"{at} return [box.x + box.width / 2, box.y + box.height / 2] }})()")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    told = tab.ask("document.querySelector('#vg-tooltip-element.visible')?.textContent ?? ''")
    assert "rank" in told
    assert "error" in told
    labels = f"[...document.querySelectorAll('{ticks}')].map((one) => one.textContent).join()"
    before = tab.ask(labels)
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -400}
    tab.call("Input.dispatchMouseEvent", **wheel)  # scrolls the page, as everywhere
    assert tab.ask(labels) == before
    for _ in range(40):  # the page may still be scrolling
        tab.ask("document.querySelector('.chart').scrollIntoView()")
        tab.call("Input.dispatchMouseEvent", modifiers=2, **wheel)
        if tab.ask(f"new Promise((done) => setTimeout(() => done({labels}), 300))") != before:
            break
    else:
        pytest.fail("the wheel does not zoom")
    assert tab.console == []


def test_without_scripts_charts_are_pictures(chromium, address):
    chromium.look(1280)
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(address)
        page = chromium.call("DOM.getDocument")["root"]["nodeId"]
        images = chromium.call("DOM.querySelectorAll", nodeId=page, selector=".chart img")["nodeIds"]
        first = chromium.call("DOM.getBoxModel", nodeId=images[0])["model"]
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    assert len(images) == 2
    assert first["width"] > 300
    assert first["height"] > 200


def choose(tab, **chosen):
    for name, value in chosen.items():
        tab.ask(
            f"(() => {{ const box = document.getElementById('{name}'); box.value = '{value}';"
            " box.dispatchEvent(new Event('change', { bubbles: true })) })()"
        )
    return tab.ask(SHOWN), tab.ask(SECTIONS), tab.ask("document.getElementById('shown').value")


def test_the_filter_works(tab):
    everything = ["Q2", "Q3", "Q7", "Q8", "Q9", "Q14", "Q21"]
    assert tab.ask(SHOWN) == everything
    assert tab.ask("document.querySelector('.filter').checkVisibility()")
    assert choose(tab, verdict="open") == (
        ["Q2", "Q14", "Q21"],
        ["rank-bound", "rank-cliff", "in-context"],
        "3 of 7 claims",
    )
    holding = ["Q3", "Q7", "Q8", "Q9"]
    assert choose(tab, verdict="holds") == (holding, ["rank-bound", "rank-cliff"], "4 of 7 claims")
    assert choose(tab, verdict="fails", source="Q") == ([], [], "0 of 7 claims")
    assert choose(tab, verdict="", source="")[0] == everything
    assert tab.console == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_can_be_read_on_any_screen(tab, width, scheme):
    """Nothing sticks out sideways, and every text stands out from its ground (WCAG's ratio of 4.5)."""
    tab.look(width, scheme=scheme)
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert tab.ask(SHOWN)
    ground = luminance(tab.ask("getComputedStyle(document.body).backgroundColor"))
    assert (ground > 0.5) == (scheme == "light")
    for what in ("body", ".note", "small", "a", ".holds", ".open", "thead th", "summary", "dt"):
        text = luminance(tab.ask(f"getComputedStyle(document.querySelector('{what}')).color"))
        high, low = max(text, ground), min(text, ground)
        assert (high + 0.05) / (low + 0.05) >= 4.5, what


def luminance(colour):
    """Relative luminance, as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_it_is_light_on_paper(tab):
    tab.look(1280, scheme="dark")
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.ask("document.querySelector('.filter').checkVisibility()")
    tab.call("Emulation.setEmulatedMedia", media="")


def test_a_script_that_is_not_the_page_s_own_is_refused(tab):
    tab.ask(
        "(() => { const script = document.createElement('script');"
        " script.text = 'window.hacked = 1'; document.body.append(script) })()"
    )
    assert tab.ask("window.hacked") is None
    assert any("Content Security Policy" in str(entry) for entry in tab.console)
