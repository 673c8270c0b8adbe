"""Whatever is lost, and whenever: a replay of a kept session misses nothing, and at QoS 2 repeats nothing.

The journal grows while the client's connection is lost, the store commits late, the disk is full, and the
broker crashes: before a batch is taken, while it is written, and between the commit and the acknowledgement.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.broker.limits import Limits, LogBounds
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Publish
from tests.broker.model_client import ModelClient
from tests.journal.replay.journalled import JournalledWorld

FILTER = "$replay/all/t/#"
QOS = (1, 2, 2)
VERSIONS = (MQTT_5, MQTT_3_1_1, MQTT_5)
LOG_BYTES = 100_000


@dataclass
class ReplayStory:
    world: JournalledWorld = field(
        default_factory=lambda: JournalledWorld(
            limits=Limits(in_flight=5), durable=True, log_bounds=LogBounds(LOG_BYTES)
        )
    )
    clients: list[ModelClient] = field(default_factory=list)
    recorded: list[tuple[int, bytes]] = field(default_factory=list)
    """QoS and payload of all that the clients are to get."""

    def __post_init__(self) -> None:
        self.world.commits = False
        self.record(1, 3)
        for number, version in enumerate(VERSIONS):
            client = ModelClient(self.world, f"client-{number}", version)
            self.clients.append(client)
            client.connect()
            client.process(1)
            client.subscribe(FILTER, QOS[number])

    def record(self, qos: int, count: int) -> None:
        payloads = [b"%d" % (len(self.recorded) + number) for number in range(count)]
        self.recorded += [(qos, payload) for payload in payloads]
        self.world.record((f"t/{count % 2}", payloads, qos), ("other", (b"no",), 1))

    def connect(self, client: int, receive_maximum: int) -> None:
        if self.clients[client].version == MQTT_5:
            self.clients[client].receive_maximum = receive_maximum
        self.clients[client].connect()
        self.clients[client].process(1)

    def lose(self, client: int) -> None:
        self.clients[client].lose()

    def process(self, client: int, count: int) -> None:
        self.clients[client].process(count)
        self.world.settle()

    def take(self) -> None:
        self.world.take_changes()

    def commit(self) -> None:
        self.world.commit()
        self.world.settle()

    def disk(self, has_room: bool) -> None:
        self.world.broker.set_disk_room(has_room)

    def crash(self, writes: bool) -> None:
        if writes:
            self.world.take_changes()
            self.world.write_taken()
        for client in self.clients:
            client.forget_connection()
        self.world.crash()

    def quiesce(self) -> None:
        self.world.commits = True
        self.disk(True)
        for client in self.clients:
            client.connect()
        self.record(1, 2)
        busy = True
        while busy:
            self.world.settle()
            busy = any(client.process() for client in self.clients)

    def check(self) -> None:
        for client, subscribed in zip(self.clients, QOS, strict=True):
            owed = [payload for qos, payload in self.recorded if qos]
            got = [publish for publish in client.delivered if publish.qos]
            assert {publish.payload for publish in got} == set(owed), client.client_id
            exact = [publish for publish in got if publish.qos == 2]
            assert len({publish.payload for publish in exact}) == len(exact), client.client_id
            if subscribed == 2:
                assert _in_order(exact)


def _in_order(publications: list[Publish]) -> bool:
    numbers = [int(publish.payload) for publish in publications]
    return numbers == sorted(numbers)


CLIENT = st.integers(0, len(VERSIONS) - 1)
STEPS = st.one_of(
    st.tuples(st.just("record"), st.integers(0, 2), st.integers(1, 12)),
    st.tuples(st.just("process"), CLIENT, st.integers(1, 12)),
    st.tuples(st.just("process"), CLIENT, st.integers(1, 12)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("take")),
    st.tuples(st.just("disk"), st.booleans()),
    st.tuples(st.just("lose"), CLIENT),
    st.tuples(st.just("connect"), CLIENT, st.integers(1, 8)),
    st.tuples(st.just("crash"), st.booleans()),
)
STORIES = st.lists(STEPS, min_size=30, max_size=120)


@settings(max_examples=60)
@given(STORIES)
def test_nothing_is_missing_and_nothing_comes_twice(steps: list[tuple[object, ...]]) -> None:
    tell(steps)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@settings(max_examples=3_000)
@given(STORIES)
def test_nothing_is_missing_and_nothing_comes_twice_in_many_stories(steps: list[tuple[object, ...]]) -> None:
    tell(steps)


def tell(steps: list[tuple[object, ...]]) -> None:
    story = ReplayStory()
    for name, *arguments in steps:
        getattr(story, str(name))(*arguments)
    story.quiesce()
    story.check()
