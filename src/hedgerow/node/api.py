"""What a part adds to the API: routes, each a line of one table that serves requests and writes the OpenAPI
page.
 A route is a method and a path, the right that it takes, what it is given and what it answers, as JSON
schemas. What comes in has been checked against them before the route's function is called. A function answers
with what becomes JSON, or raises `ApiError`. It runs on the event loop: one that has to wait is a coroutine,
and what is looked for in very many items is looked for in turns (`web/api/paging.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from hedgerow.errors import HedgerowError

Schema = Mapping[str, Any]
"""A JSON schema, of the words that `web/api/checking.py` knows."""

READ, PUBLISH, CLIENTS, BRIDGES, USERS, ADMIN = "read", "publish", "clients", "bridges", "users", "admin"

RIGHTS: Mapping[str, str] = {
    READ: "see nodes, clients, links and journals, and read the retained messages that its user may read",
    PUBLISH: "publish what its user may publish, and clear such retained messages",
    CLIENTS: "see all clients, disconnect them, and end their sessions",
    BRIDGES: "create and delete bridges",
    USERS: "see, add, change, disable and remove users",
    ADMIN: "all of these",
}
"""What a token may be given, and what that lets it do."""


class ApiError(HedgerowError):
    """Nothing was done; the text says why."""

    def __init__(self, status: HTTPStatus, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


@dataclass(slots=True, frozen=True)
class Caller:
    """Who asks."""

    name: str
    """For the log."""
    address: str
    user: str | None
    """As whom the ACL sees it."""
    rights: frozenset[str]
    may_read: Callable[[str], bool]
    may_write: Callable[[str], bool]
    sees_all_clients: bool
    """And not its own user's alone."""
    is_proven: bool = True

    def has(self, right: str) -> bool:
        return right in self.rights or ADMIN in self.rights


@dataclass(slots=True, frozen=True)
class Call:
    """One request, checked."""

    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any = None


Function = Callable[[Call], Any | Awaitable[Any]]


@dataclass(slots=True, frozen=True)
class Parameter:
    """Of a path or a query."""

    name: str
    schema: Schema
    text: str


@dataclass(slots=True, frozen=True)
class ApiRoute:
    method: str
    path: str
    """Below the API's root; what is in braces is a part of it: `/clients/{client_id}`."""
    right: str
    text: str
    """One sentence."""
    run: Function
    answer: Schema
    query: tuple[Parameter, ...] = ()
    body: Schema | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """What each part of the path in braces is."""
    status: HTTPStatus = HTTPStatus.OK

    @property
    def is_writing(self) -> bool:
        return self.method != "GET"


# Schemas


def _about(about: str) -> dict[str, Any]:
    return {"description": about} if about else {}


def text(about: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "string", **_about(about), **more}


def number(about: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "number", **_about(about), **more}


def whole(about: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "integer", **_about(about), **more}


def yes_no(about: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "boolean", **_about(about), **more}


def list_of(items: Schema, about: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **_about(about), **more}


def table_of(values: Schema, about: str = "") -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values, **_about(about)}


def either_none(schema: Schema) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


def record(fields: Mapping[str, Schema], optional: tuple[str, ...] = (), about: str = "") -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": dict(fields),
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
        **_about(about),
    }


def page_of(item: Schema) -> dict[str, Any]:
    """A part of a long list."""
    following = either_none(text("Give this as `after` for what follows; null: there is no more."))
    return record({"items": list_of(item), "next": following})


LINK = record(
    {
        "kind": text("bridge, neighbour, document, mobile or fixed."),
        "name": text(),
        "to": text("The node at the other end, or its address where that is not known."),
        "state": text("up, down, or what keeps it."),
        "round_trip_ms": either_none(number()),
        "queued": whole("Messages that wait for it."),
        "out": table_of(whole(), "What became of messages to there."),
        "in": table_of(whole(), "And from there."),
    }
)
"""As statuses tell of links (`status_format.describe_link`)."""

DONE = record({"done": text("What was done.")})
