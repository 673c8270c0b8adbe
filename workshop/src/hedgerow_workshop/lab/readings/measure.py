"""Figures of scenes, and the rows that hold each way against MQTT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hedgerow_workshop.lab.harness.measure import count_lost, delays_ms
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.readings.record import ReadingsRecord
from hedgerow_workshop.lab.readings.scene import MQTT
from hedgerow_workshop.percentiles import percentile

Records = Mapping[tuple[str, str], ReadingsRecord]


def by_scene_and_way(records: Sequence[ReadingsRecord]) -> Records:
    return {(record.scene, record.way): record for record in records}


def ratio(record: ReadingsRecord | None, other: ReadingsRecord | None) -> float | None:
    """Of all that was on the wire, from before the first subscription until all had left."""
    return record.bytes / other.bytes if record and other and other.bytes else None


def cable_ratio(record: ReadingsRecord | None, other: ReadingsRecord | None) -> float | None:
    return record.carried_bytes / other.carried_bytes if record and other and other.carried_bytes else None


def delay(record: ReadingsRecord | None, percent: int) -> float | None:
    """ms, from the call that publishes to the subscriber's message."""
    found = sorted(delays_ms(record.hearings())) if record else []
    return percentile(found, percent) if found else None


def lost(records: Sequence[ReadingsRecord]) -> int | None:
    return sum(count_lost(record.hearings()) for record in records) if records else None


def strays(record: ReadingsRecord) -> int:
    """What came to a device that had not subscribed to it."""
    return sum(len(hearing.arrivals) for hearing in record.hearings() if not hearing.is_due)


def bytes_per_reading(record: ReadingsRecord | None) -> float | None:
    """While the scene lasted: without what starting and leaving cost."""
    return record.playing_bytes / record.readings if record and record.readings else None


def head_rows(records: Records, scene: str, way: str) -> Iterator[Row]:
    """What an experiment says first: of its main scene, and the way that is the document's own."""
    yield Row("bytes-ratio", "", ratio(records.get((scene, way)), records.get((scene, MQTT.name))))
    yield Row("delay/p50", "ms", delay(records.get((scene, way)), 50))
    own = [each for each in records.values() if each.way != MQTT.name and not each.loss_percent]
    yield Row("lost", "readings", lost(own))


def rows_of(records: Records, places: Sequence[tuple[str, str]]) -> Iterator[Row]:
    """Of every run, by its scene and way."""
    for scene, way in places:
        if way != MQTT.name:
            found, other = records.get((scene, way)), records.get((scene, MQTT.name))
            yield Row(f"bytes-ratio/{scene}/{way}", "", ratio(found, other))
            yield Row(f"bytes-ratio/{scene}/{way}/cables", "", cable_ratio(found, other))
    for scene, way in places:
        yield Row(f"bytes/{scene}/{way}", "bytes", _bytes(records.get((scene, way))))
        yield Row(f"bytes/{scene}/{way}/reading", "bytes", bytes_per_reading(records.get((scene, way))))
    for scene, way in places:
        record = records.get((scene, way))
        for percent in (50, 99):
            yield Row(f"delay/p{percent}/{scene}/{way}", "ms", delay(record, percent))
        yield Row(f"lost/{scene}/{way}", "readings", lost([record] if record else []))


def _bytes(record: ReadingsRecord | None) -> float | None:
    return record.bytes if record else None
