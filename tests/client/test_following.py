"""A bus that follows: from broker to broker without losing or doubling a message, and not to everywhere."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.client.bus import Bus, Subscription
from hedgerow.client.following import MAX_REDIRECTS, Whereabouts
from hedgerow.client.options import LEAVE_TIMEOUT_S
from hedgerow.client.urls import parse_url
from hedgerow.errors import ConnectError
from hedgerow.mobility.renewals import renew as tell_to_move
from hedgerow.mobility.roles import MobileClientRole
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.packets import (
    MQTT_EXTENDED,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcallback,
    Publish,
    Renew,
    Suback,
    Subscribe,
)
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.config import Tls
from hedgerow.node.passwords import set_password
from hedgerow.node.server import Server
from tests.client.scripted import ScriptedServer, open_mqtt, polite, scripted
from tests.conftest import StartMosquitto
from tests.mobility.fake_mobility import FakeMobility
from tests.node.certificates import Authority
from tests.node.peers import LOOPBACK, port_of, running
from tests.waiting import PATIENCE_S, until

QUICKLY: dict[str, Any] = {"reconnect_delay": (0.01, 0.05)}


def where(server: Server, scheme: str = "mqtt") -> str:
    return f"127.0.0.1:{port_of(server, scheme)}"


def url_of(server: Server) -> str:
    return f"mqtt://{where(server)}"


def has(server: Server, client_id: str = "f") -> bool:
    session = server.broker.sessions.get(client_id)
    return session is not None and session.connection is not None


def set_supporter(server: Server, address: str) -> None:
    role = server.broker.client_role
    assert isinstance(role, MobileClientRole)
    role.mobility.supporter = address


def renew(server: Server, code: Renewal, address: str, *topics: str) -> None:
    """Whoever decides that the follower is to go says so to its broker."""
    connection = server.broker.sessions["f"].connection
    assert connection is not None
    assert tell_to_move(connection, code, address, topics)
    server.flush()


@asynccontextmanager
async def followed(*, bridged: bool = True) -> AsyncIterator[tuple[Server, Server]]:
    """Two brokers that speak the extension; what is published at one comes to the other with its id."""
    async with running() as one, running() as two:
        for server in one, two:
            FakeMobility().install(server.broker)
        if bridged:
            lines = ("connection between", f"address {where(two)}", "topic # both 1", "")
            async with (
                hedgerow.connect(url_of(one)) as bus,
                hedgerow.connect(url_of(two)) as other,
                other.subscribe("ready") as ready,
            ):
                await bus.publish("$SYS/broker/bridge/new", "\n".join(lines), qos=1)
                arrived = asyncio.ensure_future(anext(aiter(ready)))
                while not arrived.done():
                    await bus.publish("ready", qos=1)
                    await asyncio.wait([arrived], timeout=0.02)
                arrived.result()
        yield one, two


@asynccontextmanager
async def following(server: Server, **options: Any) -> AsyncIterator[Bus]:
    async with hedgerow.connect(url_of(server), client_id="f", follow=True, **QUICKLY, **options) as bus:
        yield bus


async def collect(messages: Subscription, counts: Counter[bytes]) -> None:
    async for message in messages:
        counts[message.payload] += 1


@asynccontextmanager
async def collecting(bus: Bus, topic_filter: str, qos: int = 1) -> AsyncIterator[Counter[bytes]]:
    counts: Counter[bytes] = Counter()
    async with bus.subscribe(topic_filter, qos=qos) as messages:
        task = asyncio.ensure_future(collect(messages, counts))
        yield counts
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# Which version is spoken.


async def test_the_extension_where_it_is_known() -> None:
    async with followed(bridged=False) as (one, _), following(one) as bus:
        connection = one.broker.sessions["f"].connection
        assert connection is not None
        assert connection.protocol_version == MQTT_EXTENDED
        assert bus.version == 4
        async with bus.subscribe("a", qos=1) as messages:
            await bus.publish("a", "x", qos=2)
            message = await anext(aiter(messages))
            assert (message.payload, message.qos) == (b"x", 1)
            assert message.id is not None


@pytest.mark.parametrize(("asked", "spoken"), [(None, 5), (5, 5), (4, 4), (3, 3)])
async def test_mosquitto_refuses_it_and_gets_a_version_that_it_knows(
    mosquitto: StartMosquitto, asked: int | None, spoken: int
) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto()}"
    async with (
        hedgerow.connect(url, follow=True, version=asked) as bus,
        bus.subscribe("a", qos=1) as messages,
    ):
        assert bus.version == spoken
        await bus.publish("a", "x", qos=1)
        assert (await anext(aiter(messages))).payload == b"x"


async def test_it_is_offered_first_and_only_by_who_follows() -> None:
    def answer(packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Connect) and packet.protocol_version == MQTT_EXTENDED:
            return None
        return polite(packet)

    async with scripted(answer) as server:
        for options in {"follow": True}, {"follow": False}, {"follow": True, "session_expiry": 60}:
            async with hedgerow.connect(server.url, **options):
                pass
    versions = [packet.protocol_version for packet in server.of(Connect) if isinstance(packet, Connect)]
    assert versions == [MQTT_EXTENDED, 5, 5, 5]


# Moving.


@pytest.mark.parametrize("code", [Renewal.ACTIVE_TOPICS, Renewal.RENEW_TOPICS])
async def test_it_goes_where_it_is_sent_and_leaves(code: Renewal, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hedgerow.client")
    async with followed() as (one, two), following(one) as bus, collecting(bus, "a") as counts:
        renew(one, code, where(two))
        await until(lambda: has(two) and not has(one), "the follower to move")
        await bus.publish("a", "there", qos=1)
        async with hedgerow.connect(url_of(one)) as publisher:
            await publisher.publish("a", "here", qos=1)
        await until(lambda: len(counts) == 2, "both messages")
        assert counts == {b"there": 1, b"here": 1}
        assert f"moved from {url_of(one)} to {url_of(two)}" in caplog.text


async def test_active_topics_go_where_connection_renew_said() -> None:
    async with followed() as (one, two):
        set_supporter(one, where(two))
        async with following(one) as bus, collecting(bus, "a") as counts:
            renew(one, Renewal.ACTIVE_TOPICS, "", "a")
            await until(lambda: has(two) and not has(one), "the follower to move")
            await bus.publish("a", "x", qos=1)
            await until(lambda: counts == {b"x": 1}, "the message")


async def test_nothing_is_lost_or_doubled_while_it_is_sent_to_and_fro() -> None:
    """Publishers at both brokers, the follower one of them, while it moves ten times."""
    async with (
        followed() as (one, two),
        following(one) as bus,
        hedgerow.connect(url_of(one)) as here,
        hedgerow.connect(url_of(two)) as there,
        collecting(bus, "to/f") as received,
        collecting(here, "from/f") as sent,
    ):
        moving = True
        published: list[bytes] = []

        async def publish(publisher: Bus, topic: str, name: str, qos: int) -> None:
            number = 0
            while moving:
                payload = f"{name}{number}".encode()
                published.append(payload)
                await publisher.publish(topic, payload, qos=qos)
                number += 1
                await asyncio.sleep(0.002)

        publishing = [
            asyncio.ensure_future(publish(here, "to/f", "here", 1)),
            asyncio.ensure_future(publish(there, "to/f", "there", 2)),
            asyncio.ensure_future(publish(bus, "from/f", "one", 1)),
            asyncio.ensure_future(publish(bus, "from/f", "two", 2)),
        ]
        at, other = one, two
        for number in range(10):
            code = Renewal.ACTIVE_TOPICS if number % 2 else Renewal.RENEW_TOPICS
            renew(at, code, where(other))
            await until(lambda: has(other) and not has(at), "the follower to move")  # noqa: B023
            at, other = other, at
        moving = False
        await asyncio.gather(*publishing)
        with suppress(AssertionError):  # What is missing says more.
            await until(lambda: len(received) + len(sent) == len(published), "all of them")
        heard = Counter(received) + Counter(sent)
        assert {payload for payload, count in heard.items() if count != 1} == set()
        assert set(published) - set(heard) == set()


class Scene:
    """A server that a follower is to leave, and one that it is to go to; what is in `slow` nobody answers."""

    def __init__(self) -> None:
        self.slow_at_old: set[type[Packet]] = set()
        self.slow_at_new: set[type[Packet]] = set()
        self.old: ScriptedServer
        self.new: ScriptedServer

    def answer_old(self, packet: Packet) -> list[Packet] | None:
        return [] if type(packet) in self.slow_at_old else polite(packet)

    def answer_new(self, packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Connect) and packet.protocol_version == MQTT_EXTENDED:
            return None
        return [] if type(packet) in self.slow_at_new else polite(packet)

    def renew(self) -> None:
        self.old.send(Renew(Renewal.RENEW_TOPICS, f"127.0.0.1:{self.new.port}"))

    def publish_at_old(self, number: int) -> None:
        self.old.send(
            Pubcallback("a", b"%d" % number, 1, packet_id=number, message_id=f"n/1/{number}"),
        )


@asynccontextmanager
async def scene(leave_timeout_s: float = LEAVE_TIMEOUT_S) -> AsyncIterator[tuple[Scene, Bus]]:
    made = Scene()
    async with scripted(made.answer_old) as made.old, scripted(made.answer_new) as made.new:
        made.old.version = MQTT_EXTENDED
        transport = await open_mqtt(made.old.url, follow=True, renewals=True, leave_timeout_s=leave_timeout_s)
        async with Bus(transport) as bus:
            yield made, bus


async def test_it_is_served_where_it_is_until_it_has_subscribed_where_it_goes() -> None:
    async with scene() as (at, bus), collecting(bus, "a") as counts:
        at.slow_at_new = {Subscribe}
        at.renew()
        await at.new.until_received(Subscribe)
        at.publish_at_old(1)
        await until(lambda: counts == {b"1": 1}, "the message")
        await bus.publish("b", "to the old one", qos=1)
        assert at.old.of(Pingreq) + at.old.of(Disconnect) + at.new.of(Publish) == []
        (packet,) = at.new.of(Subscribe)
        assert isinstance(packet, Subscribe)
        at.new.send(Suback(packet.packet_id, [1]))
        await at.old.until_received(Disconnect)
        await bus.publish("b", "to the new one", qos=1)
        assert len(at.new.of(Publish)) == 1


async def test_it_leaves_when_nothing_is_in_flight_and_all_has_come() -> None:
    async with scene() as (at, bus), collecting(bus, "a") as counts:
        at.slow_at_old = {Publish, Pingreq}
        result = bus.publish_nowait("b", "x", qos=1)
        await at.old.until_received(Publish)
        at.renew()
        await at.old.until_received(Pingreq)
        (packet,) = at.old.of(Publish)
        assert isinstance(packet, Publish)
        at.old.send(Puback(packet.packet_id))
        await result
        at.publish_at_old(1)
        await until(lambda: len(counts) == 1, "what was under way")
        assert at.old.of(Disconnect) == []
        at.old.send(Pingresp())
        await at.old.until_received(Disconnect)
        assert at.new.of(Publish) == []


@pytest.mark.parametrize("ends", ["by the server", "by the clock"])
async def test_what_the_one_it_leaves_does_not_acknowledge_is_published_again(ends: str) -> None:
    async with scene(leave_timeout_s=0.2 if ends == "by the clock" else 60.0) as (at, bus):
        at.slow_at_old = {Publish, Pingreq}
        result = bus.publish_nowait("b", "x", qos=1)
        await at.old.until_received(Publish)
        at.renew()
        await at.old.until_received(Pingreq)
        if ends == "by the server":
            assert at.old.writer is not None
            at.old.writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            await result
        (packet,) = at.new.of(Publish)
        assert isinstance(packet, Publish)
        assert (packet.payload, packet.dup) == (b"x", False)


async def test_closing_in_the_middle_of_a_move_leaves_nothing_open() -> None:
    async with scene() as (at, bus):
        at.slow_at_new = {Subscribe}
        async with bus.subscribe("a"):
            at.renew()
            await at.new.until_received(Subscribe)
            await bus.close()
        await at.old.until_received(Disconnect)
        await at.new.until_received(Disconnect)


async def test_hedgerow_sub_follows() -> None:
    async with followed() as (one, two), hedgerow.connect(url_of(one)) as publisher:
        words = ("sub", url_of(one), "a", "-q", "1", "-i", "f", "--follow", "-C", "1")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hedgerow", *words, stdout=asyncio.subprocess.PIPE
        )
        try:
            await until(lambda: has(one) and bool(one.broker.sessions["f"].subscriptions), "the subscriber")
            renew(one, Renewal.RENEW_TOPICS, where(two))
            await until(lambda: has(two) and not has(one), "the subscriber to move")
            await publisher.publish("a", "x", qos=1)
            async with asyncio.timeout(PATIENCE_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert output == b"x\n"
        assert process.returncode == 0


async def test_with_mqtt_5_it_goes_by_server_reference_and_its_publications_arrive_once() -> None:
    async with (
        followed() as (one, two),
        following(one, version=5) as bus,
        hedgerow.connect(url_of(two)) as there,
        collecting(there, "from/f") as sent,
    ):
        results = []
        at, other = one, two
        for number in range(6):
            results += [
                bus.publish_nowait("from/f", f"{number}-{each}", qos=1 + each % 2) for each in range(50)
            ]
            renew(at, Renewal.ACTIVE_TOPICS, where(other))
            await until(lambda: has(other), "the follower to move")  # noqa: B023
            at, other = other, at
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*results)
        await until(lambda: len(sent) == 300, "all of them")
        assert set(sent.values()) == {1}


async def test_who_does_not_follow_ends_as_ever() -> None:
    async with (
        followed(bridged=False) as (one, two),
        hedgerow.connect(url_of(one), client_id="f", version=5, follow=False) as bus,
    ):
        renew(one, Renewal.RENEW_TOPICS, where(two))
        with pytest.raises(ConnectError, match="server moved"):
            await bus.wait_closed()


# Misfortune.


async def test_it_stays_when_nobody_is_where_it_is_sent() -> None:
    async with followed(bridged=False) as (one, two), following(one) as bus, collecting(bus, "a") as counts:
        nowhere = where(two)
        await two.stop()
        renew(one, Renewal.RENEW_TOPICS, nowhere)
        await bus.publish("a", "still here", qos=1)
        await until(lambda: bool(counts), "the message")
        assert has(one)


async def test_it_stays_when_the_other_does_not_take_its_subscriptions() -> None:
    def answer(packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Connect) and packet.protocol_version == MQTT_EXTENDED:
            return None
        return [Suback(packet.packet_id, [0x87])] if isinstance(packet, Subscribe) else polite(packet)

    async with (
        followed(bridged=False) as (one, _),
        scripted(answer) as strict,
        following(one) as bus,
        collecting(bus, "a") as counts,
    ):
        renew(one, Renewal.RENEW_TOPICS, f"127.0.0.1:{strict.port}")
        await strict.until_received(Subscribe)
        await bus.publish("a", "still here", qos=1)
        await until(lambda: bool(counts), "the message")
        assert has(one)
        assert strict.of(Publish) == []


async def test_it_comes_home_when_the_other_dies() -> None:
    async with followed(bridged=False) as (one, two), following(one) as bus, collecting(bus, "a") as counts:
        renew(one, Renewal.RENEW_TOPICS, where(two))
        await until(lambda: has(two) and not has(one), "the follower to move")
        await two.stop()
        await until(lambda: has(one), "the follower to come back")
        await bus.publish("a", "home", qos=1)
        await until(lambda: bool(counts), "the message")


async def test_servers_that_send_it_to_each_other_are_not_followed_for_ever() -> None:
    ports: list[int] = []

    def answer(packet: Packet) -> list[Packet] | None:
        if not isinstance(packet, Connect):
            return []
        if packet.protocol_version == MQTT_EXTENDED:
            return None
        other = ports[sum(server.connections for server in servers) % 2]
        return [
            Connack(False, Reason.USE_ANOTHER_SERVER, {"server_reference": f"127.0.0.1:{other}"}),
        ]

    async with scripted(answer) as one, scripted(answer) as two:
        servers = (one, two)
        ports += [one.port, two.port]
        with pytest.raises(ConnectError, match="use another server"):
            await hedgerow.connect(one.url, follow=True, version=5)
        assert one.connections + two.connections == MAX_REDIRECTS + 1


async def test_a_password_that_went_by_tls_is_not_sent_in_clear(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            heard.extend(await reader.read(4_096))
        writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    users = tmp_path / "users"
    set_password(users, "u", b"open-sesame", iterations=1000, create=True)
    async with running(mqtts=LOOPBACK, tls=Tls(certificate, key), passwords=users) as server:
        FakeMobility().install(server.broker)
        login = {"username": "u", "password": "open-sesame", "ca_file": str(authority.certificate)}
        url = f"mqtts://{where(server, 'mqtts')}"
        async with hedgerow.connect(url, client_id="f", follow=True, **login) as bus:  # type: ignore[arg-type]
            renew(server, Renewal.RENEW_TOPICS, f"127.0.0.1:{port}")
            await until(lambda: bool(heard), "a word to the other server")
            await bus.publish("a", "still here", qos=1)
    listener.close()
    await listener.wait_closed()
    assert heard[0] == 0x16  # a TLS handshake
    assert b"open-sesame" not in heard


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("broker.example:1884", "mqtts://u@broker.example:1884"),
        ("broker.example", "mqtts://u@broker.example:8883"),
        ("[2001:db8::1]:1 other:2", "mqtts://u@[2001:db8::1]:1"),
        ("mqtt://broker.example:1 good:2", "mqtts://u@good:2"),
        ("127.0.0.1:1883", None),
        ("localhost:1883", None),
        ("[::1]:1883", None),
        ("0.0.0.0:1883", None),
        ("224.0.0.1:1883", None),
        ("[ff02::1]:1883", None),
        ("evil.example:1/path", None),
        ("", None),
        (None, None),
        (" ".join(["bad:0"] * 9 + ["good:1"]), None),
    ],
)
def test_where_it_may_be_sent(reference: str | None, expected: str | None) -> None:
    whereabouts = Whereabouts(parse_url("mqtts://u:p@home.example"))
    address = whereabouts.read(reference)
    assert (None if address is None else str(address)) == expected
    if address is not None:
        assert address.password == "p"


def test_whom_it_tries_when_its_server_is_gone() -> None:
    whereabouts = Whereabouts(parse_url("mqtt://home"))
    assert {str(whereabouts.candidate(attempt)) for attempt in range(3)} == {"mqtt://home:1883"}
    whereabouts.address = parse_url("mqtt://now")
    whereabouts.set_supporter("fixed:7")
    tried = [str(whereabouts.candidate(attempt)) for attempt in range(4)]
    assert tried == ["mqtt://now:1883", "mqtt://fixed:7", "mqtt://home:1883", "mqtt://now:1883"]
    moved = whereabouts.redirect(Reason.SERVER_MOVED, "new:1")
    assert moved == whereabouts.home == parse_url("mqtt://new:1")
    assert whereabouts.redirect(Reason.SERVER_BUSY, "new:2") is None
