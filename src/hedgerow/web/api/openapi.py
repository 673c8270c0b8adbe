"""The OpenAPI 3.1 page: the table of routes in other words, which says what is served and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from hedgerow.node.api import RIGHTS, ApiRoute, record, text, whole
from hedgerow.node.version import VERSION

ROOT = "/api/v1"
PROBLEM_TYPE = "application/problem+json"
JSON_TYPE = "application/json"

PROBLEM = record(
    {
        "type": text("about:blank: the status says what kind of problem it is (RFC 9457)."),
        "title": text("The status in words."),
        "status": whole(minimum=400, maximum=599),
        "detail": text("What is wrong, and what to do."),
    }
)
NAME_IN_PATH = text(minLength=1, maxLength=2_000)  # The head of a request has room for so much.
TOO_LONG = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE  # told before anyone knows what was asked for
# Which of these a route may answer: all of them, as far as they make sense for it.
ALWAYS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
WITH_BODY = (
    HTTPStatus.LENGTH_REQUIRED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
WRITING = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.INSUFFICIENT_STORAGE)


def openapi(node_id: str, routes: Iterable[ApiRoute]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Hedgerow node {node_id}", "version": VERSION, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": ROOT}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": PROBLEM},
            "responses": {"Problem": {"description": "Nothing was done.", "content": _problem()}},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made by `hedgerow token create`. Rights: "
                    + "; ".join(f"`{right}`: {what}" for right, what in RIGHTS.items()),
                },
                "password": {"type": "http", "scheme": "basic", "description": "A user of the node."},
            },
        },
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "description": about, "schema": NAME_IN_PATH}
        for name, about in route.names.items()
    ]
    parameters += [
        {"name": each.name, "in": "query", "description": each.text, "schema": dict(each.schema)}
        for each in route.query
    ]
    told: dict[str, Any] = {
        "operationId": operation_id(route),
        "tags": [route.path.split("/")[1]],
        "summary": route.text,
        "description": f"Needs the right `{route.right}`.",
        "security": [{"token": []}, {"password": []}, *([] if route.is_writing else [{}])],
        "responses": {
            str(int(route.status)): {
                "description": route.status.phrase,
                "content": {JSON_TYPE: {"schema": dict(route.answer)}},
            },
            str(int(TOO_LONG)): {"description": TOO_LONG.phrase, "content": {"text/plain": {}}},
            **{str(int(status)): {"$ref": "#/components/responses/Problem"} for status in statuses(route)},
        },
    }
    if parameters:
        told["parameters"] = parameters
    if route.body is not None:
        told["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": dict(route.body)}}}
    return told


def statuses(route: ApiRoute) -> list[HTTPStatus]:
    """Of what it may answer where nothing was done."""
    found = [*ALWAYS, *(WITH_BODY if route.body is not None else ()), *(WRITING if route.is_writing else ())]
    return sorted(found)


def operation_id(route: ApiRoute) -> str:
    words = [each.strip("{}") for each in route.path.strip("/").split("/")]
    return "_".join([route.method.lower(), *words])


def _problem() -> dict[str, Any]:
    return {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
