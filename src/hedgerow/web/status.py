"""One status message, read: what a node says of itself, and of its meshes.

`read_status` and `read_meshes` raise ValueError for whatever is not as it should be, and nothing else: the
bytes come from other nodes. Unknown keys are ignored, missing ones have defaults. Lists are cut to what a
node may send.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from hedgerow.node.status_format import MAX_EVENTS, MAX_FILTERS, MAX_HOT, MAX_JOBS, MAX_LINKS, STATUS_VERSION

MAX_EVENT_TEXT = 300  # Events are kept when the status that told them is not.
MAX_WORD = 30
MAX_KEYS = 50  # of a table of figures
MAX_URLS = 20

_MAX_INT = 1 << 63


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One end of a link, as the node at that end sees it."""

    kind: str
    name: str
    to: str
    """The node id at the other end, or host:port where that is not known."""
    state: str
    round_trip_ms: float | None
    queued: int
    out_ledger: Mapping[str, int]
    in_ledger: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HotTopic:
    topic: str
    score: float
    served: str
    """"here", or the node that serves it."""


@dataclass(frozen=True, slots=True)
class StatusEvent:
    number: int
    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class BacklogStatus:
    """What waits for sessions of the node."""

    readers: int
    messages: int
    bytes: int
    limit: int | None
    oldest_at: float | None
    full_in_s: float | None
    """When the bound is reached, if all goes on as it does."""

    @property
    def share(self) -> float | None:
        return self.bytes / self.limit if self.limit else None


@dataclass(frozen=True, slots=True)
class Status:
    number: int
    at: float
    uptime_s: float
    software: str
    kind: str
    beside: str | None
    urls: tuple[str, ...]
    problem: str | None
    counts: Mapping[str, int]
    totals: Mapping[str, int]
    links: tuple[LinkStatus, ...]
    hot: tuple[HotTopic, ...] | None
    """None: this node does not count them."""
    events: tuple[StatusEvent, ...]
    """The newest, oldest first."""
    journal: Mapping[str, str] | None
    """Figures by name, as text."""
    pipeline: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By job: figures by name, as text."""
    backlog: BacklogStatus | None = None


@dataclass(frozen=True, slots=True)
class MeshPlace:
    """One node's place in the mesh of a filter."""

    core: str
    distance: int
    parents: tuple[str, ...]
    children: tuple[str, ...]
    is_member: bool
    is_local: bool


def read_status(payload: bytes) -> Status:
    told = _read(payload)
    hot = told.get("hot")
    journal = told.get("journal")
    events = sorted((_event(each) for each in _list(told, "events", MAX_EVENTS)), key=lambda e: e.number)
    return Status(
        number=_int(told, "number"),
        at=_float(told, "at"),
        uptime_s=_float(told, "uptime_s"),
        software=_str(told, "software"),
        kind=_str(told, "kind") or "node",
        beside=_str(told, "beside") or None,
        urls=_strings(told, "urls", MAX_URLS),
        problem=_str(told, "problem") or None,
        counts=_figures(told, "counts"),
        totals=_figures(told, "totals"),
        links=tuple([_link(each) for each in _list(told, "links", MAX_LINKS)]),
        hot=None if hot is None else tuple([_hot(each) for each in _list(told, "hot", MAX_HOT)]),
        events=tuple(events),
        journal=None if journal is None else _texts(told, "journal"),
        pipeline=_pipeline(told),
        backlog=None if told.get("backlog") is None else _backlog(_table(told, "backlog")),
    )


def read_meshes(payload: bytes) -> tuple[dict[str, MeshPlace], int]:
    """Meshes by filter, and how many more filters there are."""
    told = _read(payload)
    filters = _table(told, "filters")
    names = list(filters)[:MAX_FILTERS]
    return {name: _mesh(_as_table(filters[name])) for name in names}, _int(told, "more_filters")


def _read(payload: bytes) -> Mapping[str, object]:
    try:
        told = json.loads(payload, parse_constant=_nothing)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(told, dict) or told.get("version") != STATUS_VERSION:
        raise ValueError("no status of version 1")
    return told


def _nothing(constant: str) -> None:
    """For NaN and the infinities, which are no JSON: a client may have put them into a pipeline's figures."""


