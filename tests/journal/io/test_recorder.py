"""A recorder beside a server that answers as told, a node and Mosquitto: rows, acknowledgements, repeats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

import hedgerow
from hedgerow.client.urls import parse_url
from hedgerow.errors import ConfigError, ConnectError, RefusedError, StoreError
from hedgerow.journal.config import JournalConfig
from hedgerow.journal.io import recorder as recorder_module
from hedgerow.journal.io.recorder import Recorder, RecorderOptions
from hedgerow.log.frame import Group
from hedgerow.message import MessageId
from hedgerow.mqtt.dropped_there import DROPPED_TOPIC
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    Connack,
    Connect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from tests.client.scripted import ScriptedServer, polite, scripted
from tests.conftest import StartMosquitto
from tests.journal.plain import read_plain
from tests.node.peers import port_of, running
from tests.waiting import until


def asked_of(server: ScriptedServer) -> list[str]:
    """What was subscribed to, but for what the broker says of itself."""
    packets = [cast(Subscribe, packet) for packet in server.of(Subscribe)]
    filters = [each.topic_filter for packet in packets for each in packet.subscriptions]
    return [each for each in filters if each != DROPPED_TOPIC]


@asynccontextmanager
async def recording(url: str, directory: Path, *filters: str, **options: Any) -> AsyncIterator[Recorder]:
    """A recorder that records; at the end it is stopped in order."""
    journal = JournalConfig(topics=filters or ("#",), directory=directory)
    recorder = Recorder(
        RecorderOptions(parse_url(url), journal, first_delay_s=0.01, max_delay_s=0.05, **options)
    )
    task = asyncio.ensure_future(recorder.run())
    try:
        await until(lambda: recorder.is_recording or task.done(), "the recorder to record")
        if task.done():
            task.result()
        yield recorder
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def payloads(directory: Path) -> list[bytes]:
    return [row.payload for row in read_plain(directory)]


def remembering(keep: bool = True) -> Callable[[Packet], list[Packet]]:
    """A polite server that has the session of its second client, and of those after it."""
    connects = 0

    def answer(packet: Packet) -> list[Packet]:
        nonlocal connects
        if isinstance(packet, Connect):
            connects += 1
            return [Connack(session_present=keep and connects > 1)]
        return [] if isinstance(packet, Publish) else polite(packet)

    return answer


async def test_rows_say_what_came_and_from_where(tmp_path: Path) -> None:
    async with scripted() as server:
        async with recording(server.url, tmp_path, "a/#", name="rec", broker_name="barn"):
            server.send(
                Publish("a/1", b"x", qos=1, packet_id=1),
                Publish(
                    "a/2", b"y", qos=2, packet_id=2, retain=True,
                    properties={
                        "content_type": "t",
                        "user_property": (("hedgerow-id", "press/3/4"), ("k", "v"),
                                          ("hedgerow-time", "1700000000.25")),
                    },
                ),
                Publish("a/3", b"z"),
            )  # fmt: skip
            await server.until_received(Puback)
            await server.until_received(Pubrec)
            await until(lambda: len(payloads(tmp_path)) == 3, "three rows")
        connect, subscribe = server.of(Connect)[0], server.of(Subscribe)[0]
        assert isinstance(connect, Connect)
        assert not connect.clean_start
        assert connect.client_id.startswith("recorder-")
        assert connect.properties["session_expiry_interval"] == 0xFFFFFFFF
        assert connect.properties["receive_maximum"] == recorder_module.RECEIVE_MAXIMUM
        assert connect.properties["user_property"] == (("hedgerow-node", "rec"),)
        wanted = cast(Subscribe, subscribe).subscriptions[0]
        assert (wanted.topic_filter, wanted.qos) == ("a/#", 2)
        assert (wanted.retain_as_published, wanted.retain_handling) == (True, 1)
    first, second, third = read_plain(tmp_path)
    assert first.id is not None
    assert third.id is not None
    assert (first.id.origin, first.id.sequence) == ("rec", 1)
    assert (third.id.epoch, third.id.sequence) == (first.id.epoch, 2)
    assert second.id == MessageId("press", 3, 4)
    assert [row.topic for row in (first, second, third)] == ["a/1", "a/2", "a/3"]
    assert {(row.broker, row.transport, row.client) for row in (first, second, third)} == {
        ("barn", "mqtt", None)
    }
    assert [row.flags for row in (first, second, third)] == [1, 2 | 4, 0]
    assert second.properties is not None
    assert json.loads(second.properties) == {"content_type": "t", "user_property": [["k", "v"]]}
    assert second.published_at == 1_700_000_000_250_000
    assert first.properties is None


class Disk:
    """Full, until it is told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        encode = Group.encode

        def refuse(group: Group, marker: bytes) -> Any:
            if self.is_full:
                raise OSError(28, "No space left on device")
            return encode(group, marker)

        monkeypatch.setattr(Group, "encode", refuse)


