"""For `bench dashboard`: somebody who has pages of it open.

    python -m hedgerow_workshop.bench.dashboard_reader URL…

Each page is opened as a whole, and then its live part is asked for each second, as htmx does on a page. For
each answer there is one line of JSON on standard output. SIGTERM closes the pages.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlsplit

from hedgerow.pipeline.program import Program
from hedgerow_workshop.bench import BenchError

EVERY_S = 1.0
ANSWER_S = 10.0
SENT_AT = re.compile(rb"sent-at-(\d+\.\d+)")
"""What a message says of itself that is to tell how old a page is."""


class Answer(NamedTuple):
    """To a request for the live part of a page."""

    path: str
    at: float
    """When it had come, by the wall clock."""
    took_s: float
    size: int
    changed: bool
    """It differs from the one before."""
    age_s: float | None
    """Of the newest message in it that tells; None where there is none."""


def read_answers(reader: Program) -> Iterator[Answer]:
    """All that it has told so far, the last line only if it is whole."""
    for line in reader.output.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield Answer(*json.loads(line))


def intervals_of(answers: Sequence[Answer]) -> Iterator[float]:
    """Between one answer of a page and its next."""
    for path in {answer.path for answer in answers}:
        times = [answer.at for answer in answers if answer.path == path]
        yield from (after - before for before, after in pairwise(times))


class Tab:
    """One page."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        self._address = parts.netloc
        self._last = b""

    def open(self) -> None:
        self._get(self.path)

    def live(self) -> bytes:
        return self._get(self.path + ("&" if "?" in self.path else "?") + "live=1")

    def read(self) -> Answer:
        started_at = time.time()
        body = self.live()
        at = time.time()
        times = [float(found) for found in SENT_AT.findall(body)]
        age_s = at - max(times) if times else None
        answer = Answer(self.path, at, at - started_at, len(body), body != self._last, age_s)
        self._last = body
        return answer

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(self._address, timeout=ANSWER_S)
        try:
            connection.request("GET", path, headers={"HX-Request": "true"})
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise BenchError(f"{path}: {answer.status} {answer.reason}")
        return body


def main() -> None:
    tabs = [Tab(url) for url in sys.argv[1:]]
    for tab in tabs:
        tab.open()
    next_at = time.monotonic()
    while True:
        next_at = max(next_at + EVERY_S, time.monotonic())
        time.sleep(max(next_at - time.monotonic(), 0.0))
        for tab in tabs:
            print(json.dumps(tab.read()), flush=True)


if __name__ == "__main__":
    main()
