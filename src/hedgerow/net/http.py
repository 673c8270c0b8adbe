"""The HTTP port: a table of paths, each with a function from `Request` to `Response`.

HTTP itself is h11's. A connection carries one request, must be over within `MAX_CONNECTION_S` and may
send `MAX_HEAD_BYTES` of head; bodies are not read. Handlers run on the event loop and must not block.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import h11

if TYPE_CHECKING:
    from hedgerow.net.server import Server

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTION_S = 10.0

METHODS = ("GET", "HEAD")


@dataclass(slots=True, frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case; the last one counts where a header is repeated."""


@dataclass(slots=True, frozen=True)
class Response:
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Response]


def refusal(status: HTTPStatus, headers: Mapping[str, str] | None = None) -> Response:
    return Response(f"{status.value} {status.phrase}\n".encode(), status=status, headers=headers or {})


def respond(routes: Mapping[str, Handler], request: Request) -> Response:
    if request.method not in METHODS:
        return refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ", ".join(METHODS)})
    handler = routes.get(request.path)
    if handler is None:
        return refusal(HTTPStatus.NOT_FOUND)
    try:
        return handler(request)
    except Exception:
        logger.exception("the handler of %s failed", request.path)
        return refusal(HTTPStatus.INTERNAL_SERVER_ERROR)


class HttpLink(asyncio.Protocol):
    __slots__ = ("_deadline", "_http", "_server", "transport")

    def __init__(self, server: Server) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.socket_opened()
        self._server.http_links.add(self)
        self._deadline = asyncio.get_running_loop().call_later(MAX_CONNECTION_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._send(refusal(HTTPStatus(error.error_status_hint)), with_body=True)
            return
        if isinstance(event, h11.Request):
            request = _request(event)
            self._send(respond(self._server.routes, request), with_body=request.method != "HEAD")

    def connection_lost(self, error: Exception | None) -> None:
        self._finish()
        self._server.socket_closed()

    def _send(self, response: Response, with_body: bool) -> None:
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
            **response.headers,
        }
        status = HTTPStatus(response.status)
        head = h11.Response(status_code=status, reason=status.phrase.encode(), headers=list(headers.items()))
        self.transport.write(self._http.send(head) or b"")
        if with_body:
            self.transport.write(response.body)
        self._finish()
        self._server.linger(self.transport)

    def _finish(self) -> None:
        self._deadline.cancel()
        self._server.http_links.discard(self)


def _request(event: h11.Request) -> Request:
    path, _, _ = event.target.decode("latin-1").partition("?")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
    return Request(event.method.decode("latin-1"), path, headers)


def health(server: Server) -> Handler:
    """200 while the node does its work, 503 while it cannot keep what it is given."""

    def handle(request: Request) -> Response:
        problem = server.problem
        body = {"status": problem or "ok", "node": server.node_id, "connections": server.open_sockets}
        status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
        return Response(json.dumps(body).encode() + b"\n", "application/json", status)

    return handle