async def test_nothing_is_acknowledged_before_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with scripted() as server, recording(server.url, tmp_path) as recorder:
        server.send(Publish("a", b"x", qos=1, packet_id=1), Publish("a", b"y", qos=2, packet_id=2))
        await until(lambda: recorder.writer.failure is not None, "the disk to refuse")
        assert not server.of(Puback)
        assert not server.of(Pubrec)
        disk.is_full = False
        await server.until_received(Pubrec)
        await server.until_received(Puback)
        assert payloads(tmp_path) == [b"x", b"y"]


async def test_a_full_buffer_stops_reading_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with scripted() as server, recording(server.url, tmp_path, buffer_bytes=4_000) as recorder:
        sent, read = 0, 0
        while not read or recorder.behind > read:  # until it reads no more, whatever is sent
            read = recorder.behind
            server.send(
                *(
                    Publish("a", b"%03d" % each * 30, qos=1, packet_id=each + 1)
                    for each in range(sent, sent + 20)
                )
            )
            sent += 20
            await asyncio.sleep(0.1)
        assert read < sent
        disk.is_full = False
        await server.until_received(Puback, sent)
    assert payloads(tmp_path) == [b"%03d" % number * 30 for number in range(sent)]


async def test_a_broker_that_sends_more_than_it_may_is_put_up_with(tmp_path: Path) -> None:
    async with scripted() as server, recording(server.url, tmp_path, receive_maximum=4):
        server.send(*(Publish("a", b"%d" % number, 2, packet_id=number) for number in range(1, 11)))
        await server.until_received(Pubrec, 10)
        assert server.connections == 1
    assert len(payloads(tmp_path)) == 10


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [None, MQTT_3_1_1])
async def test_what_comes_again_in_the_next_life_is_not_written_again(
    tmp_path: Path, qos: int, version: int | None
) -> None:
    """Written, and the broker has not heard of it: known again by packet identifier and content."""
    async with scripted(remembering()) as server:
        server.version = version or server.version
        answered = Puback if qos == 1 else Pubrec
        async with recording(server.url, tmp_path, version=version):
            server.send(*(Publish("a", b"%d" % number, qos, packet_id=number) for number in (1, 2, 3)))
            await server.until_received(answered, 3)
        server.received.clear()
        async with recording(server.url, tmp_path, version=version) as recorder:
            again = [Publish("a", b"%d" % number, qos, dup=True, packet_id=number) for number in (2, 3)]
            # Never got there; of another content; a new message under an identifier that is free again.
            new = [
                Publish("a", b"4", qos, dup=True, packet_id=4),
                Publish("a", b"other", qos, dup=True, packet_id=1),
                Publish("a", b"5", qos, packet_id=5),
            ]
            server.send(*again, *new)
            await server.until_received(answered, 5)
            assert recorder.repeated == 2
            if qos == 2:
                server.send(Pubrel(77))  # of a message that was written and acknowledged before the kill
                await server.until_received(Pubcomp)
        assert not asked_of(server)  # The session has its subscriptions.
    assert payloads(tmp_path) == [b"1", b"2", b"3", b"4", b"other", b"5"]


