"""Who asks the API, and what they may do: by a token, a password, a certificate, or as nobody.
 A token has the rights that it was given, and publishes and reads as its user. A user of the node, who proves
it as everywhere (`node.logins`, with the same lines and the same waits), may read and publish; an
administrator may do everything. Who proves nothing reads what the dashboard shows to such a peer, and changes
nothing.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from hedgerow.node.api import ADMIN, CLIENTS, PUBLISH, READ, ApiError, Caller
from hedgerow.node.http_access import certified_user, may_be_nobody
from hedgerow.node.logins import Logins, TooManyError
from hedgerow.node.verdicts import looks_like_token
from hedgerow.node.web_tokens import claimed_user

if TYPE_CHECKING:
    from hedgerow.node.handlers import Request
    from hedgerow.node.part import NodeContext
    from hedgerow.web.api.tokens import ApiToken, Tokens

CLIENT_ID = "api"  # as whom an ACL's `%c` sees those who use it
NAMES_USER = frozenset({READ, PUBLISH})

WHO = {"WWW-Authenticate": 'Bearer realm="hedgerow", Basic realm="hedgerow", charset="UTF-8"'}
MISSING = (
    "give a token (Authorization: Bearer TOKEN, made by hedgerow token create), or a user and a password "
    "of this node"
)


def token_in(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def find_token(node: NodeContext, tokens: Tokens, request: Request) -> ApiToken | None:
    """The token that the request shows, if it holds and its user is still one."""
    shown = token_in(request)
    found = None if shown is None else tokens.find(shown, node.clock())
    if found is None or found.user is None or node.passwords is None:
        return found
    if found.user in node.passwords.disabled:
        return None
    if node.config.has_other_users:  # It may be one whom no file names.
        return found
    return found if found.user in node.passwords else None


async def find_caller(node: NodeContext, tokens: Tokens, request: Request) -> Caller:
    """Raises ApiError."""
    shown = token_in(request)
    if shown is not None and node.config.jwt is not None and looks_like_token(shown.encode()):
        claimed = claimed_user(shown, node.config.jwt.user_claim) or ""
        return _user_caller(node, request, await _verify(node, request, claimed, shown))
    if shown is not None:
        token = find_token(node, tokens, request)
        if token is None:
            raise unknown("this token is not known here, has ended, or its user is gone")
        return _caller(node, request, f"token {token.name}", token.user, token.rights)
    user = certified_user(node.config, request)
    if "authorization" in request.headers:
        user = await _password_user(node, request)
    if user is not None:
        return _user_caller(node, request, user)
    if not node.config.has_users and may_be_nobody(node.config, request):
        return replace(_caller(node, request, "nobody", None, frozenset({READ})), is_proven=False)
    raise unknown(MISSING)


def _user_caller(node: NodeContext, request: Request, user: str) -> Caller:
    rights = frozenset({ADMIN}) if user in node.config.administrators else NAMES_USER
    return _caller(node, request, repr(user), user, rights)


def _caller(
    node: NodeContext, request: Request, name: str, user: str | None, rights: frozenset[str]
) -> Caller:
    access = node.broker.access
    is_open = user is None and not node.config.has_users
    return Caller(
        name,
        request.address,
        user,
        rights,
        may_read=lambda topic: access.may_read(user, CLIENT_ID, topic),
        may_write=lambda topic: access.may_write(user, CLIENT_ID, topic),
        sees_all_clients=bool(rights & {ADMIN, CLIENTS}) or is_open,
    )


async def _password_user(node: NodeContext, request: Request) -> str:
    """The user whose password the Authorization header holds (RFC 7617)."""
    kind, _, text = request.headers["authorization"].partition(" ")
    try:
        user, colon, password = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        user = colon = password = ""
    if kind.lower() != "basic" or not colon:
        raise unknown(MISSING)
    return await _verify(node, request, user, password)


async def _verify(node: NodeContext, request: Request, user: str, password: str) -> str:
    logins = node.find(Logins)
    if logins is None or not user:
        raise unknown(MISSING)
    try:
        accepted = await logins.verify(request.address, user, password.encode())
    except TooManyError as error:
        wait = {"Retry-After": str(max(1, round(error.wait_s)))}
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, f"too many wrong passwords: {error}", wait) from None
    if not accepted:
        raise unknown("wrong user or password")
    return user


def unknown(reason: str) -> ApiError:
    return ApiError(HTTPStatus.UNAUTHORIZED, reason, WHO)
