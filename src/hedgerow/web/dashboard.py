"""The dashboard on a node's HTTP port.

A request goes through the same steps, whatever it asks for: it is not of another site (`node.browsers`),
there is a log-in if the node has users, a certificate where MQTT asks for one (`node.http_access`), and what
is shown is what that user may read. A page asks for its live part each second; while somebody does, the node
hears the statuses of the whole fabric (`fabric_watch.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

from hedgerow.node import status
from hedgerow.node.browsers import objection_to_request
from hedgerow.node.handlers import ELSEWHERE, Response, refusal
from hedgerow.node.http_access import certified_user, may_be_nobody
from hedgerow.node.logins import TooManyError
from hedgerow.node.part import NodeContext, Part
from hedgerow.rates import site_of
from hedgerow.web import assets, frame
from hedgerow.web.actions import ACTIONS, Action, Asked
from hedgerow.web.actions import run as run_action
from hedgerow.web.fabric import Fabric
from hedgerow.web.fabric_watch import StatusWatch
from hedgerow.web.local import LocalRows
from hedgerow.web.pages import LOGIN, NOWHERE, PAGES, Page, clients, messages, retained, topics
from hedgerow.web.pages.common import search_of
from hedgerow.web.sessions import (
    LOG_IN_COOKIE,
    LOG_IN_FORM_S,
    SESSION_COOKIE,
    SESSION_S,
    DashboardRefused,
    LogIn,
    Sessions,
    is_same,
    read_cookie,
    set_cookie,
)
from hedgerow.web.turns import TooManyPagesError, Turns
from hedgerow.web.view import LIVE, LOG_IN, LOG_OUT, PAUSE, View, Viewer, WatchView
from hedgerow.web.watches import Watches

if TYPE_CHECKING:
    from hedgerow.node.handlers import Handler, Request

logger = logging.getLogger(__name__)

CLIENT_ID = "dashboard"  # as whom an ACL's `%c` sees the users of the dashboard
MAX_BACK = 4_096  # characters of an address to return to
CLOSED = (
    "Clients of this node must prove who they are, so the dashboard shows nothing to you. To look at it, set "
    "access.passwords (--passwords FILE) and log in, or serve it by https with tls.client_ca "
    "(--client-ca FILE) and use a client certificate in your browser. /health is for everyone."
)
MAX_TROUBLES = 50  # events that are looked through for a reason
HTML = "text/html; charset=utf-8"
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
        "form-action 'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With "no-referrer", browsers send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class Dashboard(Part):
    """The broker is asked for at each request: the node makes it when it starts."""

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.fabric_watch = StatusWatch(node, "dashboard")
        self.sessions = Sessions(node)
        self.watches = Watches(node)
        self.turns = Turns()
        self._htmx = assets.htmx()
        self._is_live = self._htmx is not None
        self._paths = {page.path for page in PAGES}

    @property
    def fabric(self) -> Fabric:
        return self.fabric_watch.fabric

    def routes(self) -> Mapping[str, Handler]:
        pages: dict[str, Handler] = {page.path: partial(self._show, page) for page in PAGES}
        script = {} if self._htmx is None else {frame.SCRIPT_PATH: assets.serve(self._htmx)}
        style = {frame.STYLE_PATH: assets.serve(assets.style())}
        return {**pages, LOG_IN: self._show_log_in, ELSEWHERE: self._show_nothing, **style, **script}

    def actions(self) -> Mapping[str, Handler]:
        acting = {path: partial(self._act, action) for path, action in ACTIONS.items()}
        return {LOG_IN: self._log_in, LOG_OUT: self._log_out, **acting}

    # Pages

    async def _show(self, page: Page, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        is_part = request.query.get(LIVE) == "1"
        log_in = self.sessions.find(request)
        user = log_in.user if log_in is not None else certified_user(self.node.config, request)
        if user is None and self.sessions.is_needed:
            return self._ask_to_log_in(request, is_part)
        if user is None and not may_be_nobody(self.node.config, request):
            return _plain(HTTPStatus.FORBIDDEN, CLOSED)
        self.fabric_watch.look()
        viewer = self._viewer(log_in, user)
        local = LocalRows(self.node, viewer)
        notice = "" if is_part or log_in is None else log_in.take_notices()
        watch = self._watch(request, viewer, is_part) if page.path == messages.PATH else None
        view = View(
            self.node.node_id,
            self.fabric,
            self.node.clock(),
            viewer=viewer,
            query={name: text for name, text in request.query.items() if name != LIVE},
            local=local,
            watch=watch,
            notice=notice or self._trouble(viewer),
            has_users=self.sessions.is_needed,
            is_live=self._is_live,
        )
        try:
            async with self.turns.turn(request.address):
                if page.path == clients.PATH:
                    await local.prepare_clients(search_of(view))
                elif page.path == retained.PATH:
                    await local.prepare_retained(retained.filter_of(view))
                elif page.path == topics.PATH:
                    found = topics.look_for(view)
                    await found.run_in_turns()
                    view = replace(view, topics=found)
                live = page.render(view)
                return _html(str(live) if is_part else frame.document(page, view, live))
        except TooManyPagesError:
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are asked for: try again later.")

    def _viewer(self, log_in: LogIn | None, user: str | None) -> Viewer:
        """Without a log-in there is no token, and so nothing that a user could do: pages are to be read."""
        node = self.node
        is_administrator = log_in is not None and user in node.config.administrators

        def may_read(topic: str) -> bool:
            return node.broker.access.may_read(user, CLIENT_ID, topic)

        def may_write(topic: str) -> bool:
            return log_in is not None and node.broker.access.may_write(user, CLIENT_ID, topic)

        return Viewer(
            user,
            is_administrator,
            token=log_in.token if log_in is not None else "",
            may_read=may_read,
            may_write=may_write,
            sees_clients=user in node.config.administrators or (user is None and not self.sessions.is_needed),
        )

    def _watch(self, request: Request, viewer: Viewer, is_part: bool) -> WatchView | None:
        topic_filter = messages.filter_of(request.query)
        if not topic_filter:
            return None
        # Strangers count by site: whoever has an IPv6 network could take every watch.
        who = read_cookie(request, SESSION_COOKIE) if viewer.user is not None else None
        return self.watches.look(
            who or site_of(request.address),
            topic_filter,
            viewer.may_read,
            is_polled=is_part,
            is_paused=request.query.get(PAUSE) == "1",
        )

    def _show_nothing(self, request: Request) -> Response:
        """For people; programs get a line of text. It says nothing that needs a log-in."""
        if "text/html" not in request.headers.get("accept", ""):
            return refusal(HTTPStatus.NOT_FOUND)
        if (refused := self._refusal(request)) is not None:
            return refused
        view = self._view_of_nobody(query={"path": request.path})
        return _html(frame.document(NOWHERE, view, NOWHERE.render(view)), HTTPStatus.NOT_FOUND)

    def _view_of_nobody(self, query: dict[str, str], token: str = "", notice: str = "") -> View:
        return View(
            self.node.node_id,
            Fabric(),
            self.node.clock(),
            viewer=Viewer(token=token, may_read=_nothing, may_write=_nothing, sees_clients=False),
            query=query,
            notice=notice,
            has_users=self.sessions.is_needed,
            is_live=self._is_live,
        )

    def _trouble(self, viewer: Viewer) -> str:
        """Why a node that is there to show others shows none."""
        node = self.node
        is_alone = not any(part.health().get("neighbours") for part in node.parts)
        may_know = viewer.may_read(status.status_topic(node.node_id))
        if node.config.takes_clients or not is_alone or not may_know:
            return ""
        # Whoever was refused at this node's own port is no reason.
        events = node.event_log.history.newest(node.clock(), MAX_TROUBLES, with_clients=False)
        reason = next((event.text for event in events if event.kind in ("lost", "refused")), "")
        return f"Not linked to any node: {reason}" if reason else "Not linked to any node yet."

    # Log-in and log-out

    async def _show_log_in(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        if not self.sessions.is_needed or self.sessions.find(request) is not None:
            return _go_to(self._back(request.query.get("back", "")))
        return self._log_in_page(request, request.query.get("back", ""))

    def _log_in_page(
        self,
        request: Request,
        back: str,
        notice: str = "",
        answer: HTTPStatus = HTTPStatus.OK,
        headers: dict[str, str] | None = None,
    ) -> Response:
        cookie, token = self.sessions.begin_log_in(request)
        view = self._view_of_nobody({"back": self._back(back)}, token, notice)
        text = frame.document(LOGIN, view, LOGIN.render(view))
        set_one = set_cookie(request, LOG_IN_COOKIE, cookie, LOG_IN_FORM_S)
        return _html(text, answer, set_one | (headers or {}))

    async def _log_in(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        back, user = request.form.get("back", ""), request.form.get("user", "")
        if not self.sessions.is_needed:
            return _go_to(self._back(back))
        if not self.sessions.is_from_log_in_form(request):
            notice = "This form was too old, or your browser keeps no cookies. Please try again."
            return self._log_in_page(request, back, notice, HTTPStatus.FORBIDDEN)
        try:
            cookie = await self.sessions.log_in(request, user, request.form.get("password", ""))
        except TooManyError as error:
            wait = {"Retry-After": str(max(1, round(error.wait_s)))}
            notice = f"Too many attempts: {error}."
            return self._log_in_page(request, back, notice, HTTPStatus.TOO_MANY_REQUESTS, wait)
        if cookie is None:
            self._report(request, f"log-in of {user[:100]!r} from {request.address}: wrong user or password")
            notice = "The user or the password is wrong."
            return self._log_in_page(request, back, notice, HTTPStatus.FORBIDDEN)
        logger.info("log-in of %r from %s", user, request.address)
        return _go_to(self._back(back), set_cookie(request, SESSION_COOKIE, cookie, SESSION_S))

    def _report(self, request: Request, reason: str) -> None:
        self.node.event_log.write(DashboardRefused(request.address, reason), self.node.clock())

    async def _log_out(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        log_in = self.sessions.find(request)
        if log_in is not None:
            if not is_same(log_in.token, request.form.get("token", "")):
                return _plain(HTTPStatus.FORBIDDEN, "The form's token is wrong: load the page again.")
            self.sessions.log_out(request)
            logger.info("log-out of %r from %s", log_in.user, request.address)
        return _go_to(LOG_IN, set_cookie(request, SESSION_COOKIE, "", 0))

    def _ask_to_log_in(self, request: Request, is_part: bool) -> Response:
        path = f"{LOG_IN}?{urlencode({'back': self._back(_address_of(request))})}"
        if is_part:
            return _html("", headers={"HX-Redirect": path})
        return _go_to(path)

    # Actions

    async def _act(self, action: Action, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        log_in = self.sessions.find(request)
        if log_in is None:
            if self.sessions.is_needed:
                return self._ask_to_log_in(request, is_part=False)
            return _plain(HTTPStatus.FORBIDDEN, "This node has no users: nobody may change anything here.")
        if not is_same(log_in.token, request.form.get("token", "")):
            return _plain(HTTPStatus.FORBIDDEN, "The form's token is wrong: load the page again.")
        asked = Asked(self.node, self._viewer(log_in, log_in.user), request.form, request.address)
        log_in.notices.append(await run_action(action, asked))
        return _go_to(self._back(request.form.get("back", "")))

    # What all have in common

    def _refusal(self, request: Request) -> Response | None:
        found = objection_to_request(self.node, request)
        return None if found is None else _plain(*found)

    def _back(self, address: str) -> str:
        """Where to go, if it is a page of ours: never to another site, whatever a link says."""
        if len(address) > MAX_BACK or not address.startswith("/") or address.startswith(("//", "/\\")):
            return "/"
        try:
            parts = urlsplit(address)
            fields = [each for each in parse_qsl(parts.query) if each[0] != LIVE]
        except ValueError:
            return "/"
        if parts.scheme or parts.netloc or parts.path not in self._paths:
            return "/"
        return f"{parts.path}?{urlencode(fields)}" if fields else parts.path


def _nothing(topic: str) -> bool:
    return False


def _address_of(request: Request) -> str:
    return f"{request.path}?{urlencode(list(request.query.items()))}"


def _html(text: str, answer: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    return Response(text.encode(errors="replace"), HTML, answer, SECURITY | (headers or {}))


def _plain(answer: HTTPStatus, text: str) -> Response:
    return Response(f"{text}\n".encode(), status=answer, headers=SECURITY)


def _go_to(path: str, headers: dict[str, str] | None = None) -> Response:
    """After a form: the browser gets the page, and a reload does not send the form again."""
    return Response(b"", status=HTTPStatus.SEE_OTHER, headers=SECURITY | {"Location": path} | (headers or {}))