async def test_an_identifier_of_another_session_means_another_message(tmp_path: Path) -> None:
    async with scripted(remembering(keep=False)) as server:
        for _ in range(2):
            async with recording(server.url, tmp_path):
                server.send(Publish("a", b"x", 1, dup=True, packet_id=1))
                await server.until_received(Puback)
            server.received.clear()
    assert payloads(tmp_path) == [b"x", b"x"]


async def test_messages_with_ids_are_known_by_them_alone(tmp_path: Path) -> None:
    async with scripted(remembering()) as server:
        properties: hedgerow.Properties = {"user_property": (("hedgerow-id", "press/1/1"),)}
        async with recording(server.url, tmp_path):
            server.send(Publish("a", b"x", 1, packet_id=1, properties=properties))
            await server.until_received(Puback)
        server.received.clear()
        async with recording(server.url, tmp_path) as recorder:
            server.send(Publish("a", b"x", 1, packet_id=9, properties=properties))
            server.send(Publish("a", b"x", 1, dup=True, packet_id=1))
            await server.until_received(Puback, 2)
            assert recorder.writer.duplicates == 1
    assert payloads(tmp_path) == [b"x", b"x"]


async def test_other_filters_than_before(tmp_path: Path) -> None:
    async with scripted(remembering()) as server:
        async with recording(server.url, tmp_path, "a", "b"):
            pass
        server.received.clear()
        async with recording(server.url, tmp_path, "b", "c"):
            await server.until_received(Unsubscribe)
        (left,) = server.of(Unsubscribe)
        assert cast(Unsubscribe, left).topic_filters == ["a"]
        assert asked_of(server) == ["c"]
        server.received.clear()
        async with recording(server.url, tmp_path, "b", "c"):
            assert not asked_of(server)


async def test_a_lost_link_is_made_again_and_a_lost_session_subscribed_again(tmp_path: Path) -> None:
    async with scripted() as server, recording(server.url, tmp_path):
        server.send(Publish("a", b"1", 1, packet_id=1))
        await server.until_received(Puback)
        assert server.writer is not None
        server.writer.transport.abort()
        await until(lambda: asked_of(server) == ["#", "#"], "the subscription")
        server.send(Publish("a", b"2", 1, packet_id=1))
        await server.until_received(Puback, 2)
        assert payloads(tmp_path) == [b"1", b"2"]


async def test_with_a_broker_that_refuses_mqtt_5_it_speaks_3_1_1(tmp_path: Path) -> None:
    def answer(packet: Packet) -> list[Packet]:
        if isinstance(packet, Connect) and packet.protocol_version != MQTT_3_1_1:
            server.version = MQTT_3_1_1
            return [Connack(reason_code=Reason.UNSUPPORTED_PROTOCOL_VERSION)]
        return polite(packet)

    async with scripted(answer) as server, recording(server.url, tmp_path):
        assert [cast(Connect, packet).protocol_version for packet in server.of(Connect)] == [5, 4]
        server.send(Publish("a", b"x", 2, packet_id=1))
        await server.until_received(Pubrec)
        assert payloads(tmp_path) == [b"x"]


# What is refused.


async def test_a_refused_subscription_is_an_error(tmp_path: Path) -> None:
    def answer(packet: Packet) -> list[Packet]:
        if isinstance(packet, Subscribe):
            return [Suback(packet.packet_id, [Reason.NOT_AUTHORIZED])]
        return polite(packet)

    async with scripted(answer) as server:
        with pytest.raises(RefusedError, match=r"refused a/#"):
            async with recording(server.url, tmp_path, "a/#"):
                pass


