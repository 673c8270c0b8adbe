"""A plan as it is published, retained, on `$hedgerow/plan/<broker>`.

It is JSON: `version` of this format, 1; `plan`, the version of the plan; `expires_at` in Unix time; `keep`,
the topics that the broker is to keep.

    {"version": 1, "plan": 7, "expires_at": 1767225600.0, "keep": ["farm/sector1/soil", "farm/sector1/wind"]}

Keys that are not known are passed over. `now` is Unix time, as a node's clock reads.
"""

from __future__ import annotations

import json
from math import isfinite

from hedgerow.errors import TopicError
from hedgerow.hot.plan import MAX_PLAN_TOPICS, HotPlan
from hedgerow.topics import validate_name

FORMAT = 1
MAX_PLAN_BYTES = 4 * 1024 * 1024  # It is read whole: tens of milliseconds in which the broker serves nobody.
MAX_PLAN_VERSION = 2**63 - 1


def encode_plan(plan: HotPlan, now: float) -> bytes:
    """Raises ValueError for a plan that nobody would follow."""
    document = {
        "version": FORMAT,
        "plan": plan.version,
        "expires_at": plan.expires_at,
        "keep": sorted(plan.keep),
    }
    payload = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    read = decode_plan(payload, now)
    if isinstance(read, str):
        raise ValueError(f"not a plan: {read}")
    return payload


def decode_plan(payload: bytes, now: float) -> HotPlan | str:
    """The plan, or why it is none."""
    if len(payload) > MAX_PLAN_BYTES:
        return f"{len(payload)} bytes, over {MAX_PLAN_BYTES}"
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):  # The second by thousands of brackets.
        return "it is not JSON"
    if not isinstance(document, dict):
        return "it is not a JSON object"
    if _read_integer(document.get("version")) != FORMAT:
        return f"the format's version is not {FORMAT}"
    version = _read_integer(document.get("plan"))
    if version is None or not 0 <= version <= MAX_PLAN_VERSION:
        return "plan is not a whole number of at most 63 bits"
    expires_at = _read_time(document.get("expires_at"))
    if expires_at is None:
        return "expires_at is not a time"
    if expires_at <= now:
        return "it has expired"
    keep = _read_topics(document.get("keep"))
    return keep if isinstance(keep, str) else HotPlan(keep, version, expires_at)


def _read_integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        time = float(value)
    except OverflowError:  # JSON has integers of any size.
        return None
    return time if isfinite(time) else None


def _read_topics(value: object) -> frozenset[str] | str:
    if not isinstance(value, list):
        return "keep is not a list"
    if len(value) > MAX_PLAN_TOPICS:
        return f"{len(value)} topics, over {MAX_PLAN_TOPICS}"
    for topic in value:
        if not isinstance(topic, str):
            return "keep has something that is not a string"
        try:
            validate_name(topic)
        except TopicError:
            return "keep has something that is not a topic name"
    return frozenset(value)
