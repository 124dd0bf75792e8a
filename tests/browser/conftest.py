"""A real Chromium, headless, and a real server with the demo model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..server.running import Running
from .driving import Chat

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_MISSING = "browser tests: no playwright, or no Chromium (Debian: apt-get install chromium)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Skipped tests are easily overlooked; say why these were."""
    skipped = terminalreporter.stats.get("skipped", ())
    count = sum("tests/browser/" in report.nodeid for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} skipped: {_MISSING}", yellow=True)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for these tests, and gone before the others: as long as Playwright runs, there is
    an event loop in this thread, which no test that calls `asyncio.run` can do with."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None or find_spec("playwright") is None:
        pytest.skip(_MISSING)
    from playwright.sync_api import sync_playwright

    # Chromium's sandbox refuses to run as root, which containers mostly do.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("LD_PRELOAD", raising=False)  # OpenBLAS is for the model alone
        manager = sync_playwright()
        playwright = manager.start()
    try:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()
    finally:
        playwright.stop()


@pytest.fixture(scope="package")
def server(browser: Browser) -> Iterator[Running]:
    """The demo model; started only where there is a browser."""
    with Running("--max-batch", "8") as server:
        yield server


@pytest.fixture(scope="package")
def tab(browser: Browser, server: Running) -> Iterator[Chat]:
    """A tab that is used again and again: a new one takes a second of processor time."""
    with Chat.opened(browser, server.url) as chat:
        yield chat


@pytest.fixture
def chat(tab: Chat, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Chat]:
    """The page as at a first visit; how a failed test left it is drawn in the temporary folder."""
    tab.start_anew()
    failed = request.session.testsfailed
    yield tab
    if request.session.testsfailed > failed:
        tab.page.screenshot(path=tmp_path / "end.png")
    tab.check_clean()
