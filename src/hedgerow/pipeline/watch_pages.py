"""Many sensors, kept in pages: a page is read and written whole, so it holds a few sensors only.

A page remembers of each sensor when it was heard of, and when its silence would stand out, beside what
`SensorWatch` keeps: to find who is overdue, no sensor has to be read. Sensors that were not heard of for
`forget_s` are left out, and where names are too many for a page, those that were heard of longest ago.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from hedgerow.pipeline.watch import Anomalies, Anomaly, SensorWatch, WatchSettings
from hedgerow.pipeline.watch_rules import WatchRule, settings_for

PAGES = 1_024
MAX_IN_PAGE = 32
"""Names are a publisher's to invent: so many sensors of a page are kept."""
FORGET_S = 30 * 86_400.0
NEVER = 2**62
_HEAD = struct.Struct("<qqHHHH")  # due_at, heard_at; bytes of sensor, field, unit and watch


class SensorKey(NamedTuple):
    sensor: str
    field: str

    @property
    def page(self) -> int:
        return crc32(f"{self.sensor}\0{self.field}".encode()) % PAGES


class _Kept:
    """A sensor of a page; its watch is read when it is wanted."""

    __slots__ = ("data", "due_at", "heard_at", "unit", "watch")

    def __init__(self, unit: str, due_at: int, heard_at: int, data: bytes) -> None:
        self.unit = unit
        self.due_at = due_at
        self.heard_at = heard_at
        self.data = data
        self.watch: SensorWatch | None = None


class WatchPage:
    def __init__(self, rules: tuple[WatchRule, ...], data: bytes = b"") -> None:
        self._rules = rules
        self._sensors: dict[SensorKey, _Kept] = {}
        at = 0
        while at < len(data):
            due_at, heard_at, *lengths = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            parts = []
            for length in lengths:
                parts.append(data[at : at + length])
                at += length
            sensor, field, unit = (part.decode() for part in parts[:3])
            self._sensors[SensorKey(sensor, field)] = _Kept(unit, due_at, heard_at, parts[3])

    def pack(self, now: int, forget_s: float = FORGET_S) -> bytes:
        parts: list[bytes] = []
        since = now - round(forget_s * 1e6)
        kept = [(key, each) for key, each in self._sensors.items() if each.heard_at > since]
        kept.sort(key=lambda pair: pair[1].heard_at, reverse=True)
        for key, each in kept[:MAX_IN_PAGE]:
            data = each.data if each.watch is None else each.watch.pack()
            texts = [text.encode() for text in (*key, each.unit)]
            lengths = [len(part) for part in (*texts, data)]
            parts += [_HEAD.pack(each.due_at, each.heard_at, *lengths), *texts, data]
        return b"".join(parts)

    @property
    def due_at(self) -> int:
        """When the first of its sensors is overdue."""
        return min((each.due_at for each in self._sensors.values()), default=NEVER)

    def newest_at(self, key: SensorKey) -> int | None:
        """The time of its newest reading; None: it is not known yet."""
        kept = self._sensors.get(key)
        return None if kept is None else self._watch(key, kept).last_at

    def take(self, key: SensorKey, unit: str, readings: list[tuple[int, float]], heard_at: int) -> Anomalies:
        """Readings of one sensor in the order of time, all heard of at once."""
        kept = self._sensors.get(key)
        if kept is None:
            kept = self._sensors[key] = _Kept(unit, NEVER, heard_at, b"")
        watch = self._watch(key, kept)
        if kept.unit != unit:
            kept.unit, watch.settings = unit, self._settings(key, unit)
        found: Anomalies = ()
        for at, value in readings:
            found += watch.take(at, value, heard_at)
        kept.heard_at, kept.due_at = heard_at, _due_at(watch)
        return found

    def overdue(self, now: int) -> Iterator[tuple[SensorKey, str, Anomaly]]:
        for key, kept in self._sensors.items():
            if kept.due_at < now:
                watch = self._watch(key, kept)
                for found in watch.overdue(now):
                    yield key, kept.unit, found
                kept.due_at = _due_at(watch)

    def _watch(self, key: SensorKey, kept: _Kept) -> SensorWatch:
        if kept.watch is None:
            settings = self._settings(key, kept.unit)
            kept.watch = SensorWatch.unpack(kept.data, settings) if kept.data else SensorWatch(settings)
        return kept.watch

    def _settings(self, key: SensorKey, unit: str) -> WatchSettings:
        return settings_for(self._rules, key.sensor, key.field, unit)


def _due_at(watch: SensorWatch) -> int:
    due_at = watch.overdue_at()
    return NEVER if due_at is None else due_at
