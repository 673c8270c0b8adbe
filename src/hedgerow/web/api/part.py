"""The API on a node's HTTP port: one table of the routes of all parts, and the steps that each request goes
through.
 A request names a route, its sender is found (`callers.py`), the route's right is asked for, then what it
brings is checked against the route's schemas, and only then does the route's function see it. A body is not
even read from whoever may not have that much read: before a password is verified, `STRANGERS_BODY_BYTES`. One
answer is looked for at a time, and after each the node has as long for its other work (`web/turns.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from hedgerow.errors import ConfigError, printable
from hedgerow.node.api import ADMIN, ApiError, ApiRoute, Call, Caller
from hedgerow.node.browsers import is_of_browser, objection_to_request
from hedgerow.node.handlers import Request, Response, Tree
from hedgerow.node.part import NodeContext, Part
from hedgerow.web.api.accounts import account_routes
from hedgerow.web.api.callers import MISSING, find_caller, find_token, unknown
from hedgerow.web.api.checking import check
from hedgerow.web.api.openapi import JSON_TYPE, PROBLEM_TYPE, ROOT, openapi
from hedgerow.web.api.routes import node_routes
from hedgerow.web.api.tokens import Tokens
from hedgerow.web.config import ApiConfig
from hedgerow.web.fabric_watch import StatusWatch
from hedgerow.web.sessions import DashboardRefused
from hedgerow.web.turns import TooManyPagesError, Turns

if TYPE_CHECKING:
    from hedgerow.node.config import Config

logger = logging.getLogger(__name__)

STRANGERS_BODY_BYTES = 64 * 1024
MAX_BODY_BYTES = 1024 * 1024
MAX_QUERY_FIELDS = 20
MAX_LOGGED = 200  # characters
PAGE_PATH = "/openapi.json"  # for everyone: it says what there is, and nothing of this node but its name


class ApiPart(Part):
    def __init__(self, node: NodeContext) -> None:
        """Raises ConfigError for a file of tokens that is wrong."""
        super().__init__(node)
        self.tokens = _load_tokens(node.config)
        self.watch = StatusWatch(node, "api")
        self.turns = Turns()
        self.table: list[ApiRoute] = []

    async def start(self) -> None:
        self.table = sorted(
            (route for part in self.node.parts for route in part.api()),
            key=lambda route: (route.path, route.method),
        )

    def trees(self) -> Mapping[str, Tree]:
        return {f"{ROOT}/": Tree(self._handle, self._max_body_bytes)}

    def api(self) -> Sequence[ApiRoute]:
        accounts = account_routes(self.node, lambda: self.tokens, self.read_tokens)
        return (*node_routes(self.node, self.watch.look), *accounts)

    def reload(self, config: Config) -> Callable[[], None]:
        return partial(setattr, self, "tokens", _load_tokens(config))

    def read_tokens(self) -> None:
        """Their file has changed. Raises ConfigError."""
        self.tokens = _load_tokens(self.node.config)

    def page(self) -> dict[str, Any]:
        return openapi(self.node.node_id, self.table)

    def _max_body_bytes(self, request: Request) -> int:
        known = find_token(self.node, self.tokens, request) is not None
        return MAX_BODY_BYTES if known else STRANGERS_BODY_BYTES

    async def _handle(self, request: Request) -> Response:
        objection = objection_to_request(self.node, request) if is_of_browser(request) else None
        if objection is not None:
            return _problem(*objection)
        path = request.path.removeprefix(ROOT)
        if path == PAGE_PATH:
            if request.method not in ("GET", "HEAD"):
                return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "it is to be read", {"Allow": "GET, HEAD"})
            return _json(HTTPStatus.OK, self.page())
        try:
            route, names = _find_route(
                self.table, "GET" if request.method == "HEAD" else request.method, path
            )
            caller = await find_caller(self.node, self.tokens, request)
            self._check_right(route, caller)
            call = Call(caller, names, _read_query(route, request.raw_query), _read_body(route, request))
            if not route.is_writing:
                async with self.turns.turn(request.address):
                    return _json(route.status, await _run(route, call))
            done = await _run(route, call)
            logger.info("api, %s from %s: %s %s", caller.name, caller.address, route.method, _short(path))
            return _json(route.status, done)
        except ApiError as error:
            return _problem(error.status, str(error), error.headers)
        except ConfigError as error:
            return _problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except TooManyPagesError:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "too much is asked for: try again later")

    def _check_right(self, route: ApiRoute, caller: Caller) -> None:
        if caller.has(route.right):
            return
        reason = f"{caller.name} has not the right {route.right}, nor {ADMIN}"
        if route.is_writing:
            refused = DashboardRefused(caller.address, f"api, {route.method} {route.path}: {reason}")
            self.node.event_log.write(refused, self.node.clock())
        if not caller.is_proven:
            raise unknown(MISSING)
        raise ApiError(HTTPStatus.FORBIDDEN, reason)


def _load_tokens(config: Config) -> Tokens:
    path = config.of(ApiConfig).tokens
    return Tokens() if path is None else Tokens.load(path)


async def _run(route: ApiRoute, call: Call) -> Any:
    found = route.run(call)
    return await found if isawaitable(found) else found


def _find_route(table: Iterable[ApiRoute], method: str, path: str) -> tuple[ApiRoute, dict[str, str]]:
    levels = path.split("/")
    matching = [
        (route, names) for route in table if (names := _match(route.path.split("/"), levels)) is not None
    ]
    for route, names in matching:
        if route.method == method:
            return route, names
    if matching:
        allowed = sorted({route.method for route, _ in matching})
        raise ApiError(HTTPStatus.METHOD_NOT_ALLOWED, "not so", {"Allow": ", ".join(allowed)})
    raise ApiError(HTTPStatus.NOT_FOUND, f"there is no such path; {ROOT}{PAGE_PATH} has those that there are")


def _match(pattern: list[str], levels: list[str]) -> dict[str, str] | None:
    """What stands in the place of the names in braces; None: it is another path."""
    if len(pattern) != len(levels):
        return None
    names: dict[str, str] = {}
    for wanted, level in zip(pattern, levels, strict=True):
        if wanted.startswith("{"):
            try:
                names[wanted.strip("{}")] = unquote(level, errors="strict")
            except UnicodeDecodeError:
                raise ApiError(HTTPStatus.BAD_REQUEST, "the path is not UTF-8") from None
            if not level:
                return None
        elif wanted != level:
            return None
    return names


def _read_query(route: ApiRoute, text: str) -> dict[str, Any]:
    known = {each.name: each.schema for each in route.query}
    try:
        given = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS, errors="strict")
    except ValueError:
        raise ApiError(HTTPStatus.BAD_REQUEST, "the query is not NAME=VALUE&… in UTF-8") from None
    found: dict[str, Any] = {}
    for name, value in given:
        if name not in known or name in found:
            why = "is given twice" if name in found else "is not known here"
            raise ApiError(HTTPStatus.BAD_REQUEST, f"{_short(name)} {why}")
        found[name] = _typed(value, known[name]["type"])
        if (wrong := check(found[name], known[name], name)) is not None:
            raise ApiError(HTTPStatus.BAD_REQUEST, wrong)
    return found


def _typed(value: str, kind: str) -> object:
    """As text says it; what is not of the kind stays a text, and is refused as one."""
    if kind == "integer" and value.removeprefix("-").isascii() and value.removeprefix("-").isdecimal():
        return int(value) if len(value) < 20 else value
    return {"true": True, "false": False}.get(value, value) if kind == "boolean" else value


def _read_body(route: ApiRoute, request: Request) -> Any:
    if route.body is None:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body is to be {JSON_TYPE}")
    try:
        body = json.loads(request.body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ApiError(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None
    if (wrong := check(body, route.body, "the body")) is not None:
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, wrong)
    return body


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _short(text: str) -> str:
    return printable(text[:MAX_LOGGED])


def _json(status: HTTPStatus, body: object) -> Response:
    return Response(json.dumps(body).encode() + b"\n", JSON_TYPE, status)


def _problem(status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    body = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    return Response(json.dumps(body).encode() + b"\n", PROBLEM_TYPE, status, headers or {})
