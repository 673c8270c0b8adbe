"""The multicast gateway of real nodes: MQTT clients and devices without a broker, over real sockets.

Nodes and devices of this process meet on the loopback interface, over IPv4, on a port of their own. Two
hosts meet on a network of their own.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.broker.port import Port
from hedgerow.errors import ConfigError, TopicError
from hedgerow.message import Message
from hedgerow.mqtt.packets import Disconnect, Publish, Suback, Subscribe, Subscription, Will
from hedgerow.multicast.config import Multicast
from hedgerow.multicast.gateway import GatewayLedger
from hedgerow.multicast.io.group_sockets import SocketStats
from hedgerow.multicast.io.options import MulticastOptions
from hedgerow.multicast.metrics import MULTICAST_COUNTERS
from hedgerow.multicast.part import MulticastPart
from hedgerow.multicast.stats import MulticastStats
from hedgerow.node.config import Config
from hedgerow.node.handlers import Request
from hedgerow.node.metrics import metrics
from hedgerow.node.server import Server
from hedgerow.parts import make_server
from hedgerow_workshop.programs import free_udp_port
from tests.hosts import Host, network
from tests.multicast.io.members import Recorder, members
from tests.node.peers import LOOPBACK, NOWHERE, RawClient, connected, part_of, port_of, running
from tests.programs import run_node, wait_until
from tests.waiting import PATIENCE_S, until

KEY_1 = f"1 {'11' * 32}\n"
KEY_2 = f"2 {'22' * 32}\n"


@pytest.fixture
def options() -> MulticastOptions:
    """On loopback, on a UDP port that nobody has now, nor the one after it."""
    return MulticastOptions(interfaces=("lo",), ip=4, port=free_udp_port())


@asynccontextmanager
async def node(options: MulticastOptions, *topics: str, **settings: Any) -> AsyncIterator[Server]:
    async with running(Multicast(topics or ("farm/#",), options), **settings) as server:
        yield server


@asynccontextmanager
async def device(options: MulticastOptions, *topic_filters: str) -> AsyncIterator[Recorder]:
    """Something without a broker."""
    async with members(1, options.port, options) as (made,):
        made.on_held = made.held.extend
        for topic_filter in topic_filters:
            made.subscribe(topic_filter)
        yield made


@asynccontextmanager
async def client(server: Server, name: str, *topic_filters: str) -> AsyncIterator[RawClient]:
    async with connected(port_of(server), name) as made:
        for topic_filter in topic_filters:
            made.send(Subscribe(1, [Subscription(topic_filter, 0)]))
            assert isinstance(await made.receive(), Suback)
        yield made


async def take(client: RawClient, count: int) -> list[bytes]:
    """The payloads of the next messages."""
    packets = [await client.receive() for _ in range(count)]
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def ledgers(server: Server) -> tuple[GatewayLedger, GatewayLedger]:
    gateway = part_of(server, MulticastPart).gateway
    return gateway.to_group, gateway.to_broker


async def test_a_client_and_a_device_hear_each_other(options: MulticastOptions) -> None:
    async with node(options) as server, device(options, "farm/+/state") as mop:
        assert server.urls[-1] == f"multicast://lo:{options.port}"
        async with client(server, "dashboard", "farm/#") as dashboard:
            mop.say("farm/mop/state", b"idle", qos=1)
            assert await dashboard.receive() == Publish("farm/mop/state", b"idle")
            dashboard.send(Publish("farm/vacuum/state", b"done"), Publish("office", b"stays here"))
            dashboard.send(Publish("farm/mop/state", b"working"))
            assert await take(dashboard, 2) == [b"done", b"working"]
            await until(lambda: len(mop.received) == 2, "both messages")
            assert mop.payloads == [b"done", b"working"]
            origins = {message.id.origin for message in mop.received if message.id is not None}
            assert origins == {server.node_id}
        assert ledgers(server) == (
            GatewayLedger(published=2, relayed=2),
            GatewayLedger(published=1, relayed=1),
        )


async def test_retained_messages_meet_those_who_come_later(options: MulticastOptions) -> None:
    async with node(options) as server, client(server, "dashboard") as dashboard:
        dashboard.send(Publish("farm/a", b"from the client", retain=True))
        async with device(options) as sensor:
            sensor.say("farm/b", b"from the device", retain=True, qos=1)
            await until(lambda: server.broker.retained.get("farm/b") is not None, "the device's message")
        async with device(options, "farm/#") as late:
            await until(lambda: len(late.held) == 2, "both last values")
            assert {message.payload for message in late.held} == {b"from the client", b"from the device"}
        async with client(server, "late", "farm/#") as late_client:
            kept = [await late_client.receive(), await late_client.receive()]
            assert Publish("farm/a", b"from the client", retain=True) in kept
            assert Publish("farm/b", b"from the device", retain=True) in kept


async def test_what_a_node_stored_is_there_for_devices(options: MulticastOptions, tmp_path: Path) -> None:
    async with (
        running(mqtt=LOOPBACK, data=tmp_path) as server,
        connected(port_of(server), "dashboard") as dashboard,
    ):
        dashboard.send(Publish("farm/a", b"kept", 1, True, packet_id=1))
        await dashboard.receive()
    async with node(options, mqtt=LOOPBACK, data=tmp_path) as server:
        assert ledgers(server)[0] == GatewayLedger(published=1, held=1)
        async with device(options, "farm/a") as late:
            await until(lambda: bool(late.held), "the last value")
            assert [(each.payload, each.retain) for each in late.held] == [(b"kept", True)]
            assert late.received == []


async def test_a_node_takes_over_what_devices_retain(options: MulticastOptions) -> None:
    async with device(options) as sensor:
        sensor.say("farm/a", b"early", retain=True, qos=1)
        async with node(options) as server:
            await until(lambda: server.broker.retained.get("farm/a") is not None, "the last value")
            async with client(server, "dashboard", "farm/#") as dashboard:
                assert await dashboard.receive() == Publish("farm/a", b"early", retain=True)


async def test_two_gateways_on_one_network_pass_each_message_once(options: MulticastOptions) -> None:
    count = 50
    async with (
        node(options) as one,
        node(options) as two,
        device(options, "farm/#") as watcher,
        device(options) as sensor,
        client(one, "c1", "farm/#") as client_one,
        client(two, "c2", "farm/#") as client_two,
    ):
        for number in range(count):
            client_one.send(Publish(f"farm/{number % 5}", b"one %d" % number, 1, packet_id=1 + number))
            client_two.send(Publish(f"farm/{number % 5}", b"two %d" % number, retain=number % 10 == 0))
            sensor.say(f"farm/{number % 5}", b"sensor %d" % number, qos=1)
        expected = {b"%s %d" % (who, n) for who in (b"one", b"two", b"sensor") for n in range(count)}
        received = {}
        for each in client_one, client_two:
            payloads: list[bytes] = []
            while len(payloads) < 3 * count:
                packet = await each.receive()
                if isinstance(packet, Publish):
                    payloads.append(packet.payload)
            received[each] = payloads
        await until(lambda: len(watcher.received) >= 3 * count, "all messages at the device")
        # Whatever would go round has gone round when what is published last has arrived everywhere.
        sensor.say("farm/0", b"end", qos=1)
        await until(lambda: b"end" in watcher.payloads, "the end at the device")
        for each in client_one, client_two:
            while True:
                packet = await each.receive()
                if isinstance(packet, Publish):
                    assert packet.payload == b"end"
                    break
            assert len(received[each]) == 3 * count
            assert set(received[each]) == expected
        assert sorted(watcher.payloads) == sorted([*expected, b"end"])
        for server in one, two:
            to_group, to_broker = ledgers(server)
            assert to_group == GatewayLedger(published=count, relayed=count)
            assert to_broker.relayed == 2 * count + 1


async def test_a_burst_at_qos_1_arrives_whole(options: MulticastOptions) -> None:
    """Faster than the group's pace: what is too fast waits in the gateway."""
    count = 3_000
    async with node(options) as server, device(options, "farm/a") as listener:
        async with client(server, "burst") as burst:
            for number in range(count):
                burst.send(Publish("farm/a", b"%d" % number, 1, packet_id=1 + number))
            for _ in range(count):
                await burst.receive()
            await until(lambda: len(listener.received) == count, "the whole burst")
        assert listener.payloads == [b"%d" % number for number in range(count)]
        assert ledgers(server)[0] == GatewayLedger(published=count, relayed=count)


