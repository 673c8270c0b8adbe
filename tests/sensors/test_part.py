"""A node's UDP sockets: plain sockets that build the 8 bytes by hand, and MQTT clients, on one topic."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hedgerow.errors import ConfigError
from hedgerow.mqtt.packets import Publish, Suback, Subscribe, Subscription
from hedgerow.node.config import Config
from hedgerow.node.handlers import Request
from hedgerow.node.metrics import metrics
from hedgerow.node.part import PartEntry
from hedgerow.node.server import Server
from hedgerow.node.values import Address
from hedgerow.parts import PARTS, make_server
from hedgerow.sensors.config import SensorSettings
from hedgerow.sensors.exchange import SensorStats
from hedgerow.sensors.part import SensorsPart
from tests.node.peers import LOOPBACK, NOWHERE, connected, part_of, port_of, running, with_part
from tests.waiting import PATIENCE_S, until

TOPICS = {1: "farm/temperature", 2: "farm/wind", 3: "farm/humidity"}


class Device:
    """An old-style client: a plain socket, and headers made by hand."""

    def __init__(self, broker: int, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.bind((host, 0))
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]
        self.broker = (host, broker)

    def subscribe(self, topic: str) -> None:
        self.send(f"{self.port:05}0{topic}".encode())

    def publish(self, topic: str, text: str) -> bytes:
        packet = f"123451{topic}{text}".encode()
        self.send(packet)
        return packet

    def send(self, data: bytes) -> None:
        self.socket.sendto(data, self.broker)

    async def receive(self) -> bytes:
        await until(lambda: self.has_packet, "a datagram")
        return self.socket.recv(65_535)

    @property
    def has_packet(self) -> bool:
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False


@contextmanager
def devices(count: int, broker: int, host: str = "127.0.0.1") -> Iterator[list[Device]]:
    made = [Device(broker, host) for _ in range(count)]
    try:
        yield made
    finally:
        for device in made:
            device.socket.close()


def node(table: Sequence[PartEntry] = PARTS, **options: Any) -> AbstractAsyncContextManager[Server]:
    given = {"topics": TOPICS, "udp": LOOPBACK} | options
    return running(SensorSettings(**given), table=table)


def stats_of(server: Server) -> SensorStats:
    return part_of(server, SensorsPart).exchange.stats


def subscriptions_of(server: Server) -> int:
    return part_of(server, SensorsPart).exchange.subscription_count


async def test_the_nine_steps_on_real_sockets() -> None:
    async with node() as server:
        with devices(5, port_of(server, "udp")) as (laptop, mobile, thermometer, anemometer, hygrometer):
            laptop.subscribe("01")
            mobile.subscribe("02")
            await until(lambda: subscriptions_of(server) == 2, "the subscriptions")
            temperature = thermometer.publish("01", "21.5")
            assert await laptop.receive() == temperature
            wind = anemometer.publish("02", "4 m/s")
            assert await mobile.receive() == wind
            laptop.subscribe("03")
            humidity = hygrometer.publish("03", "61 %")
            assert await laptop.receive() == humidity
            await until(lambda: stats_of(server).forwarded == 3, "the count")
            assert not laptop.has_packet
            assert not mobile.has_packet


async def test_sensors_and_mqtt_clients_meet_on_one_topic() -> None:
    async with node() as server, connected(port_of(server), "dashboard") as client:
        client.send(Subscribe(1, [Subscription("farm/#")]))
        assert isinstance(await client.receive(), Suback)
        with devices(2, port_of(server, "udp")) as (laptop, thermometer):
            thermometer.publish("01", "21.5")
            assert await client.receive() == Publish("farm/temperature", b"21.5")
            laptop.subscribe("02")
            await until(lambda: subscriptions_of(server) == 1, "the subscription")
            client.send(Publish("farm/wind", b"5 m/s"))
            assert await laptop.receive() == b"%05d102" % port_of(server, "udp") + b"5 m/s"
            assert await client.receive() == Publish("farm/wind", b"5 m/s")
            assert (stats_of(server).published, stats_of(server).forwarded) == (1, 1)


async def test_a_retained_message_is_the_last_value_of_its_topic() -> None:
    async with node() as server, connected(port_of(server), "client") as client:
        client.send(Publish("farm/wind", b"3 m/s", retain=True), b"\xc0\x00")
        await client.receive()
        with devices(1, port_of(server, "udp")) as (laptop,):
            laptop.subscribe("02")
            assert (await laptop.receive())[5:] == b"1023 m/s"


async def test_a_restarted_node_knows_the_retained_messages(tmp_path: Path) -> None:
    sensors = SensorSettings(TOPICS, udp=LOOPBACK)
    async with running(sensors, data=tmp_path) as server, connected(port_of(server), "client") as client:
        client.send(Publish("farm/wind", b"3 m/s", retain=True, qos=1, packet_id=1))
        await client.receive()
    async with running(sensors, data=tmp_path) as server:
        with devices(1, port_of(server, "udp")) as (laptop,):
            laptop.subscribe("02")
            assert (await laptop.receive())[5:] == b"1023 m/s"


async def test_localhost_serves_both_families() -> None:
    async with running(SensorSettings(TOPICS, udp=(Address("localhost", 0),)), mqtt=()) as server:
        port = port_of(server, "udp")
        if len(server.urls) == 1:
            pytest.skip("this machine has no IPv6")
        assert server.urls == [f"udp://127.0.0.1:{port}", f"udp://[::1]:{port}"]
        with devices(1, port) as (four,), devices(1, port, "::1") as (six,):
            four.subscribe("01")
            six.subscribe("01")
            await until(lambda: subscriptions_of(server) == 2, "the subscriptions")
            packet = six.publish("01", "x")
            assert await four.receive() == await six.receive() == packet


async def test_a_port_in_use_names_the_address_and_the_key() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        server = make_server(Config(**NOWHERE).with_rooms(SensorSettings(udp=(Address("127.0.0.1", port),))))
        with pytest.raises(ConfigError, match=rf"^udp: cannot listen on 127\.0\.0\.1:{port}: .*in use"):
            await server.start()


# What strangers send


async def test_bad_packets_are_counted_and_get_three_lines_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with node() as server:
        with devices(1, port_of(server, "udp")) as (stranger,):
            for data in (b"", b"x", b"1234x101", b"00000101", b"65536001", b"12345901", b"123451zz"):
                for _ in range(10):
                    stranger.send(data)
            for _ in range(10):
                stranger.send(b"12345177")
            await until(lambda: stats_of(server).received == 80, "all of them")
            assert (stats_of(server).malformed, stats_of(server).unknown_topic) == (70, 10)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [
        "sensor packet from 127.0.0.1 dropped: 0 bytes are shorter than the header of 8",
        "sensor packet from 127.0.0.1 dropped: 1 bytes are shorter than the header of 8",
        "sensor packet from 127.0.0.1 dropped: port '1234x' is not five digits"
        "; more from there are only counted for a minute",
    ]


async def test_an_unknown_topic_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with node() as server:
        with devices(1, port_of(server, "udp")) as (stranger,):
            stranger.send(b"12345177")
            await until(lambda: "table; --sensor-topic 77=TOPIC adds it" in caplog.text, "the line")


async def test_the_broker_never_forwards_to_itself() -> None:
    async with node() as server:
        port = port_of(server, "udp")
        with devices(1, port) as (device,):
            device.send(b"%05d001" % port)
            device.publish("01", "x")
            await until(lambda: stats_of(server).published == 1, "the packet")
            assert (stats_of(server).refused, subscriptions_of(server)) == (1, 0)
            device.publish("01", "y")
            await until(lambda: stats_of(server).published == 2, "the next, and no other")
            assert stats_of(server).received == 3


async def test_two_nodes_that_subscribe_to_each_other_send_a_reading_once_to_and_fro() -> None:
    """What forged packets do between two machines, two ports of one do too."""
    async with node() as here, node() as there:
        ports = [port_of(each, "udp") for each in (here, there)]
        with devices(1, ports[0]) as (device,), devices(1, ports[1]) as (other,):
            device.send(b"%05d001" % ports[1])
            other.send(b"%05d001" % ports[0])
            await until(lambda: subscriptions_of(here) + subscriptions_of(there) == 2, "the subscriptions")
            for number in range(1, 4):
                device.publish("01", f"reading {number}")
                await until(lambda number=number: stats_of(here).looped == number, "what comes back")  # type: ignore[misc]
            assert [stats_of(each).published for each in (here, there)] == [3, 3]
            assert [stats_of(each).forwarded for each in (here, there)] == [3, 3]
            assert stats_of(here).received == 1 + 3 + 3


async def test_a_subscriber_that_is_gone_disturbs_nobody() -> None:
    async with node() as server:
        port = port_of(server, "udp")
        with devices(2, port) as (staying, thermometer):
            with devices(1, port) as (leaving,):
                leaving.subscribe("01")
                staying.subscribe("01")
                await until(lambda: subscriptions_of(server) == 2, "the subscriptions")
            for n in range(50):
                packet = thermometer.publish("01", str(n))
                assert await staying.receive() == packet


class FailingSocket(socket.socket):
    failures = 3

    def recvfrom(self, *arguments: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise ConnectionRefusedError(111, "an ICMP error came")
        return super().recvfrom(*arguments)

    def sendto(self, data: Any, *arguments: Any) -> int:
        if data.endswith(b"lost"):
            raise OSError(105, "No buffer space available")
        return super().sendto(data, *arguments)


class FailingSensors(SensorsPart):
    @staticmethod
    def open_socket(host: str, port: int) -> socket.socket:
        return FailingSocket(fileno=SensorsPart.open_socket(host, port).detach())


async def test_an_error_of_the_socket_does_not_end_the_reading(caplog: pytest.LogCaptureFixture) -> None:
    async with node(with_part("sensors", FailingSensors)) as server:
        with devices(2, port_of(server, "udp")) as (laptop, thermometer):
            laptop.subscribe("01")
            thermometer.publish("01", "lost")
            packet = thermometer.publish("01", "found")
            assert await laptop.receive() == packet
            assert stats_of(server).unsent == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_flood_is_limited_and_mqtt_clients_are_served_meanwhile() -> None:
    async with node(rate=10) as server, connected(port_of(server), "client") as client:
        with devices(1, port_of(server, "udp")) as (stranger,):
            for _ in range(20):
                for _ in range(100):
                    stranger.publish("01", "x")
                client.send(b"\xc0\x00")
                await client.receive()
            await until(lambda: stats_of(server).limited > 100, "the limit")
            assert 100 <= stats_of(server).published < 200


async def test_subscriptions_end_by_the_clock() -> None:
    async with node(subscription_expiry_s=0.05) as server:
        with devices(1, port_of(server, "udp")) as (laptop,):
            laptop.subscribe("01")
            await until(lambda: stats_of(server).expired == 1, "the end of the subscription")
            laptop.subscribe("01")
            await until(lambda: stats_of(server).expired == 2, "the end of the next")
            assert subscriptions_of(server) == 0


async def test_a_subscription_without_an_end_lasts() -> None:
    """Beside a node's other timers, which the infinite end must not stop."""
    async with node(subscription_expiry_s=float("inf")) as server:
        with devices(1, port_of(server, "udp")) as (laptop,):
            laptop.subscribe("01")
            await until(lambda: subscriptions_of(server) == 1, "the subscription")
            sensors = part_of(server, SensorsPart)
            sensors.handle_timer(server.clock() + 1e9)
            packet = laptop.publish("01", "x")
            assert await laptop.receive() == packet
            assert (subscriptions_of(server), stats_of(server).expired) == (1, 0)
            assert sensors.deadline < float("inf")


