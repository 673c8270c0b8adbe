"""What HTTP shows without a log-in: nothing that MQTT would refuse to the same peer.

A peer with nothing to prove who it is may read over HTTP if it could connect to MQTT so. One whose
certificate the TLS handshake verified has the rights that it would have over `mqtts`. Programs that read
metrics give a user and a password with each request.
"""

from __future__ import annotations

from base64 import b64decode
from http import HTTPStatus
from typing import TYPE_CHECKING

from hedgerow.node.browsers import SET_HOST_NAMES, is_own_host
from hedgerow.node.handlers import Handler, Request, Response
from hedgerow.node.logins import Logins, TooManyError
from hedgerow.node.strangers import ELSEWHERE, takes_strangers
from hedgerow.rates import is_loopback

if TYPE_CHECKING:
    from hedgerow.node.config import Config
    from hedgerow.node.part import NodeContext

METRICS_FILTER = "$SYS/#"  # whoever may read this over MQTT may read metrics
CLIENT_ID = "metrics"  # as whom an ACL's `%c` sees those who read them
# What proxies put into a request, to say for whom they ask or that they are there.
FORWARDED = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")
FORWARDED_PREFIXES = ("x-forwarded", "x-original")


def certified_user(config: Config, request: Request) -> str | None:
    """The user that a client certificate proves."""
    is_identity = config.tls is not None and config.tls.names_users
    return request.certificate_name if is_identity and request.certificate_name else None


def may_be_nobody(config: Config, request: Request) -> bool:
    """May this request read what MQTT shows to clients without a name?"""
    address = request.address if is_near(request) else ELSEWHERE
    return takes_strangers(config, address) or (config.anonymous and request.has_certificate)


def is_near(request: Request) -> bool:
    """Does a program of this machine ask, and for itself?"""
    is_forwarded = any(name in FORWARDED or name.startswith(FORWARDED_PREFIXES) for name in request.headers)
    return is_loopback(request.address) and not is_forwarded


def for_readers(node: NodeContext, handler: Handler) -> Handler:
    """For this machine's programs, for whoever may read `$SYS/#` without a name, and for users who may."""

    def may_read(user: str | None) -> bool:
        return node.broker.access.may_read(user, CLIENT_ID, METRICS_FILTER)

    def is_let_in(request: Request) -> bool:
        if is_near(request):  # A name that is not ours may be that of a page, which leads here.
            return request.is_tls or is_own_host(node, request.headers.get("host", ""))
        return may_be_nobody(node.config, request) and may_read(None)

    async def handle(request: Request) -> Response:
        user, config = certified_user(node.config, request), node.config
        if not is_let_in(request) and not (user is not None and may_read(user)):
            try:
                user = await _basic_user(node, request)
            except TooManyError as error:
                wait = {"Retry-After": str(max(1, round(error.wait_s)))}
                return _refuse(HTTPStatus.TOO_MANY_REQUESTS, f"Too many wrong passwords: {error}.", wait)
            if user is None:
                ask = {"WWW-Authenticate": 'Basic realm="hedgerow", charset="UTF-8"'}
                return _refuse(HTTPStatus.UNAUTHORIZED, _WHO, ask if config.has_users else {})
            if not may_read(user):
                return _refuse(HTTPStatus.FORBIDDEN, f"This user may not read {METRICS_FILTER}.")
        answer = handler(request)
        return answer if isinstance(answer, Response) else await answer

    return handle


_WHO = (
    f"Metrics are for users who may read {METRICS_FILTER}: give a user and a password of access.passwords, "
    f"or ask from this machine, by one of its names ({SET_HOST_NAMES})."
)


async def _basic_user(node: NodeContext, request: Request) -> str | None:
    """The user whose password the Authorization header holds (RFC 7617). Raises TooManyError."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    logins = node.find(Logins)
    if logins is None or kind.lower() != "basic":
        return None
    try:
        user, colon, password = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    if not colon or not user or not await logins.verify(request.address, user, password.encode()):
        return None
    return user


def _refuse(status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> Response:
    return Response(f"{text}\n".encode(), status=status, headers=headers or {})