async def test_what_is_published_leaves_with_the_servers_flush(options: MulticastOptions) -> None:
    async with node(options) as server:
        member = part_of(server, MulticastPart).endpoint.member
        Port(server.broker, "test", lambda message: None).publish(Message("farm/a", b"x", 1))
        server.flush()
        assert member.stats.published == 1
        assert member.take_to_groups() == []


async def test_a_payload_that_is_too_large_stays_and_is_counted(options: MulticastOptions) -> None:
    small = replace(options, max_payload=1_000)
    async with node(small) as server, device(small, "farm/#") as listener:
        async with client(server, "client", "farm/#") as sender:
            sender.send(Publish("farm/a", bytes(1_001)), Publish("farm/a", b"small"))
            assert await take(sender, 2) == [bytes(1_001), b"small"]
            await until(lambda: bool(listener.received), "the small one")
        assert listener.payloads == [b"small"]
        assert ledgers(server)[0] == GatewayLedger(published=2, relayed=1, too_large=1)


async def test_a_last_will_is_heard_when_the_node_stops(options: MulticastOptions) -> None:
    async with device(options, "farm/gone") as listener:
        async with (
            node(options) as server,
            connected(port_of(server), "leaving", will=Will("farm/gone", b"bye")) as leaving,
        ):
            stopping = asyncio.create_task(server.stop())
            assert isinstance(await leaving.receive(), Disconnect)
            await leaving.close()
            await stopping
        await until(lambda: bool(listener.received), "the will")
        assert listener.payloads == [b"bye"]


# Keys