async def test_access_rules_for_clients_without_a_name_hold_for_sensors(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic write farm/temperature\ntopic read farm/wind\n")
    async with running(SensorSettings(TOPICS, udp=LOOPBACK), acl=acl) as server:
        with devices(1, port_of(server, "udp")) as (device,):
            device.subscribe("01")
            device.publish("02", "x")
            await until(lambda: stats_of(server).refused == 2, "the refusals")
            device.subscribe("02")
            device.publish("01", "x")
            await until(lambda: stats_of(server).published == 1, "what is granted")
            assert subscriptions_of(server) == 1
            acl.write_text("topic readwrite farm/#\n")
            server.reload()
            packet = device.publish("02", "y")
            assert await device.receive() == packet


async def test_the_counters_are_among_the_metrics() -> None:
    async with node() as server:
        with devices(1, port_of(server, "udp")) as (device,):
            device.subscribe("01")
            packet = device.publish("01", "x")
            assert await device.receive() == packet
        body = metrics(server)(Request("GET", "/metrics", {})).body.decode()
    assert "hedgerow_sensor_packets_published_total 1.0" in body
    assert "hedgerow_sensor_packets_forwarded_total 1.0" in body
    assert "hedgerow_sensor_subscriptions 1.0" in body


class SmallBuffers(SensorsPart):
    look_at_drops_s = 0.05

    @staticmethod
    def open_socket(host: str, port: int) -> socket.socket:
        opened = SensorsPart.open_socket(host, port)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        return opened


async def test_what_the_system_dropped_is_counted_shown_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with node(with_part("sensors", SmallBuffers), rate=0) as server:
        sensors = part_of(server, SmallBuffers)
        with devices(1, port_of(server, "udp")) as (device,):
            for _ in range(200):  # in one turn of the loop
                device.publish("01", "x" * 100)
        await until(lambda: not _pending(server), "the rest to be read")
        dropped = sensors.overruns
        assert 0 < dropped < 200
        assert sensors.exchange.stats.received == 200 - dropped
        assert sensors.status()["sensors"]["overruns"] == dropped
        body = metrics(server)(Request("GET", "/metrics", {})).body.decode()
        assert f"hedgerow_sensor_packets_overruns_total {dropped}.0" in body
        await until(lambda: f"the system dropped {dropped} datagrams" in caplog.text, "the line")
        assert "sysctl -w net.core.rmem_max=" in caplog.text


async def test_what_has_arrived_when_the_node_stops_is_taken() -> None:
    async with node(rate=0) as server:
        sensors = part_of(server, SensorsPart)
        with devices(1, port_of(server, "udp")) as (device,):
            for _ in range(500):
                device.publish("01", "x")
            await sensors.stop()
        assert sensors.exchange.stats.published == 500


async def test_memory_stays_flat_under_a_flood() -> None:
    async with node(rate=0) as server:
        with devices(1, port_of(server, "udp")) as (stranger,):
            for _ in range(2):
                for n in range(5_000):
                    stranger.send(b"%05d%d%02dx" % (n + 1, n % 2, n % 5))
                    if n % 50 == 0:
                        await asyncio.sleep(0)
                async with asyncio.timeout(PATIENCE_S):
                    await until(lambda: not _pending(server), "the rest to be read")
            exchange = part_of(server, SensorsPart).exchange
            assert 0 < subscriptions_of(server) <= 256
            assert len(exchange.headers) <= 1_024
            assert not exchange.take_events()
            assert not exchange.take_messages()
            assert not exchange.take_datagrams()


def _pending(server: Server) -> bool:
    """Whether datagrams wait in the socket's buffer."""
    lines = Path("/proc/net/udp").read_text().splitlines()
    own = [line for line in lines if line.split()[1].endswith(f":{port_of(server, 'udp'):04X}")]
    assert own
    return any(line.split()[4].rpartition(":")[2] != "00000000" for line in own)  # tx_queue:rx_queue
