"""Long lists, a page at a time, in the order of their keys.

A page is looked for in all that there is, since what was there when the last one was read may be gone: the
smallest keys beyond the last one's are kept. The broker has no time for a hundred thousand of something, so a
search goes on for `SLICE_S` at a time and lets others have their turn in between.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from heapq import nsmallest
from http import HTTPStatus
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

from hedgerow.node.api import ApiError, Call, Parameter, text, whole
from hedgerow.web.scan import SLICE_S

AT_ONCE = 200  # items between two looks at the clock
MAX_PAGE = 1_000
DEFAULT_PAGE = 100
MAX_CURSOR = 12_000  # characters: the head of a request has room for no more

PAGE = (
    Parameter("limit", whole(minimum=1, maximum=MAX_PAGE, default=DEFAULT_PAGE), "So many at most."),
    Parameter("after", text(maxLength=MAX_CURSOR), "The `next` of the page before."),
)

Item = TypeVar("Item")
Key = tuple[str, ...]


async def page(
    call: Call, items: Iterable[Item], find: Callable[[Item], Iterable[tuple[Key, Any]]]
) -> dict[str, Any]:
    """`find` gives what an item has to show, each with its key; what it gives becomes JSON by being called,
    if
    it can be, once it is known to be shown."""
    limit, after = call.query.get("limit", DEFAULT_PAGE), _read_cursor(call.query.get("after"))
    best: list[tuple[Key, Any]] = []
    remaining = iter(items)
    ends_at = time.perf_counter() + SLICE_S
    while some := list(islice(remaining, AT_ONCE)):
        found = [each for item in some for each in find(item) if each[0] > after]
        if found:
            best = nsmallest(limit + 1, best + found, key=itemgetter(0))
        if time.perf_counter() >= ends_at:
            await asyncio.sleep(0)
            ends_at = time.perf_counter() + SLICE_S
    shown = best[:limit]
    following = _write_cursor(shown[-1][0]) if len(best) > limit else None
    return {"items": [each() if callable(each) else each for _, each in shown], "next": following}


def _write_cursor(key: Key) -> str:
    return urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _read_cursor(written: str | None) -> Key:
    if written is None:
        return ()
    try:
        key = json.loads(urlsafe_b64decode(written + "=" * (-len(written) % 4)))
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or not all(isinstance(each, str) for each in key):
        raise ApiError(HTTPStatus.BAD_REQUEST, "after is not the `next` of a page")
    return tuple(key)
