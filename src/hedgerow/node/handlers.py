"""What answers at the HTTP port: functions from `Request` to `Response`, in tables by path.

Handlers run on the event loop and must not block; one that has to wait returns an awaitable.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from hedgerow.node.browsers import is_of_browser, objection_to_request

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

logger = logging.getLogger(__name__)

READING = ("GET", "HEAD")
ACTING = ("POST",)
ELSEWHERE = ""
"""In the table of what is read: who answers for all paths that are in neither table. No path is empty."""


@dataclass(slots=True, frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case; the last one counts where a header is repeated."""
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    """What POST brought."""
    raw_query: str = ""
    """As it came."""
    body: bytes = b""
    """The same, for a `Tree`."""
    address: str = ""
    """The peer's."""
    is_tls: bool = False
    has_certificate: bool = False
    """The handshake verified one of the peer's."""
    certificate_name: str | None = None
    """Its common name."""


@dataclass(slots=True, frozen=True)
class Response:
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Response | Awaitable[Response]]


class Tree(NamedTuple):
    """Whatever is asked for below a path, by any method and with any body."""

    handle: Handler
    max_body_bytes: Callable[[Request], int]
    """Asked with the head alone, before any of the body is read."""


def refusal(status: HTTPStatus, headers: Mapping[str, str] | None = None) -> Response:
    return Response(f"{status.value} {status.phrase}\n".encode(), status=status, headers=headers or {})


def respond(
    routes: Mapping[str, Handler], actions: Mapping[str, Handler], request: Request
) -> Response | Awaitable[Response]:
    """`routes` are for GET and HEAD, `actions` for POST."""
    tables = {**dict.fromkeys(READING, routes), **dict.fromkeys(ACTING, actions)}
    handler = tables.get(request.method, {}).get(request.path)
    if handler is None:
        allowed = [method for method, table in tables.items() if request.path in table]
        known = allowed or (READING if request.method not in tables else ())
        if known:
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ", ".join(known)})
        handler = routes.get(ELSEWHERE) if request.method in READING else None
        if handler is None:
            return refusal(HTTPStatus.NOT_FOUND)
    return answer(handler, request)


def answer(handler: Handler, request: Request) -> Response | Awaitable[Response]:
    try:
        return handler(request)
    except Exception:
        logger.exception("the handler of %s failed", request.path)
        return refusal(HTTPStatus.INTERNAL_SERVER_ERROR)


def for_programs(node: NodeContext, handler: Handler) -> Handler:
    """What programs read, by whatever name they know this machine.

    It is not for pages of other sites: the names of neighbours and bridges, and what flows between them, are
    not for someone who made a browser ask by a name of his own that leads here (DNS rebinding). So browsers
    are answered by the names that the dashboard answers to, and others by any.
    """

    def handle(request: Request) -> Response | Awaitable[Response]:
        found = objection_to_request(node, request) if is_of_browser(request) else None
        if found is not None:
            status, text = found
            return Response(f"{text}\n".encode(), status=status)
        return handler(request)

    return handle