async def test_a_wrong_password_is_an_error(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text("")
    port = mosquitto("allow_anonymous false", f"password_file {tmp_path / 'passwords'}")
    with pytest.raises(ConnectError, match="refused the connection"):
        async with recording(f"mqtt://127.0.0.1:{port}", tmp_path / "journal", username="x", password=b"y"):
            pass


async def test_one_journal_has_one_recorder(tmp_path: Path) -> None:
    async with scripted() as server, recording(server.url, tmp_path):
        with pytest.raises(StoreError, match="another process"):
            async with recording(server.url, tmp_path):
                pass


async def test_what_cannot_be_meant(tmp_path: Path) -> None:
    address = parse_url("mqtt://127.0.0.1:1")
    with pytest.raises(ConfigError, match="filter"):
        Recorder(RecorderOptions(address, JournalConfig(directory=tmp_path)))
    with pytest.raises(ConfigError, match="printable"):
        Recorder(RecorderOptions(address, JournalConfig(("#",), tmp_path), name="a\n"))


# Beside real brokers.


async def test_at_a_node_all_rows_have_ids_of_those_who_gave_them(tmp_path: Path) -> None:
    async with running() as server:
        url = f"mqtt://127.0.0.1:{port_of(server)}"
        async with recording(url, tmp_path, "farm/#"):
            async with (
                hedgerow.connect(url) as plain,
                hedgerow.connect(url, origin="press", epoch=1) as press,
            ):
                for qos in (0, 1, 2):
                    await plain.publish("farm/plain", str(qos), qos=qos)
                    await press.publish("farm/press", str(qos), qos=qos)
                    await press.publish("barn", "not asked for", qos=qos)
            await until(lambda: len(read_plain(tmp_path)) == 6, "six rows")
        rows = read_plain(tmp_path)
        node = server.broker.node_id
        assert {row.broker for row in rows} == {node}
        assert [row.id for row in rows if row.topic == "farm/press"] == [
            MessageId("~press", 1, 1), MessageId("~press", 1, 3), MessageId("~press", 1, 5),
        ]  # fmt: skip
        assert {row.id.origin for row in rows if row.id and row.topic == "farm/plain"} == {node}
        assert len({row.id for row in rows}) == 6
        assert {row.properties for row in rows} == {None}


async def test_while_it_is_away_mosquitto_keeps_what_comes(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto('max_queued_messages 0')}"
    async with hedgerow.connect(url) as bus:
        await bus.publish("kept", "value", qos=1, retain=True)
        for life in range(3):
            async with recording(url, tmp_path) as recorder:
                assert recorder.writer.broker == url.removeprefix("mqtt://")
                await bus.publish("a", f"{life} there", qos=1)
                await until(lambda life=life: recorder.writer.durable_position == 2 * life + 2, "its rows")  # type: ignore[misc]
            await bus.publish("a", f"{life} away", qos=2)
    assert payloads(tmp_path) == [b"value", b"0 there", b"0 away", b"1 there", b"1 away", b"2 there"]


@pytest.mark.parametrize("version", [None, MQTT_3_1_1])
async def test_filters_that_overlap_at_mosquitto(
    mosquitto: StartMosquitto, tmp_path: Path, version: int | None
) -> None:
    """In MQTT 5 it sends a copy for each."""
    url = f"mqtt://127.0.0.1:{mosquitto()}"
    async with hedgerow.connect(url) as bus, recording(url, tmp_path, "a/#", "+/b", "c", version=version):
        for topic in ("a/b", "a/c", "c", "d/b"):
            await bus.publish(topic, topic, qos=1)
        await bus.publish("c", "end", qos=1)
        await until(lambda: b"end" in payloads(tmp_path), "the last row")
    assert payloads(tmp_path) == [b"a/b", b"a/c", b"c", b"d/b", b"end"]


async def test_a_filter_that_overlaps_with_one_of_the_life_before(tmp_path: Path) -> None:
    """A node sends one copy for both, with the identifiers that there are."""
    async with running() as server:
        url = f"mqtt://127.0.0.1:{port_of(server)}"
        async with recording(url, tmp_path, "a/#"):
            pass
        async with hedgerow.connect(url) as bus, recording(url, tmp_path, "a/#", "#"):
            await bus.publish("a/b", "both", qos=1)
            await bus.publish("c", "one", qos=1)
            await until(lambda: b"one" in payloads(tmp_path), "the last row")
    assert payloads(tmp_path) == [b"both", b"one"]
