"""Files that pages name: the style sheet, and htmx where it is installed.

htmx comes in the wheel of `django-htmx`, of which nothing is imported: neither that package nor Django.
Without it (the extra `dash`) pages reload themselves. Files are read once, and answered with an ETag, so that
a browser that has one asks only whether it is still the same.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.node.handlers import Response

if TYPE_CHECKING:
    from hedgerow.node.handlers import Handler, Request

logger = logging.getLogger(__name__)

STYLE = Path(__file__).with_name("style.css")
HTMX_PACKAGE = "django_htmx"
HTMX_FILE = "django_htmx/static/django_htmx/htmx-4.min.js"


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    content_type: str

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def style() -> Asset:
    return Asset(STYLE.read_bytes(), "text/css; charset=utf-8")


def htmx() -> Asset | None:
    """None where the package is not installed, or has another htmx."""
    # Not by the packages' metadata: what reads that takes as long to import as all the pages.
    found = find_spec(HTMX_PACKAGE)
    if found is None or found.origin is None:
        return None
    try:
        content = (Path(found.origin).parents[1] / HTMX_FILE).read_bytes()
        return Asset(content, "text/javascript; charset=utf-8")
    except OSError:
        logger.warning("the installed %s has no %s: pages reload themselves", HTMX_PACKAGE, HTMX_FILE)
        return None


def serve(asset: Asset) -> Handler:
    tag = asset.tag
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Cross-Origin-Resource-Policy": "same-origin"}

    def handle(request: Request) -> Response:
        known = request.headers.get("if-none-match", "").split(",")
        if tag in [each.strip().removeprefix("W/") for each in known]:
            length = {"Content-Length": str(len(asset.content))}
            return Response(b"", asset.content_type, HTTPStatus.NOT_MODIFIED, headers | length)
        return Response(asset.content, asset.content_type, headers=headers)

    return handle
