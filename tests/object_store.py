"""A server that speaks S3, as a program on loopback: moto's, with its objects in memory.

It keeps what Delta's log relies on: an object is made whole, and of two that make one of the same name with
`If-None-Match` the second is refused.
"""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hedgerow.pipeline.program import Program
from tests.programs import wait_until

BUCKET = "lake"
START_S = 60.0  # It imports a good deal, and others are busy.


@contextmanager
def run_store(directory: Path) -> Iterator[dict[str, str]]:
    """What the environment of a program needs that is to find the store; it has the bucket `BUCKET`."""
    with Program("the store", directory) as server:
        server.launch([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])

        def url() -> str:
            found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", server.log.read_text())
            return found[1] if found else ""

        wait_until(lambda: bool(url()), "the store", START_S)
        request = urllib.request.Request(f"{url()}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request).close()
        yield {
            "AWS_ENDPOINT_URL": url(),
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "hedgerow",
            "AWS_SECRET_ACCESS_KEY": "hedgerow-secret",
        }
