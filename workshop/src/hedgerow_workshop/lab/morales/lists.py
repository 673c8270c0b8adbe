"""What a delegation takes on the link, beside what full lists of its subscribers would take.

So many clients subscribe to each of 50 topics at a mobile broker. Each topic has an event, and is delegated.
What counts are the bytes of all publications of the process plane that the mobile broker then sends. A full
list is the document's, `{first"second}`, in a publication for each topic, with the topic's name.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hedgerow.mobility.delegation import addresses
from hedgerow_workshop.lab.conditions import Data, Direction, Flow
from hedgerow_workshop.lab.harness.wire import packets
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.morales.pair import Pair
from hedgerow_workshop.lab.morales.record import Bytes
from hedgerow_workshop.lab.morales.setting import DOMAIN

TOPICS = tuple(f"field/sensor{number:02}/state" for number in range(50))
SUBSCRIBERS = (10, 100, 1_000)
"""Of each topic."""
EVENT_RATE = 50.0
WINDOW_S = 4.0
PUBLICATION_BYTES = 7
"""Of a PUBLISH beside topic and payload: its fixed header, the topic's length, and that of no properties."""
_PUBLISH = 3
_OTHERS = ("event", "hello", "acknowledge", "nothing", "serving")
"""Actions that delegate nothing: events, and what the stream and moving clients need."""


class TappedLink(Link):
    """It counts the bytes of publications that go forward, by their topics."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.published: Counter[str] = Counter()
        self._unread: dict[Flow, bytes] = {}

    def enter(self, direction: Direction, flow: Flow, data: Data) -> None:
        if direction is self.forward and isinstance(data, bytes):
            self._unread[flow] = self._count(self._unread.get(flow, b"") + data)
        super().enter(direction, flow, data)

    def _count(self, data: bytes) -> bytes:
        """What is left: the beginning of a packet."""
        used = 0
        for first, start, end in packets(data):
            if first >> 4 == _PUBLISH:
                topic_at = start + 2
                topic = data[topic_at : topic_at + int.from_bytes(data[start:topic_at], "big")]
                self.published[topic.decode()] += end - used
            used = end
        return data[used:]


async def measure_bytes(directory: Path, subscribers: int) -> Bytes:
    pair = Pair(
        f"lists-{subscribers}", directory, WINDOW_S, ("--hot-share", "0", "--no-move-clients"), TappedLink
    )
    async with pair:
        bus = await pair.watch()
        names = [f"soil-sensor-{number:04}" for number in range(subscribers)]
        await pair.subscribe(dict.fromkeys(names, TOPICS))
        await pair.wait_until_calm()
        link, mobile = pair.station.uplink, pair.station.mobile.broker
        assert isinstance(link, TappedLink)
        link.published.clear()
        await pair.publish_once(bus, TOPICS, EVENT_RATE)
        await pair.wait_until_delegated(len(TOPICS))
        found = sum(count for topic, count in link.published.items() if delegates(topic, mobile))
    listed = sum(list_bytes(topic, names, mobile) for topic in TOPICS)
    return Bytes(subscribers, len(TOPICS), found, listed)


def delegates(topic: str, broker: str) -> bool:
    """Is this a topic on which the mobile broker says what it delegates?"""
    own = f"{DOMAIN}/{broker}/"
    return topic.startswith(own) and topic.removeprefix(own).partition("/")[0] not in _OTHERS


def list_bytes(topic: str, client_ids: list[str], broker: str) -> int:
    """Of the publication that delegates this topic with the list of its subscribers."""
    callbacks = [addresses.of_client(each, broker) for each in client_ids]
    header = PUBLICATION_BYTES + len(f"{DOMAIN}/{broker}/delegate")
    return header + len(topic.encode()) + len(addresses.encode_list(callbacks).encode())
