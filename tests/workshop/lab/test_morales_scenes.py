"""The scenes with brokers that move, and what delegation costs: with real brokers, and made small."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_5, Pingreq, Publish
from hedgerow_workshop.lab.conditions import Conditions, Flow
from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.morales import costs, lists, measure, scene
from hedgerow_workshop.lab.morales.domain import DomainRun
from hedgerow_workshop.lab.morales.handover import KINDS, OF_EACH, STAYING, HandoverRun, PlugInRun
from hedgerow_workshop.lab.morales.lists import TOPICS, TappedLink, list_bytes, measure_bytes
from hedgerow_workshop.lab.morales.record import SceneRecord
from hedgerow_workshop.lab.morales.scene import Scene
from hedgerow_workshop.lab.morales.second import SecondBrokerRun
from hedgerow_workshop.lab.morales.setting import DOMAIN


def _ignore(text: str) -> None:
    """Nobody reads what is being done."""


class Deaf(Scene[SceneRecord]):
    """Nobody is there but a publisher and a subscriber, of whom nothing more is known."""

    async def play(self) -> None:
        self.record.sent["soil"] = [1.0]
        self.record.arrived["panel"] = []
        await self.wait_until_heard()


async def test_who_is_not_heard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene, "HEARD_S", 0.05)
    with pytest.raises(LabError, match=r"^deaf: within 0.05 s panel did not hear soil$"):
        await Deaf(SceneRecord("deaf"), tmp_path, _ignore).perform()


async def test_clients_follow_a_topic_that_goes_cold_and_hot(tmp_path: Path) -> None:
    record = await HandoverRun(tmp_path, _ignore, rounds=1).perform()
    assert record.has_moved
    assert (list(measure.missing(record)), measure.doubled(record)) == ([], 0)
    assert [what for _, what in record.happened] == ["the field is cold", "the field is hot"]
    assert len(record.kinds) == OF_EACH * len(KINDS)
    for name, kind in record.kinds.items():
        assert len(record.connections[name]) == (1 if kind == STAYING else 3)
    assert measure.delivered(record) > 100


async def test_clients_are_told_of_a_mobile_broker_that_delegates_nothing(tmp_path: Path) -> None:
    record = await PlugInRun(tmp_path, _ignore, rounds=1).perform()
    assert record.has_moved
    kept = [name for name, kind in record.kinds.items() if kind != "extension"]
    assert not [who for who, _, _ in measure.missing(record) if who in kept]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_mobile_broker_moves_and_nobody_subscribes_again(tmp_path: Path, is_stored: bool) -> None:
    record = await DomainRun(tmp_path, _ignore, is_stored, domain=DOMAIN).perform()
    assert record.has_moved
    assert (list(measure.missing(record)), measure.doubled(record)) == ([], 0)
    assert len(record.connections["irrigation"]) == 1
    assert {name for name, _ in record.arrived.items()} == {"house", "barn", "irrigation", "pump"}


async def test_a_subscriber_that_goes_from_one_mobile_broker_to_another(tmp_path: Path) -> None:
    record = await SecondBrokerRun(tmp_path, _ignore).perform()
    assert list(measure.missing(record)) == []
    assert len(record.happened) == 3
    assert len(record.connections["sprayer"]) >= 4


async def test_processor_time_with_delegation_and_without(tmp_path: Path) -> None:
    saving = await costs.measure_processor(tmp_path, 3.0)
    assert saving.is_delegated
    assert 0 < saving.on < saving.off
    assert saving.ratio == saving.on / saving.off


async def test_memory_with_delegation_and_without(tmp_path: Path) -> None:
    memory = await costs.measure_memory(tmp_path, topics=2_000, subscribers=4, each=1_000)
    for before, after in memory:
        assert 10 < before < after < 200
    assert memory.ratio == memory.on.grown / memory.off.grown


async def test_bytes_of_delegations(tmp_path: Path) -> None:
    found = await measure_bytes(tmp_path, 3)
    assert (found.subscribers, found.topics) == (3, len(TOPICS))
    names = [f"soil-sensor-{number:04}" for number in range(3)]
    assert found.listed == sum(list_bytes(topic, names, "mobile-lists-3") for topic in TOPICS)
    # Each topic has to be named, and its subscribers in some way.
    assert sum(map(len, TOPICS)) < found.sent < 10 * found.listed
    assert found.ratio == found.sent / found.listed


def test_what_delegates() -> None:
    own = f"{DOMAIN}/m"
    assert all(lists.delegates(f"{own}/{action}", "m") for action in ("delegate", "delegate/list", "recover"))
    others = (f"{own}/event", f"{own}/serving/subscription", f"{DOMAIN}/m2/delegate", TOPICS[0], "farm")
    assert not any(lists.delegates(topic, "m") for topic in others)


def test_a_full_list_is_the_documents() -> None:
    topic, action = b"field/x", f"{DOMAIN}/m/delegate"
    publication = encode(Publish(action, topic + b'{a@m"b@m}'), MQTT_5)
    # This one is short: its fixed header has two bytes, and that of a thousand subscribers four.
    assert list_bytes(topic.decode(), ["a", "b"], "m") == len(publication) + lists.PUBLICATION_BYTES - 5


@pytest.mark.parametrize("step", [1, 7, 1_000])
async def test_what_passes_forward_is_counted_by_topic(step: int) -> None:
    packets = [
        encode(Publish("a", b"x" * 200, 1, packet_id=1), MQTT_5),
        encode(Pingreq(), MQTT_5),
        encode(Publish("b/c", b"y"), MQTT_5),
        encode(Publish("a", b"z"), MQTT_5),
    ]
    data = b"".join(packets)
    async with TappedLink(("127.0.0.1", 0), ("127.0.0.1", 9), forward=Conditions()) as link:
        flow, other = (each for each in link.open_flows(lambda data: True, lambda data: True))
        for start in range(0, len(data), step):
            link.enter(link.forward, flow, data[start : start + step])
            link.enter(link.backward, other, data[start : start + step])
    assert isinstance(flow, Flow)
    assert link.published == {"a": len(packets[0]) + len(packets[3]), "b/c": len(packets[2])}
