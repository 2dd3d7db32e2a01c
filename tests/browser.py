"""Debian's Chromium, headless, for tests of pages."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

from playwright.sync_api import sync_playwright


@contextmanager
def chromium():
    """A browser; to be without one is a failure, and says so."""
    path = shutil.which("chromium")
    assert path is not None, "no chromium: apt-get install --no-install-recommends chromium"
    # Its sandbox refuses root, as which containers run.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()
