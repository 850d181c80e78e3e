"""A real browser: the machine's own Chromium, without a window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from chromium import NO_CHROMIUM, program


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield Chromium, started once."""
    if (path := program()) is None:
        pytest.skip(NO_CHROMIUM)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox.
        running = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=300_000
        )
        yield running
        running.close()
