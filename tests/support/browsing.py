"""A real browser, where there is one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def a_page() -> Iterator[Any]:
    """A page of a headless Chromium; skips the test where there is none.

    One browser a test: Playwright leaves an event loop running for as long as it does.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    # Chromium has no sandbox for root, which is who tests run as in containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            page = browser.new_page(viewport={"width": 1200, "height": 700})
            page.set_default_timeout(90_000)
            yield page
        finally:
            browser.close()
