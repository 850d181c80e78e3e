"""The published reports in a real browser: light, dark, phone, paper, keyboard.

The short pass reads one page; the slow one all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import NO_CHROMIUM, program

if program() is None:
    pytest.skip(NO_CHROMIUM, allow_module_level=True)

REPORTS = Path(__file__).parent.parent.parent / "reports/published"
FIRST = "h200_nvlink"
PAGES = [
    pytest.param(path.parent.name, marks=[] if path.parent.name == FIRST else pytest.mark.slow)
    for path in sorted(REPORTS.glob("*/index.html"))
    if (path.parent / "raw.tar.xz").is_file()
]
PHONE, DESK = 375, 1280
FOCUSABLE = "a[href], summary, [tabindex='0']"


@pytest.fixture(params=PAGES)
def url(request: pytest.FixtureRequest) -> str:
    return (REPORTS / request.param / "index.html").as_uri()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Return a function that opens a page of its own and notes what it asks for."""
    opened = []

    def go(url: str, width: int = DESK, scheme: str = "light") -> Any:
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        page.set_default_timeout(60_000)
        page.asked, page.said = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.goto(url)
        opened.append(page)
        return page

    yield go
    for page in opened:
        page.close()


def overflow(page: Any) -> list[str]:
    """Return what sticks out of the page to the right, but for what scrolls by itself."""
    return page.evaluate(
        """() => document.scrollingElement.scrollWidth <= innerWidth ? [] :
        [...document.querySelectorAll('body *')].filter(e =>
            e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, .sheet, svg'))
          .slice(0, 5).map(e => e.outerHTML.slice(0, 120)).concat(['the page scrolls sideways'])"""
    )


def test_page_asks_for_nothing_and_says_nothing(open_page, url: str) -> None:
    page = open_page(url)
    assert page.asked == [url]
    assert page.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_no_barrier(open_page, url: str, scheme: str) -> None:
    """axe-core finds nothing: contrast, names, order of headings, tables, landmarks."""
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(url, scheme=scheme)
    # What is folded is looked at too.
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_dark_is_dark(open_page, url: str) -> None:
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert min(open_page(url).evaluate(shade)) > 200
    assert max(open_page(url, scheme="dark").evaluate(shade)) < 60


@pytest.mark.parametrize("width", [320, PHONE, DESK])
def test_nothing_sticks_out(open_page, url: str, width: int) -> None:
    page = open_page(url, width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert overflow(page) == []


def test_answer_is_seen_first_on_a_phone(open_page, url: str) -> None:
    page = open_page(url, PHONE)
    box = page.locator("p.answer").bounding_box()
    assert box["y"] < 500
    size = page.locator("p.answer").evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
    assert size >= 16


def test_everything_is_reached_by_keyboard_and_seen_in_focus(open_page, url: str) -> None:
    page = open_page(url)
    n = page.locator(FOCUSABLE).evaluate_all("all => all.filter(e => e.checkVisibility()).length")
    seen = []
    for _ in range(n):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                f"""() => {{ const e = document.activeElement, s = getComputedStyle(e);
                return [[...document.querySelectorAll("{FOCUSABLE}")].indexOf(e),
                        s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0]; }}"""
            )
        )
    places = [place for place, _ in seen]
    assert places == sorted(set(places)), "focus goes in the order of the page, each once"
    assert -1 not in places
    assert all(is_outlined for _, is_outlined in seen)


def test_a_table_too_wide_for_a_phone_scrolls_by_keyboard(open_page, url: str) -> None:
    page = open_page(url, PHONE)
    wide = page.locator(".scroll").evaluate_all(
        "all => all.findIndex(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 5)"
    )
    if wide < 0:
        pytest.skip("no table of this page is wider than a phone")
    table = page.locator(".scroll").nth(wide)
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("e => e.scrollLeft > 0", arg=table.element_handle(), timeout=60_000)


def test_paper_is_white_and_whole(open_page, url: str) -> None:
    page = open_page(url, width=760, scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    ink, paper = page.evaluate(
        """() => { const s = getComputedStyle(document.body);
        return [s.color, s.backgroundColor].map(c => c.match(/[\\d.]+/g).map(Number)); }"""
    )
    assert max(ink[:3]) < 80, "dark ink"
    assert min(paper[:3]) > 240 or paper[3:] == [0], "on white"
    assert overflow(page) == []
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_every_figure_has_a_text(open_page, url: str) -> None:
    labels = (
        open_page(url)
        .locator("figure svg[role=img]")
        .evaluate_all(
            "all => all.map(e => e.getAttribute('aria-label') || "
            "document.getElementById(e.getAttribute('aria-labelledby'))?.textContent || '')"
        )
    )
    assert labels
    assert all(len(label) > 40 for label in labels)


def test_links_lead_to_files_that_are_there(open_page, url: str) -> None:
    links = (
        open_page(url)
        .locator("a[href]")
        .evaluate_all("all => all.map(e => e.getAttribute('href'))")
    )
    folder = Path(url.removeprefix("file://")).parent
    from urllib.parse import unquote

    for link in links:
        if not link.startswith(("#", "http")):
            assert (folder / unquote(link)).is_file(), link
        elif link.startswith("#"):
            assert f'id="{link[1:]}"' in (folder / "index.html").read_text()
