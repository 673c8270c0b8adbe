"""A real browser that looks at the dashboard, and notices what a person would not.

`visit` opens one page in a fresh profile. Whatever the page then does, at the end there must have been no
error or warning in the console, no exception, no answer with an error, no request that failed, and none to
anybody but the node. Tests must not use asyncio while the browser runs: its driver has a loop of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect

from hedgerow_workshop.bench.browser import PROGRAMS, find_browser, running_browser
from tests.waiting import PATIENCE_S

expect.set_options(timeout=PATIENCE_S * 1_000)

PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1_280, "height": 800}
# Leaving a page ends the request that it waits for.
ABORTED = "net::ERR_ABORTED"
LOOK_S = 0.05


def is_update(request: Request) -> bool:
    """Whether htmx asked for what is new."""
    return "live=1" in request.url


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Skips the tests where there is none."""
    if find_browser() is None:
        pytest.skip(f"{PROGRAMS[0]} is not installed; `make test` fetches it where it can")
    with running_browser() as browser:
        yield browser


class Visit:
    """A page that is looked at, and all that was wrong with it so far."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.problems: list[str] = []
        self.requests: list[Request] = []
        self._origin = origin
        self._updates = 0
        page.set_default_timeout(PATIENCE_S * 1_000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("request", self._request)
        page.on("requestfailed", self._failed)
        page.on("response", self._response)

    def forgive(self, pattern: str) -> None:
        """Forget problems that the test has brought about; there must be one at least."""
        kept = [problem for problem in self.problems if not re.search(pattern, problem)]
        assert len(kept) < len(self.problems), f"nothing like {pattern!r} in {self.problems}"
        self.problems = kept

    def go(self, path: str) -> None:
        self.page.goto(self._origin + path)

    def wait_for_updates(self, count: int) -> None:
        """Until the page has been kept up to date so many times; the last may be on its way into the page."""
        for _ in range(round(PATIENCE_S / LOOK_S)):
            if self._updates >= count:
                return
            self.page.wait_for_timeout(LOOK_S * 1_000)
        raise AssertionError(f"{self.page.url} had {self._updates} updates in {PATIENCE_S:g} s")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        self.requests.append(request)
        parts = urlsplit(request.url)
        if parts.scheme != "data" and f"{parts.scheme}://{parts.netloc}" != self._origin:
            self.problems.append(f"asked a stranger: {request.url}")

    def _failed(self, request: Request) -> None:
        if request.failure != ABORTED:
            self.problems.append(f"{request.url} failed: {request.failure}")

    def _response(self, response: Response) -> None:
        self._updates += is_update(response.request)
        if response.status >= 400:
            self.problems.append(f"{response.url} answered {response.status}")


@contextmanager
def visit(browser: Browser, url: str, **profile: Any) -> Iterator[Visit]:
    """The page at `url`, once it is loaded; `profile` as of Playwright's `new_context`."""
    settings: Mapping[str, Any] = {"viewport": DESKTOP, **profile}
    parts = urlsplit(url)
    context = browser.new_context(**settings)
    try:
        visited = Visit(context.new_page(), f"{parts.scheme}://{parts.netloc}")
        visited.page.goto(url)
        yield visited
    finally:
        context.close()
    assert visited.problems == []
