"""The HTTP port: the node's two tables of paths, to read and to act (see `handlers`).

HTTP itself is h11's. A connection carries one request, must be over within `MAX_CONNECTION_S`, and may send
`MAX_HEAD_BYTES` of head and, with POST, a form of `MAX_FORM_BYTES`, or what a `Tree` takes from whoever asks.
The head has to say its length: browsers send no form in chunks, and in those of one byte it would take the
loop a hundred times as long to read.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl

import h11

from hedgerow.node.handlers import ACTING, Handler, Request, Response, Tree, answer, refusal, respond
from hedgerow.node.link import user_of
from hedgerow.rates import site_of

if TYPE_CHECKING:
    from hedgerow.node.listener import Listener
    from hedgerow.node.part import NodeContext

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
MAX_FORM_BYTES = 64 * 1024
MAX_FIELDS = 100
MAX_CONNECTION_S = 10.0

FORM_TYPE = "application/x-www-form-urlencoded"


class FormError(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


class HttpLink(asyncio.Protocol):
    __slots__ = (
        "_address",
        "_deadline",
        "_form",
        "_head",
        "_http",
        "_is_tls",
        "_max_s",
        "_node",
        "_site",
        "_task",
        "_tree",
        "transport",
    )

    def __init__(
        self, node: NodeContext, listener: Listener, address: str, max_s: float = MAX_CONNECTION_S
    ) -> None:
        self._node = node
        self._max_s = max_s
        self._address = address
        self._site = site_of(address)
        self._is_tls = listener.scheme == "https"
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._head: h11.Request | None = None
        self._tree: Tree | None = None
        self._form = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._node.sockets.opened(self._site)
        self._node.sockets.http_links.add(self)
        self._deadline = asyncio.get_running_loop().call_later(self._max_s, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._task is not None:
            return  # One request: what comes behind it is not read.
        self._http.receive_data(data)
        try:
            self._read_events()
        except h11.RemoteProtocolError as error:
            self._send(refusal(HTTPStatus(error.error_status_hint)), with_body=True)
        except FormError as error:
            self._send(refusal(error.status), with_body=True)

    def _read_events(self) -> None:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._head = event
                self._tree = self._find_tree(event)
                if self._tree is not None:
                    _check_length(event, self._tree.max_body_bytes(self._request(event, b"")))
                elif self._takes_form(event):
                    _check_length(event, MAX_FORM_BYTES)
                else:
                    self._answer(self._request(event, b""))
                    return
                if self._http.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    self.transport.write(self._http.send(go_on) or b"")
            elif isinstance(event, h11.Data):
                self._form += event.data
            elif isinstance(event, h11.EndOfMessage) and self._head is not None:
                self._answer(self._request(self._head, bytes(self._form)))
                return
            else:
                return

    def _request(self, head: h11.Request, body: bytes) -> Request:
        has_certificate = self._is_tls and bool(self.transport.get_extra_info("peercert"))
        tls = self._node.config.tls
        by_subject = tls is not None and tls.use_subject_as_username
        name = user_of(self.transport, has_certificate, has_certificate and by_subject)
        make = _request if self._tree is None else _whole_request
        request = make(head, body, self._address, self._is_tls)
        return replace(request, has_certificate=has_certificate, certificate_name=name)

    def _find_tree(self, head: h11.Request) -> Tree | None:
        path, _, _ = head.target.decode("latin-1").partition("?")
        return next((tree for root, tree in self._node.trees.items() if path.startswith(root)), None)

    def _takes_form(self, head: h11.Request) -> bool:
        path, _, _ = head.target.decode("latin-1").partition("?")
        return head.method.decode("latin-1") in ACTING and path in self._node.actions

    def _answer(self, request: Request) -> None:
        with_body = request.method != "HEAD"
        if self._tree is not None:
            found = answer(self._tree.handle, request)
        else:
            found = respond(self._node.routes, self._node.actions, request)
        if isinstance(found, Response):
            self._send(found, with_body)
        else:
            waiting = self._wait(found, request, with_body)
            self._task = asyncio.get_running_loop().create_task(waiting)

    async def _wait(self, waiting: Awaitable[Response], request: Request, with_body: bool) -> None:
        try:
            response = await waiting
        except Exception:
            logger.exception("the handler of %s failed", request.path)
            response = refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        if not self.transport.is_closing():
            self._send(response, with_body)

    @property
    def is_idle(self) -> bool:
        """Nothing was asked so far: browsers open connections that they may need."""
        return self._head is None

    def connection_lost(self, error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._finish()
        self._node.sockets.closed(self._site)

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
        self._node.sockets.linger(self.transport, self._site)

    def _finish(self) -> None:
        self._deadline.cancel()
        self._node.sockets.http_links.discard(self)


def _check_length(head: h11.Request, most: int) -> None:
    headers = dict(head.headers)
    if b"transfer-encoding" in headers:
        raise FormError(HTTPStatus.LENGTH_REQUIRED)
    if int(headers.get(b"content-length", 0)) > most:
        raise FormError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _request(head: h11.Request, body: bytes, address: str, is_tls: bool) -> Request:
    whole = _whole_request(head, b"", address, is_tls)
    headers = whole.headers
    if body and headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        raise FormError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    return replace(whole, query=_fields(whole.raw_query), form=_fields(body.decode("latin-1")))


def _whole_request(head: h11.Request, body: bytes, address: str, is_tls: bool) -> Request:
    """For a tree, which reads the query and the body itself."""
    path, _, query = head.target.decode("latin-1").partition("?")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    method = head.method.decode("latin-1")
    return Request(method, path, headers, raw_query=query, body=body, address=address, is_tls=is_tls)


def _fields(text: str) -> dict[str, str]:
    """The last one counts where a field is repeated."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"))
    except ValueError:
        raise FormError(HTTPStatus.BAD_REQUEST) from None


def live(node: NodeContext) -> Handler:
    """200 for as long as the node answers: a disk that is full is no better after a restart."""

    def handle(request: Request) -> Response:
        body = json.dumps({"status": "alive", "node": node.node_id}).encode() + b"\n"
        return Response(body, "application/json", HTTPStatus.OK)

    return handle


def health(node: NodeContext) -> Handler:
    """200 while the node does its work, 503 while it cannot keep what it is given."""

    def handle(request: Request) -> Response:
        problem = node.problem
        body = {"status": problem or "ok", "node": node.node_id, "clients": node.broker.client_count}
        status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
        return Response(json.dumps(body).encode() + b"\n", "application/json", status)

    return handle