def _link(each: object) -> LinkStatus:
    told = _as_table(each)
    round_trip_ms = told.get("round_trip_ms")
    return LinkStatus(
        kind=_str(told, "kind"),
        name=_str(told, "name"),
        to=_str(told, "to"),
        state=_str(told, "state"),
        round_trip_ms=None if round_trip_ms is None else _float(told, "round_trip_ms"),
        queued=_int(told, "queued"),
        out_ledger=_figures(told, "out"),
        in_ledger=_figures(told, "in"),
    )


def _hot(each: object) -> HotTopic:
    if not isinstance(each, list) or len(each) < 3:
        raise ValueError("a hot topic is [topic, score, where]")
    topic, score, served = each[:3]
    if not isinstance(topic, str) or not isinstance(served, str):
        raise ValueError("a hot topic and where it is served are texts")
    return HotTopic(topic, _as_number(score), served)


def _event(each: object) -> StatusEvent:
    told = _as_table(each)
    kind, text = _str(told, "kind")[:MAX_WORD] or "other", _str(told, "text")[:MAX_EVENT_TEXT]
    return StatusEvent(_int(told, "number"), _float(told, "at"), kind, text)


def _mesh(told: Mapping[str, object]) -> MeshPlace:
    return MeshPlace(
        core=_str(told, "core"),
        distance=_int(told, "distance"),
        parents=_strings(told, "parents", MAX_LINKS),
        children=_strings(told, "children", MAX_LINKS),
        is_member=told.get("member") is True,
        is_local=told.get("local") is True,
    )


def _backlog(told: Mapping[str, object]) -> BacklogStatus:
    oldest_at, full_in_s = told.get("oldest_at"), told.get("full_in_s")
    return BacklogStatus(
        readers=_int(told, "readers"),
        messages=_int(told, "messages"),
        bytes=_int(told, "bytes"),
        limit=None if told.get("limit") is None else _int(told, "limit"),
        oldest_at=None if oldest_at is None else _as_number(oldest_at),
        full_in_s=None if full_in_s is None else _as_number(full_in_s),
    )


def _pipeline(told: Mapping[str, object]) -> Mapping[str, Mapping[str, str]]:
    if not told.get("pipeline"):
        return {}
    jobs = _table(told, "pipeline")
    return {name: _progress(jobs[name]) for name in list(jobs)[:MAX_JOBS]}


def _progress(told: object) -> Mapping[str, str]:
    """A client says it, not the node: whatever it is, it must not hide the node."""
    return _texts({"": told}, "") if isinstance(told, dict) else {"told": _shown(told)}


def _as_table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError("a table was expected")
    return value


def _table(told: Mapping[str, object], key: str) -> Mapping[str, object]:
    return _as_table(told.get(key, {}))


def _list(told: Mapping[str, object], key: str, most: int) -> list[object]:
    value = told.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"{key} is no list")
    return value[:most]


def _strings(told: Mapping[str, object], key: str, most: int) -> tuple[str, ...]:
    values = tuple(_list(told, key, most))
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"{key} is no list of texts")
    return values  # type: ignore[return-value]


def _str(told: Mapping[str, object], key: str) -> str:
    value = told.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value


def _as_number(value: object) -> float:
    # Nor is 1e308 one: a thousand of it is infinite, which no page can round. NaN is in no range.
    if (type(value) is int or type(value) is float) and -_MAX_INT < value < _MAX_INT:
        return value
    raise ValueError("a number was expected")


def _float(told: Mapping[str, object], key: str) -> float:
    return _as_number(told.get(key, 0))


def _int(told: Mapping[str, object], key: str) -> int:
    value = told.get(key, 0)
    if type(value) is not int or not -_MAX_INT < value < _MAX_INT:
        raise ValueError(f"{key} is no whole number")
    return value


def _figures(told: Mapping[str, object], key: str) -> Mapping[str, int]:
    table = told.get(key)
    if not table:
        return {}
    if not isinstance(table, dict) or len(table) > MAX_KEYS:
        raise ValueError(f"{key} is no table of figures")
    for value in table.values():
        if type(value) is not int or not -_MAX_INT < value < _MAX_INT:
            raise ValueError(f"{key} has something that is no whole number")
    return table


def _texts(told: Mapping[str, object], key: str) -> Mapping[str, str]:
    """Figures that are only shown: whatever they are, as text. What says nothing is left out."""
    table = _table(told, key)
    items = list(table.items())[:MAX_KEYS]
    return {name: _shown(value) for name, value in items if value is not None and value != ""}


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    if type(value) is float:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    try:
        return f"{value:,}" if type(value) is int else json.dumps(value)
    except RecursionError:  # Writing takes some levels more than reading did.
        return "nested too deeply"
