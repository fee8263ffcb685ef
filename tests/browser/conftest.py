"""A real browser: Debian's chromium, driven by Playwright. Without either, tests here skip."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PATIENCE_MS = 30_000  # a busy machine is no failure
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Its path, if this machine has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


# A module's, not the session's: while Playwright's loop runs, no async test can.
@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """One chromium for a module's tests."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_chromium()
    if path is None:
        pytest.skip("no chromium here; on Debian: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        # Root has no sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page that remembers what went wrong on it and what it asked of whom."""

    def __init__(self, context: "BrowserContext") -> None:
        context.set_default_timeout(PATIENCE_MS)
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.urls: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.urls.append(request.url))

    def _on_console(self, message: object) -> None:
        if getattr(message, "type", "") in {"error", "warning"}:
            self.complaints.append(getattr(message, "text", str(message)))

    def assert_clean(self, base: str) -> None:
        """Nothing on the console, and no request to another host."""
        assert self.complaints == []
        assert [url for url in self.urls if not url.startswith((f"{base}/", "data:"))] == []


OpenVisit = Callable[..., Visit]


@pytest.fixture
def visit(browser: "Browser") -> Iterator[OpenVisit]:
    """Opens pages in contexts of their own: `visit(width=390, color_scheme="dark")`."""
    contexts: list[BrowserContext] = []

    def open_visit(*, width: int = 1280, height: int = 900, color_scheme: str = "light") -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=color_scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        contexts.append(context)
        return Visit(context)

    yield open_visit
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def lab() -> Iterator[str]:
    """The address of a running `expediter lab`, without a path."""
    command = [sys.executable, "-m", "expediter", "lab", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.partition("The lab is at ")[2].strip().removesuffix("/lab")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
