"""A real browser: Debian's Chromium, steered by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = "chromium"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium for the tests of a module."""
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"needs {CHROMIUM} (Debian's package {CHROMIUM})")
    with chromium() as running:
        yield running


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium for the block; FileNotFoundError if it is not installed."""
    path = shutil.which(CHROMIUM)
    if path is None:
        raise FileNotFoundError(f"{CHROMIUM} is not installed")
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that a container does not give.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
