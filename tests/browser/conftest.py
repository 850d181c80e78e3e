"""A real browser: the machine's own Chromium, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield Chromium, started once."""
    program = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium, as .ci/nightly does")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox.
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()
