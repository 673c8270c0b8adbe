"""What a side has to remember over a restart, as text: a snapshot, and the way back.

With the pages of its `DuplicateLog` it is all that exactly-once rests on. A snapshot that is stored together
with what was accepted and delivered, before any publication leaves, makes a crash look like a cut link.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from hedgerow.fabric.delegation import codec
from hedgerow.fabric.delegation.codec import ACTIONS, Event, Header, Kind
from hedgerow.fabric.delegation.fixed import FixedSide
from hedgerow.fabric.delegation.guests import Announcement
from hedgerow.fabric.delegation.mobile import MobileSide
from hedgerow.fabric.delegation.registries import Entry, Registry
from hedgerow.fabric.delegation.stream import Record, Stream
from hedgerow.fabric.delegation.topics_held import Mobile
from hedgerow.fabric.delegation.uplink import Unsettled, Uplink

VERSION = 1
_STREAM = (
    "epoch",
    "link",
    "peer_epoch",
    "peer_link",
    "received",
    "number",
    "waiting_bytes",
    "receipts_before",
)
_UPLINK = ("down_at", "is_lost", "introduced", "deactivated", "farewell")


def save_mobile(side: MobileSide) -> str:
    return json.dumps(
        {
            "version": VERSION,
            "epoch": side.epoch,
            "published": side.notifier.published,
            "registries": [
                [
                    registry.topic_filter,
                    registry.is_delegated,
                    registry.delegations,
                    [[callback, *entry] for callback, entry in registry.entries.items()],
                ]
                for registry in side.registries
            ],
            "uplinks": [_save_uplink(uplink, side) for uplink in side.uplinks.values()],
            "current": side.current.fixed_id if side.current else None,
            "away": {callback: uplink.fixed_id for callback, uplink in side.notifier.away.items()},
            "last_token": side.guests.last_token,
            "announced": [
                [callback, found.token, found.uplink.fixed_id, found.number]
                for callback, found in side.guests.announced.items()
            ],
        }
    )


def restore_mobile(side: MobileSide, text: str, now: float) -> None:
    """Into a new one, with its `DuplicateLog` restored. All links are down."""
    saved = _load(text)
    side.epoch, side.notifier.published = saved["epoch"], saved["published"]
    for topic_filter, is_delegated, delegations, entries in saved["registries"]:
        found = {callback: Entry(qos, since) for callback, qos, since in entries}
        side.registries.put(Registry(topic_filter, found, is_delegated, delegations))
    for uplink in saved["uplinks"]:
        side.uplinks[uplink["fixed_id"]] = _restore_uplink(uplink, side, now)
    side.current = side.uplinks.get(saved["current"])
    side.notifier.away = {callback: side.uplinks[fixed_id] for callback, fixed_id in saved["away"].items()}
    side.guests.last_token = saved["last_token"]
    for callback, token, fixed_id, number in saved["announced"]:
        side.guests.restore(callback, Announcement(token, side.uplinks[fixed_id], number))


def save_fixed(side: FixedSide) -> str:
    mobiles = [
        {
            "broker_id": mobile.broker_id,
            "stream": _save_stream(mobile.stream),
            "topics": mobile.topics,
            "gone_at": mobile.gone_at,
            "is_lost": mobile.is_lost,
            "has_left": mobile.has_left,
        }
        for mobile in side.mobiles.values()
    ]
    return json.dumps(
        {
            "version": VERSION,
            "epoch": side.epoch,
            "spent_receipts": side.spent_receipts,
            "mobiles": mobiles,
            "attached": sorted(side.attached),
            "expected": list(side.attached.expected.values()),
        }
    )


def restore_fixed(side: FixedSide, text: str, now: float) -> None:
    """Into a new one, with its `DuplicateLog` restored. All links are down.

    What clients had not got is still to be settled, by who has stored it for them.
    """
    saved = _load(text)
    side.epoch, side.spent_receipts = saved["epoch"], saved["spent_receipts"]
    for callback in saved["attached"]:
        side.attached.add(callback)
    for callback in saved["expected"]:
        side.attached.expect(callback)
    for each in saved["mobiles"]:
        stream = Stream(side.domain, side.broker_id, 1, side.stats)
        _restore_stream(stream, each["stream"])
        gone_at = now if each["gone_at"] is None else each["gone_at"]
        mobile = Mobile(
            each["broker_id"], stream, gone_at=gone_at, is_lost=each["is_lost"], has_left=each["has_left"]
        )
        side.restore_mobile(mobile, each["topics"])


def _load(text: str) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(text)
    if saved["version"] != VERSION:
        raise ValueError(f"version {saved['version']} of a snapshot")
    return saved


def _save_uplink(uplink: Uplink, side: MobileSide) -> dict[str, Any]:
    return {
        "fixed_id": uplink.fixed_id,
        "stream": _save_stream(uplink.stream),
        "outside": [name for name in side.registries.by_filter if uplink.outside.get(name, name) is not None],
        "delegated": dict(uplink.delegated.match_filter("#")),
        "unsettled": [[record.number, published] for record, published in uplink.unsettled.values()],
        "ever_served": sorted(uplink.ever_served),
        "reclaimed": sorted(uplink.reclaimed),
        **{name: getattr(uplink, name) for name in _UPLINK},
    }


def _restore_uplink(saved: dict[str, Any], side: MobileSide, now: float) -> Uplink:
    uplink = side.new_uplink(saved["fixed_id"], 1)
    _restore_stream(uplink.stream, saved["stream"])
    for name in saved["outside"]:
        uplink.outside.set(name, name, side.registries.by_filter[name])
    for name, entries in saved["delegated"].items():
        uplink.delegated.set(name, name, entries)
    records = {record.number: record for record in uplink.stream.kept}
    for record in records.values():
        if record.kind == Kind.EVENT and record.event.is_handed_on:
            assert record.event.message.id is not None
            for callback, _ in record.event.callbacks:
                uplink.handed_on[record.event.message.id, callback] = record
    for number, published in saved["unsettled"]:
        message_id = records[number].event.message.id
        assert message_id is not None
        uplink.unsettled[message_id] = Unsettled(records[number], published)
    uplink.ever_served.update(saved["ever_served"])
    uplink.reclaimed.update((message_id, callback) for message_id, callback in saved["reclaimed"])
    for name in _UPLINK:
        setattr(uplink, name, saved[name])
    if uplink.down_at is None:
        uplink.down_at = now
    return uplink


def _save_stream(stream: Stream) -> dict[str, Any]:
    saved = {name: getattr(stream, name) for name in _STREAM}
    return {
        **saved,
        "held": len(stream.held),
        "holding": list(stream.holding.items()),
        "records": [_save_record(record) for record in stream.kept],
    }


def _save_record(record: Record) -> list[Any]:
    header = Header(0, 0, 0, record.number, record.acknowledged, record.settled)
    payload = codec.encode(record.kind, header, record.body)
    expires_at = record.body.message.expires_at if isinstance(record.body, Event) else None
    return [b64encode(payload).decode(), record.size, record.is_sent, sorted(record.done), expires_at]


def _restore_stream(stream: Stream, saved: dict[str, Any]) -> None:
    for name in _STREAM:
        setattr(stream, name, saved[name])
    for text, size, is_sent, done, expires_at in saved["records"]:
        payload = b64decode(text)
        kind, header, body = codec.decode(ACTIONS[Kind(payload[1])], payload)
        if isinstance(body, Event):
            body.message.expires_at = expires_at
        numbers = header.number, header.acknowledged, header.settled
        record = Record(*numbers, kind, body, size, is_sent, frozenset(done))
        (stream.held if len(stream.held) < saved["held"] else stream.records).append(record)
    stream.holding = dict(saved["holding"])
