"""A browser without a window, for what only a browser can tell: whether a page is drawn, and when.

It is Chromium (or Chrome), from the system or from where `tools/install-strangers` put it, driven by
Playwright, a package of the extra `test`. Neither is needed to import this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.programs import find_program

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROGRAMS = ("chromium", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
# Its sandbox needs rights that a container, or root, does not have; it is shown our own pages alone. Shared
# memory in /dev/shm may have 64 MB there, which is less than a large page takes.
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")

# Not by asking again and again: the page's own policy forbids the browser to run what comes as a text.
_PAINT = """() => new Promise(resolve => new PerformanceObserver(list => {
  const [paint] = list.getEntriesByName("first-contentful-paint");
  if (paint) resolve(paint.startTime);
}).observe({type: "paint", buffered: true}))"""


OpenBrowser = Callable[[], "AbstractContextManager[Browser]"]


class NoBrowserError(BenchError):
    """The browser, or what drives it, is not installed."""


def find_browser(find: Callable[[str], str | None] = find_program) -> str | None:
    """Its path; None where there is none."""
    return next(filter(None, map(find, PROGRAMS)), None)


@contextmanager
def running_browser(find: Callable[[str], str | None] = find_program) -> Iterator[Browser]:
    """Raises NoBrowserError."""
    program = find_browser(find)
    if program is None:
        raise NoBrowserError(f"no browser is installed: none of {', '.join(PROGRAMS)}")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoBrowserError("playwright is not installed (the extra `test`)") from None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def first_paint_s(page: Page) -> float:
    """From the beginning of the navigation until something was drawn (first contentful paint)."""
    return float(page.evaluate(_PAINT)) / 1_000
