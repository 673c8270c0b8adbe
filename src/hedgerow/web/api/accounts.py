"""Users and tokens, at the API: their files are changed as the commands change them, and are in force at
once.
 Whoever may change users could let themselves in as an administrator: those of `access.administrators` are
changed by whoever has the right `admin` alone, and so are tokens, which may have any right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hedgerow.node.api import (
    ADMIN,
    DONE,
    RIGHTS,
    USERS,
    ApiError,
    ApiRoute,
    Call,
    either_none,
    list_of,
    number,
    page_of,
    record,
    text,
    whole,
    yes_no,
)
from hedgerow.node.logins import Logins
from hedgerow.node.passwords import NoSuchUserError, delete_user, list_users, set_enabled, set_password
from hedgerow.web.api.paging import PAGE, page
from hedgerow.web.api.tokens import MAX_LIFE_S, NAME_PATTERN, ApiToken, Tokens, create_token, remove_token
from hedgerow.web.config import ApiConfig

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

Answer = TypeVar("Answer")

MAX_USER_NAME = 1_024  # characters, as at the dashboard
MAX_PASSWORD = 4_096

NAME = text("The user's name.", minLength=1, maxLength=MAX_USER_NAME)
PASSWORD = text(minLength=1, maxLength=MAX_PASSWORD, format="password")
USER = record({"name": text(), "is_enabled": yes_no(), "is_administrator": yes_no()})
TOKEN_FIELDS = {
    "name": text(pattern=NAME_PATTERN),
    "rights": list_of(text(enum=list(RIGHTS)), minItems=1, maxItems=len(RIGHTS)),
    "user": either_none(text("As whom the ACL sees it.", minLength=1, maxLength=MAX_USER_NAME)),
}
TOKEN = record({**TOKEN_FIELDS, "ends_at": either_none(number("In seconds since 1970; null: never."))})
NEW_TOKEN = record(
    {**TOKEN_FIELDS, "lasts_s": whole("Without it, the token has no end.", minimum=1, maximum=MAX_LIFE_S)},
    optional=("user", "lasts_s"),
)
MADE_TOKEN = record({"token": text("It is shown this once.")})


def account_routes(
    node: NodeContext, tokens: Callable[[], Tokens], read_tokens: Callable[[], None]
) -> Sequence[ApiRoute]:
    """`tokens`: those in force; `read_tokens` is called when their file has changed."""
    named = {"name": "The name."}
    return (
        ApiRoute(
            "GET", "/users", USERS, "The users of this node.", partial(list_all, node), page_of(USER), PAGE,
        ),
        ApiRoute(
            "POST", "/users", USERS, "Add a user.", partial(add_user, node), DONE,
            body=record({"name": NAME, "password": PASSWORD}), status=HTTPStatus.CREATED,
        ),
        ApiRoute(
            "PATCH", "/users/{name}", USERS, "Change a user's password, disable or enable the user.",
            partial(change_user, node), DONE, names=named,
            body=record(
                {"password": PASSWORD, "is_enabled": yes_no()}, optional=("password", "is_enabled")
            ),
        ),
        ApiRoute(
            "DELETE", "/users/{name}", USERS, "Remove a user.", partial(remove_user, node), DONE,
            names=named,
        ),
        ApiRoute(
            "GET", "/tokens", ADMIN, "Tokens, but not what they are.", partial(list_tokens, tokens),
            page_of(TOKEN), PAGE,
        ),
        ApiRoute(
            "POST", "/tokens", ADMIN, "Make a token.", partial(make_token, node, read_tokens), MADE_TOKEN,
            body=NEW_TOKEN, status=HTTPStatus.CREATED,
        ),
        ApiRoute(
            "DELETE", "/tokens/{name}", ADMIN, "Remove a token, which lets nobody in from then on.",
            partial(drop_token, node, tokens, read_tokens), DONE, names=named,
        ),
    )  # fmt: skip


# Users


async def list_all(node: NodeContext, call: Call) -> Any:
    path, administrators = _password_file(node), node.config.administrators

    def describe(name: str, is_enabled: bool) -> dict[str, Any]:
        return {"name": name, "is_enabled": is_enabled, "is_administrator": name in administrators}

    users = await _away_from_loop(partial(list_users, path))
    return await page(call, users, lambda user: [((user.name,), partial(describe, *user))])


async def add_user(node: NodeContext, call: Call) -> Any:
    name = call.body["name"]
    path, password = _changing(node, call, name), call.body["password"].encode()
    known = await _away_from_loop(partial(list_users, path))
    if any(user.name == name for user in known):
        raise ApiError(HTTPStatus.CONFLICT, f"there is a user {name}")
    await _change(node, partial(set_password, path, name, password, must_be=False))
    return {"done": f"added {name}"}


async def change_user(node: NodeContext, call: Call) -> Any:
    name = call.path["name"]
    path = _changing(node, call, name)
    if "password" in call.body:
        password = call.body["password"].encode()
        await _change(node, partial(set_password, path, name, password, must_be=True))
    if "is_enabled" in call.body:
        await _change(node, partial(set_enabled, path, name, call.body["is_enabled"]))
    return {"done": f"changed {name}"}


async def remove_user(node: NodeContext, call: Call) -> Any:
    name = call.path["name"]
    await _change(node, partial(delete_user, _changing(node, call, name), name))
    return {"done": f"removed {name}"}


def _changing(node: NodeContext, call: Call, name: str) -> Path:
    if name in node.config.administrators and not call.caller.has(ADMIN):
        raise ApiError(HTTPStatus.FORBIDDEN, f"{name} is an administrator: that takes the right {ADMIN}")
    return _password_file(node)


def _password_file(node: NodeContext) -> Path:
    path = node.config.passwords
    if path is None:
        raise ApiError(HTTPStatus.CONFLICT, "this node has no file of users: set access.passwords")
    return path


async def _change(node: NodeContext, change: Callable[[], object]) -> None:
    """The file, away from the loop: hashing and writing are slow. Then it is in force."""
    try:
        await _away_from_loop(change)
    except NoSuchUserError as error:
        raise ApiError(HTTPStatus.NOT_FOUND, str(error)) from None
    logins = node.find(Logins)
    if logins is not None:
        logins.read_again()


async def _away_from_loop(work: Callable[[], Answer]) -> Answer:
    return await asyncio.get_running_loop().run_in_executor(None, work)


# Tokens


async def list_tokens(tokens: Callable[[], Tokens], call: Call) -> Any:
    return await page(
        call, tokens().by_name(), lambda token: [((token.name,), partial(_describe_token, token))]
    )


def _describe_token(token: ApiToken) -> dict[str, Any]:
    return {
        "name": token.name,
        "rights": sorted(token.rights),
        "user": token.user,
        "ends_at": token.ends_at,
    }


async def make_token(node: NodeContext, read_tokens: Callable[[], None], call: Call) -> Any:
    body, path = call.body, _token_file(node)
    make = partial(create_token, path, body["name"], body["rights"], body.get("user"), body.get("lasts_s"))
    token = await _away_from_loop(make)
    read_tokens()
    return {"token": token}


async def drop_token(
    node: NodeContext, tokens: Callable[[], Tokens], read_tokens: Callable[[], None], call: Call
) -> Any:
    name, path = call.path["name"], _token_file(node)
    if all(token.name != name for token in tokens().by_name()):
        raise ApiError(HTTPStatus.NOT_FOUND, f"there is no token {name}")
    await _away_from_loop(partial(remove_token, path, name))
    read_tokens()
    return {"done": f"removed {name}"}


def _token_file(node: NodeContext) -> Path:
    path = node.config.of(ApiConfig).tokens
    if path is None:
        raise ApiError(HTTPStatus.CONFLICT, "this node has no file of tokens: set api.tokens")
    return path
