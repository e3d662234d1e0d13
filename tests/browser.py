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


def opened(browser, address, size=DESK, scheme="light"):
    """(page, complaints): what the console or a failed script said is added to the list."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    complaints = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    return page, complaints


def overflow(page):
    """By how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
