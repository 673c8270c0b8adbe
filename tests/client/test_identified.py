"""Buses that give ids: at our nodes, at brokers that know nothing of them, and over lost links."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, cast

import pytest

import hedgerow
from hedgerow.client.transport import State
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import Connack, Connect, Packet, Publish, Pubrec, Subscribe
from hedgerow.mqtt.reasons import Reason
from tests.client.scripted import cable_to, polite, scripted
from tests.conftest import StartMosquitto
from tests.waiting import take, until

QUICKLY: dict[str, Any] = {"reconnect_delay": (0.01, 0.05)}


def ids_of(packet: Packet) -> list[str]:
    assert isinstance(packet, Publish)
    pairs = packet.properties.get("user_property", ())
    return [value for name, value in pairs if name == "hedgerow-id"]


# What is sent.


async def test_connect_names_the_origin_and_each_publication_has_its_id() -> None:
    async with scripted() as server:
        async with hedgerow.connect(server.url, origin="press", epoch=7) as bus:
            await bus.publish("a", "1", qos=1)
            await bus.publish("a", "2", qos=1)  # now the topic is known
            await bus.publish("a", "3", properties={"user_property": (("hedgerow-id", "x/1/1"), ("k", "v"))})
            await bus.publish("a", "4", qos=2, id=MessageId("query", 3, 9))
            await bus.publish("a" * 200, "5", qos=1)
            await bus.publish("a" * 200, "6", qos=1)
            await bus.send(message := Message("a", b"7", 1))
            await bus.send(message)
            assert bus.origin == "press"
            assert message.id is None  # it is the caller's
        connect = server.of(Connect)[0]
        assert isinstance(connect, Connect)
        assert connect.properties["user_property"] == (("hedgerow-node", "press"),)
        published = cast(list[Publish], server.of(Publish))
        assert [packet.payload for packet in published] == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"7"]
        assert [ids_of(packet)[0] for packet in published] == [
            "press/7/1", "press/7/2", "press/7/3", "query/3/9", "press/7/4", "press/7/5", "press/7/6",
            "press/7/7",
        ]  # fmt: skip
        assert published[2].properties["user_property"][1:] == (("hedgerow-id", "x/1/1"), ("k", "v"))


async def test_ids_and_topic_aliases_go_together() -> None:
    def answer(packet: Packet) -> list[Packet]:
        return (
            [Connack(properties={"topic_alias_maximum": 2})]
            if isinstance(packet, Connect)
            else polite(packet)
        )

    async with scripted(answer) as server:
        async with hedgerow.connect(server.url, origin="press", epoch=1) as bus:
            for number in range(4):
                await bus.publish("topic/with/a/name", str(number), qos=1)
        published = cast(list[Publish], server.of(Publish))
        assert [packet.topic for packet in published] == ["topic/with/a/name"] * 2 + [""] * 2
        assert [packet.properties.get("topic_alias") for packet in published] == [None, 1, 1, 1]
        assert [ids_of(packet) for packet in published] == [[f"press/1/{number}"] for number in (1, 2, 3, 4)]


async def test_the_id_counts_towards_the_servers_largest_packet() -> None:
    def answer(packet: Packet) -> list[Packet]:
        return (
            [Connack(properties={"maximum_packet_size": 60})]
            if isinstance(packet, Connect)
            else polite(packet)
        )

    async with scripted(answer) as server, hedgerow.connect(server.url, origin="press", epoch=1) as bus:
        await bus.publish("a", b"x" * 20, qos=1)
        with pytest.raises(hedgerow.RefusedError) as refusal:
            await bus.publish("a", b"x" * 30, qos=1)
        assert refusal.value.reason_code == Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_message_keeps_its_id_when_the_server_lost_the_session(qos: int) -> None:
    """Also a QoS 2 message that the server had taken: whoever has it drops the other by its id."""

    def answer(packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Publish) and server.connections == 1:
            return [] if qos == 1 else [Pubrec(packet.packet_id)]
        if not isinstance(packet, Connect | Publish) and server.connections == 1:
            return None  # PUBREL
        return polite(packet)

    async with (
        scripted(answer) as server,
        hedgerow.connect(server.url, origin="press", epoch=1, **QUICKLY) as bus,
    ):
        publishing = asyncio.ensure_future(bus.publish("a", "x", qos=qos))
        await server.until_received(Publish)
        if qos == 1:
            assert server.writer is not None
            server.writer.transport.abort()
        await publishing
        assert [ids_of(packet) for packet in server.of(Publish)] == [["press/1/1"]] * 2


async def test_epochs_of_two_buses_differ() -> None:
    async with scripted() as server:
        for _ in range(2):
            async with hedgerow.connect(server.url, origin="press") as bus:
                await bus.publish("a", "x", qos=1)
        first, second = (ids_of(packet)[0] for packet in server.of(Publish))
        assert first != second
        assert MessageId.parse(first).epoch < MessageId.parse(second).epoch


async def test_an_ordinary_client_says_nothing_of_ids_and_reads_none() -> None:
    async with scripted() as server:
        async with hedgerow.connect(server.url) as bus:
            assert bus.origin is None
            with pytest.raises(hedgerow.ConfigError, match="origin=NAME"):
                await bus.publish("a", "x", id=MessageId("query", 1, 1))
            await bus.send(Message("a", b"x", 1, id=MessageId("query", 1, 1)))
            async with bus.subscribe("b") as messages:
                pairs = (("hedgerow-id", "query/1/1"),)
                server.send(Publish("b", b"", properties={"user_property": pairs}))
                (message,) = await take(messages, 1)
                assert message.id is None
                assert message.properties == {"user_property": pairs}
        connect, publish = server.of(Connect)[0], server.of(Publish)[0]
        assert isinstance(connect, Connect)
        assert "user_property" not in connect.properties
        assert ids_of(publish) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"origin": "press", "version": 4}, "MQTT 5"),
        ({"origin": ""}, "printable"),
        ({"origin": "a\nb"}, "printable"),
        ({"origin": "x" * 257}, "256"),
        ({"origin": "press", "epoch": -1}, "epoch"),
        ({"epoch": 1}, "origin"),
    ],
)
async def test_what_cannot_be_meant_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(hedgerow.ConfigError, match=reason):
        await hedgerow.connect("mqtt://127.0.0.1:1", **options)


@pytest.mark.parametrize("url", ["udp://127.0.0.1", "multicast://"])
async def test_other_transports_have_no_origin(url: str) -> None:
    with pytest.raises(hedgerow.ConfigError, match="ids"):
        await hedgerow.connect(url, origin="press")


@pytest.mark.parametrize("bad", [MessageId("", 1, 1), MessageId("a", -1, 1), MessageId("a", 1, 2**63)])
async def test_an_id_that_the_fabric_has_not_is_refused(bad: MessageId) -> None:
    async with scripted() as server, hedgerow.connect(server.url, origin="press") as bus:
        with pytest.raises(ValueError, match="no id"):
            await bus.publish("a", "x", id=bad)


async def test_a_server_without_mqtt_5_is_refused_in_words() -> None:
    def answer(packet: Packet) -> list[Packet]:
        return [Connack(reason_code=Reason.UNSUPPORTED_PROTOCOL_VERSION)]

    async with scripted(answer) as server:
        with pytest.raises(hedgerow.ConnectError, match="need MQTT 5"):
            await hedgerow.connect(server.url, origin="press")
        assert server.connections == 1  # and never in an older version


# What is received.


async def test_ids_times_and_ages_are_read_and_taken_out_of_the_properties() -> None:
    async with scripted() as server, hedgerow.connect(server.url, origin="press") as bus:
        async with bus.subscribe("b", retain_as_published=True) as messages:
            for pairs in (
                (("hedgerow-id", "node/1/5"),),
                (("hedgerow-id", "node/1/6"),),
                (("hedgerow-id", "node/1/007"),),
                (("hedgerow-id", "node/1/8"), ("k", "v"), ("hedgerow-time", "1700000000.5")),
            ):
                server.send(Publish("b", b"x", retain=True, properties={"user_property": pairs}))
            server.send(Publish("b", b"y"))
            found = await take(messages, 5)
        assert [message.id and str(message.id) for message in found] == [
            "node/1/5", "node/1/6", None, "node/1/8", None,
        ]  # fmt: skip
        assert [message.properties for message in found] == [{}, {}, {}, {"user_property": (("k", "v"),)}, {}]
        assert found[3].published_at == 1_700_000_000.5
        assert [message.payload for message in found] == [b"x"] * 4 + [b"y"]


async def test_subscriptions_are_without_our_own_messages_unless_shared() -> None:
    async with scripted() as server, hedgerow.connect(server.url, origin="press") as bus:
        async with bus.subscribe("b"), bus.subscribe("$share/g/c"):
            pass
        asked = [each for packet in server.of(Subscribe) for each in cast(Subscribe, packet).subscriptions]
        assert [(each.topic_filter, each.no_local) for each in asked] == [("b", True), ("$share/g/c", False)]


# Beside real brokers.


async def test_between_buses_at_mosquitto_ids_pass_through(mosquitto: StartMosquitto) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto()}"
    async with (
        hedgerow.connect(url, origin="press", epoch=1) as press,
        hedgerow.connect(url, origin="reader") as reader,
        reader.subscribe("#", qos=1) as messages,
    ):
        await press.publish("a", "x", qos=1, properties={"content_type": "t"})
        await press.publish("a", "y", qos=1)
        found = await take(messages, 2)
        assert [str(message.id) for message in found] == ["press/1/1", "press/1/2"]
        assert [message.properties for message in found] == [{"content_type": "t"}, {}]
        assert reader.broker_name is None


async def test_at_a_node_a_repeat_is_dropped_and_others_see_plain_messages() -> None:
    async with hedgerow.serve() as node:
        url = node.url
        async with (
            hedgerow.connect(url, origin="press", epoch=1) as press,
            hedgerow.connect(url, origin="reader") as reader,
            hedgerow.connect(url) as plain,
            reader.subscribe("#", qos=2) as identified,
            plain.subscribe("#", qos=2) as messages,
        ):
            assert press.broker_name == node.id
            for _ in range(2):
                await press.publish("a", "x", qos=1, id=MessageId("query", 1, 1))
                await press.publish("a", "y", qos=2, id=MessageId("query", 1, 2))
                await press.publish("a", "z", id=MessageId("query", 1, 3))
            await plain.publish("a", "end", qos=1)
            found = await take(identified, 4)
            assert [(message.payload, message.id) for message in found[:3]] == [
                (b"x", MessageId("~query", 1, 1)),
                (b"y", MessageId("~query", 1, 2)),
                (b"z", MessageId("~query", 1, 3)),
            ]
            assert found[3].id is not None
            assert found[3].id.origin == node.id
            seen = await take(messages, 4)
            assert [(message.payload, message.properties) for message in seen] == [
                (b"x", {}), (b"y", {}), (b"z", {}), (b"end", {}),
            ]  # fmt: skip


async def test_at_a_node_it_behaves_as_a_client() -> None:
    """Retained messages come, with their times; its own do not come back, nor what was there before it."""
    async with hedgerow.serve() as node:
        url = node.url
        async with (
            hedgerow.connect(url, origin="witness") as witness,  # so that the node remembers what flows
            witness.subscribe("#", qos=1),
            hedgerow.connect(url, origin="press") as press,
        ):
            await press.publish("kept", "value", qos=1, retain=True)
            await press.publish("event", "before", qos=1)
            async with hedgerow.connect(url, origin="late") as late:
                await asyncio.sleep(0.6)  # longer than AGE_SLACK_S
                async with late.subscribe("#", qos=1) as messages:
                    await late.publish("event", "own", qos=1)
                    await press.publish("event", "after", qos=1)
                    found = await take(messages, 3)
        # A value of the last seconds may be sent twice, as what other brokers need: it has one id.
        assert {(message.topic, message.payload) for message in found} == {
            ("kept", b"value"),
            ("event", b"after"),
        }
        assert len({message.id for message in found}) == 2
        (kept,) = [message for message in found if message.retain]
        assert kept.published_at is not None


async def test_at_a_node_old_deletions_are_no_news() -> None:
    """A node tells them to its peers, which may be brokers that missed them."""
    async with hedgerow.serve() as node:
        url = node.url
        async with hedgerow.connect(url, origin="press") as press:
            await press.publish("kept", "value", qos=1, retain=True)
            await press.publish("kept", "", qos=1, retain=True)
            async with (
                hedgerow.connect(url, origin="late") as late,
                late.subscribe("#", retain_as_published=True) as messages,
            ):
                await press.publish("event", "after", qos=1)
                (message,) = await take(messages, 1)
        assert message.payload == b"after"


async def test_a_link_that_is_lost_at_a_node_costs_no_message_and_doubles_none() -> None:
    async with (
        hedgerow.serve() as node,
        cable_to(int(node.url.rpartition(":")[2])) as cable,
        hedgerow.connect(node.url) as reader,
        reader.subscribe("#", qos=1) as messages,
        hedgerow.connect(cable.url, origin="press", session_expiry=0, **QUICKLY) as press,
    ):
        futures = []
        for number in range(60):
            futures.append(press.publish_nowait("a", str(number), qos=1 + number % 2))
            if number % 20 == 10:
                cable.cut()
                await until(lambda: press.state is not State.CONNECTED, "the end of the link")
                await until(lambda: press.state is State.CONNECTED, "another connection")
        await asyncio.gather(*futures)
        await reader.publish("end", "", qos=1)
        found = [message.payload for message in await take(messages, 60)]
        assert sorted(found, key=int) == [str(number).encode() for number in range(60)]


async def test_in_a_federation_its_subscriptions_are_known_and_its_ids_go_all_the_way() -> None:
    async with (
        hedgerow.serve({"federation": {"enabled": True}}, id="n1") as one,
        hedgerow.serve({"federation": {"neighbours": [one.url]}}, id="n2") as other,
        hedgerow.connect(one.url, origin="reader") as reader,
        hedgerow.connect(other.url, origin="press", epoch=1) as press,
        reader.subscribe("farm/#", qos=1) as messages,
    ):

        async def publish_until_heard() -> None:
            for number in count(1):
                await press.publish("farm/a", str(number), qos=1)
                await asyncio.sleep(0.01)

        publishing = asyncio.ensure_future(publish_until_heard())
        (message,) = await take(messages, 1)
        publishing.cancel()
        assert message.id == MessageId("~press", 1, int(message.payload))
