"""What a broker tells another of the messages that it has: those of the last seconds (`recent.py`).

Two brokers that are joined send each other what has just flowed, since a way may have been lost. Nearly all
of it is on the other side already: after ten seconds of 100 messages a second, 1,000 messages would go both
ways before the first one that is new, and be dropped as duplicates. So one tells which ids it has, when the
link is made and both have proved the fabric key, and the other leaves those out.

`hedgerow-recent` in CONNACK, one for each origin and epoch: `BITS EPOCH/FIRST/ORIGIN`. BITS is
base64; bit n (of byte n // 8, the lowest bit first) says that the message FIRST + n is here.

The one that is dialled tells, in CONNACK: it knows then that the other has the key. Whoever dials does not
yet know that of whoever will answer. What is not stored yet is not told, since a crash would lose what the
other left out, nor are retained messages, which go by their age.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable

from hedgerow.broker.recent import Recent
from hedgerow.message import MAX_NUMBER, MessageId, Properties
from hedgerow.mqtt.ids import RECENT_PROPERTY, may_bear

MAX_LIVES = 16  # origins and their epochs; a CONNECT of megabytes would be nobody's gain
MAX_SPAN = 16_384  # numbers of each: 2 KiB
MAX_TOTAL_BYTES = 4_096  # of bits, in all
SETTLED_S = 0.5  # Until then what came may be on its way to whoever has to have it.

Pairs = tuple[tuple[str, str], ...]


class Told:
    """The ids that the far end has."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits: dict[tuple[str, int], tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._bits)

    def __contains__(self, message_id: MessageId | None) -> bool:
        if message_id is None:
            return False
        first, bits = self._bits.get(message_id[:2], (0, b""))
        offset = message_id.sequence - first
        return 0 <= offset < 8 * len(bits) and bool(bits[offset >> 3] >> (offset & 7) & 1)

    def add(self, origin: str, epoch: int, first: int, bits: bytes) -> None:
        self._bits[origin, epoch] = first, bits


NOTHING_TOLD = Told()


def tell_recent(recent: Recent, now: float, stored_until: float) -> Pairs:
    """The user properties, as many as there is room for: of what came before it was all stored."""
    pairs: list[tuple[str, str]] = []
    room = MAX_TOTAL_BYTES
    for (origin, epoch), sequences in _recent_ids(recent, now, stored_until).items():
        last = max(sequences)
        kept = [each for each in sequences if each > last - MAX_SPAN]
        first = min(kept)
        bits = bytearray((last - first) // 8 + 1)
        if len(pairs) >= MAX_LIVES or len(bits) > room:
            continue
        room -= len(bits)
        for each in kept:
            bits[each - first >> 3] |= 1 << (each - first & 7)
        pairs.append((RECENT_PROPERTY, f"{b64encode(bits).decode()} {epoch}/{first}/{origin}"))
    return tuple(pairs)


def _recent_ids(recent: Recent, now: float, stored_until: float) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for at, messages in recent.runs(now):
        for message in messages if at + SETTLED_S <= now and at < stored_until else ():
            if message.id is not None and not message.retain:
                found.setdefault(message.id[:2], []).append(message.id.sequence)
    return found


def read_told(properties: Properties) -> Told:
    """What cannot be read says nothing."""
    told = Told()
    said: Iterable[tuple[str, str]] = properties.get("user_property", ())
    for name, value in said:
        if name == RECENT_PROPERTY and len(told) < MAX_LIVES:
            _read(told, value)
    return told


def _read(told: Told, value: str) -> None:
    text, _, rest = value.partition(" ")
    epoch, _, rest = rest.partition("/")
    first, _, origin = rest.partition("/")
    try:
        bits = b64decode(text, validate=True)
        numbers = int(epoch), int(first)
    except (binascii.Error, ValueError):
        return
    if len(bits) <= MAX_SPAN // 8 and all(0 <= each <= MAX_NUMBER for each in numbers) and may_bear(origin):
        told.add(origin, *numbers, bits)