async def test_new_keys_are_read_while_the_node_runs(options: MulticastOptions, tmp_path: Path) -> None:
    node_keys, device_keys = tmp_path / "node", tmp_path / "device"
    node_keys.write_text(KEY_1)
    device_keys.write_text(KEY_2)
    async with node(replace(options, key_file=node_keys)) as server:
        stats = part_of(server, MulticastPart).endpoint.member.stats
        async with (
            device(replace(options, key_file=device_keys), "farm/#") as sealed,
            client(server, "dashboard", "farm/#") as dashboard,
        ):
            await until(lambda: stats.forged > 0, "a frame that cannot be opened")
            node_keys.write_text(KEY_2 + KEY_1)
            server.reload()
            sealed.say("farm/a", b"under the new key", qos=1)
            assert await take(dashboard, 1) == [b"under the new key"]
            dashboard.send(Publish("farm/b", b"answer"))
            await until(lambda: b"answer" in sealed.payloads, "the answer")


async def test_keys_that_are_wrong_leave_all_as_it_was(
    options: MulticastOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY_1)
    sealed = replace(options, key_file=keys)
    async with (
        node(sealed) as server,
        device(sealed) as sensor,
        client(server, "dashboard", "farm/#") as dashboard,
    ):
        keys.write_text("nonsense")
        server.reload()
        assert f"nothing reloaded: {keys}:1" in caplog.text
        sensor.say("farm/a", b"still heard", qos=1)
        assert await take(dashboard, 1) == [b"still heard"]


# Start, and what is seen


async def test_a_missing_interface_is_named_and_nothing_is_left(options: MulticastOptions) -> None:
    absent = Multicast(("farm/#",), replace(options, interfaces=("nothere0",)))
    server = make_server(Config(**NOWHERE | {"mqtt": LOOPBACK}).with_rooms(absent))
    with pytest.raises(ConfigError, match='no network interface "nothere0"'):
        await server.start()


async def test_topics_that_cannot_flow_are_refused_and_nothing_is_left(options: MulticastOptions) -> None:
    server = make_server(Config(**NOWHERE | {"mqtt": LOOPBACK}).with_rooms(Multicast(("$SYS/#",), options)))
    with pytest.raises(TopicError):
        await server.start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own_port:
        own_port.bind(("0.0.0.0", options.port + 1))


async def test_the_metrics_tell_what_flowed(options: MulticastOptions) -> None:
    async with node(options) as server, device(options) as sensor:
        sensor.say("farm/a", b"x", qos=1)
        await until(lambda: ledgers(server)[1].relayed == 1, "the message")
        text = metrics(server)(Request("GET", "/metrics", {})).body.decode()
    assert 'hedgerow_gateway_messages_total{direction="to_broker",what="relayed"} 1.0' in text
    assert 'hedgerow_gateway_messages_total{direction="to_multicast",what="published"} 0.0' in text
    assert "hedgerow_gateway_waiting 0.0" in text
    assert "hedgerow_multicast_delivered_total 1.0" in text
    assert "hedgerow_multicast_send_errors_total" in text
    counted = {each.name for kind in (MulticastStats, SocketStats) for each in fields(kind)}
    assert MULTICAST_COUNTERS.keys() == counted | {"overruns"}


async def test_without_topics_there_is_no_multicast() -> None:
    async with running() as server:
        assert server.find(MulticastPart) is None
        assert not any(url.startswith("multicast:") for url in server.urls)


# Several hosts


def hedgerow(host: Host, output: Path, *words: str) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return host.run([sys.executable, "-m", "hedgerow", *words], stdout=file)


def test_hosts_with_and_without_a_broker_hear_each_other_once(tmp_path: Path) -> None:
    """Two nodes and a host with neither broker nor route: IPv6, and every program as people run it."""
    with network(count=3, ipv4=False) as net, ExitStack() as nodes:
        urls = []
        for number, host in enumerate(net.hosts[:2]):
            folder = tmp_path / f"node{number}"
            folder.mkdir()
            up = nodes.enter_context(run_node(folder, "--multicast", "farm/#", wrapper=host.wrapper))
            assert "listening multicast://eth0\n" in up.log
            urls.append(f"mqtt://127.0.0.1:{up.port()}")
        urls.append("multicast://")

        def publish(number: int, *words: str) -> None:
            pub = hedgerow(net.hosts[number], tmp_path / "pub", "pub", urls[number], "-q", "1", *words)
            assert pub.wait(PATIENCE_S) == 0

        publish(0, "farm/ready", "yes", "-r")
        outputs = [tmp_path / f"heard{number}" for number in range(3)]
        for number, output in enumerate(outputs):
            hedgerow(net.hosts[number], output, "sub", urls[number], "farm/#", "-v", "-q", "1")
        wait_until(
            lambda: all("farm/ready yes\n" in each.read_text() for each in outputs), "what is retained"
        )
        for number in range(3):
            publish(number, f"farm/{number}", "said")
        publish(2, "farm/end", "said")
        wait_until(lambda: all(each.read_text().count("\n") >= 5 for each in outputs), "all messages")
        for output in outputs:
            lines = sorted(output.read_text().splitlines())
            assert lines == ["farm/0 said", "farm/1 said", "farm/2 said", "farm/end said", "farm/ready yes"]
