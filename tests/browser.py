"""A real browser for the tests of pages: the distribution's Chromium, driven by Playwright."""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE, DESK = (375, 740), (1200, 900)


@contextmanager
def chromium():
    """A browser; where there is none the tests are skipped, saying so, except in CI, which must have one."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    give_up = pytest.fail if os.environ.get("CI") else pytest.skip
    if found is None:
        give_up("there is no Chromium here (apt-get install chromium): pages were not looked at in a browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        give_up("Playwright is not installed (pip install playwright): pages were not looked at in a browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def opened(browser, address, size=DESK, scheme="light", touch=False):
    """(page, complaints): what the console or a failed script said is added to the list. touch: it has fingers."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, has_touch=touch)
    complaints = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    return page, complaints


def swiped(page, fingers):
    """Put fingers down one after another, move them together, and lift them in that order.

    fingers: paths of (x, y), each of the same length.
    """
    session = page.context.new_cdp_session(page)

    def send(kind, points):
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def points(step, which):
        return [{"x": fingers[k][step][0], "y": fingers[k][step][1], "id": k} for k in which]

    for k in range(len(fingers)):
        send("touchStart", points(0, range(k + 1)))
    for step in range(1, len(fingers[0])):
        send("touchMove", points(step, range(len(fingers))))
    for k in range(len(fingers)):
        send("touchEnd", points(-1, range(k + 1, len(fingers))))


CONTRAST = """() => {
  const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parts(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const words = [...document.querySelectorAll("body *")].filter((e) =>
    !e.closest("[disabled]") && e.getClientRects().length && !["SCRIPT", "STYLE"].includes(e.tagName)
    && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  return words.map((e) => {
    const style = getComputedStyle(e), ink = light(parts(e.namespaceURI.endsWith("svg") ? style.fill : style.color));
    const paper = light(behind(e));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    return [ratio, e.tagName + " " + e.textContent.slice(0, 40)];
  }).filter(([ratio]) => ratio < 4.5);
}"""


def pale(page):
    """Texts whose contrast with what is behind them is below 4.5, with that contrast."""
    return page.evaluate(CONTRAST)


def overflow(page):
    """By how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
