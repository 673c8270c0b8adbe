"""Bridges between nodes of this process, over real sockets: made by publications and by files."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hedgerow.bridges.config import BridgesConfig
from hedgerow.bridges.part import BridgesPart
from hedgerow.errors import ConfigError
from hedgerow.message import Properties
from hedgerow.mqtt.packets import MQTT_5, Puback, Publish
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.config import Tls
from hedgerow.node.handlers import Request
from hedgerow.node.metrics import metrics
from hedgerow.node.passwords import set_password
from hedgerow.node.server import Server
from hedgerow.node.values import Address
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.programs import free_port
from tests.faults.client import PersistentClient
from tests.faults.client import running as clients
from tests.node.certificates import Authority
from tests.node.peers import LOOPBACK, connected, part_of, port_of, running
from tests.waiting import until

NEW, DELETE = "$SYS/broker/bridge/new", "$SYS/broker/bridge/del"
RESULT = "$SYS/broker/bridge/result"
STATE = "$SYS/broker/bridge/north/state"
SECRET = "open-sesame"


def section(*addresses: int | str, more: tuple[str, ...] = ()) -> str:
    where = " ".join(each if isinstance(each, str) else f"127.0.0.1:{each}" for each in addresses)
    lines = ["connection north", f"address {where}", "restart_timeout 0.05 0.2", *more]
    if not any(line.startswith("topic ") for line in more):
        lines.append("topic # both 1")
    return "\n".join([*lines, ""])


def add_user(users: Path, name: str, password: str) -> None:
    set_password(users, name, password.encode(), iterations=1000, create=not users.exists())


class Watcher(PersistentClient):
    """A client at one node, who hears everything there."""

    def __init__(self, server: Server, name: str = "watcher", **login: Any) -> None:
        super().__init__(port_of(server), name, subscriptions=(("#", 1), ("$SYS/#", 1)), **login)

    def command(self, topic: str, text: str) -> None:
        self.publish(topic, text.encode(), 1)

    @property
    def results(self) -> list[dict[str, Any]]:
        return [json.loads(payload) for payload in self.arrived[RESULT]]

    @property
    def state(self) -> dict[str, Any]:
        states = self.arrived[STATE]
        found: dict[str, Any] = json.loads(states[-1]) if states and states[-1] else {}
        return found

    async def is_up(self) -> None:
        await until(lambda: self.state.get("state") == "up", "the bridge to be up")


class PacketWatcher(Watcher):
    def __init__(self, server: Server, **login: Any) -> None:
        super().__init__(server, **login)
        self.packets: list[Publish] = []

    def handle_publish(self, packet: Publish) -> None:
        self.packets.append(packet)
        super().handle_publish(packet)


@asynccontextmanager
async def watching(*servers: Server, **login: Any) -> AsyncIterator[list[Watcher]]:
    made = [Watcher(server, **login) for server in servers]
    async with clients(*made):
        await until(lambda: all(each.is_connected for each in made), "the watchers")
        yield made


async def flows(here: PersistentClient, there: PersistentClient, name: str = "flow") -> None:
    """A message each way, once."""
    here.publish(f"{name}/out", b"1", 1)
    there.publish(f"{name}/in", b"1", 1)
    both = there.arrived[f"{name}/out"], here.arrived[f"{name}/in"]
    await until(lambda: all(both), "a message each way")
    assert there.arrived[f"{name}/out"] == here.arrived[f"{name}/in"] == [b"1"]


async def test_a_publication_creates_a_bridge_and_another_deletes_it() -> None:
    async with running(id="here") as here, running(id="there") as there, watching(here, there) as (near, far):
        near.command(NEW, section(port_of(there)))
        await near.is_up()
        assert near.results == [{"command": "new", "connection": "north", "ok": True, "reason": "created"}]
        assert (near.state["far"], near.state["protocol"], near.state["topics"]) == ("there", 5, ["# both 1"])
        assert near.state["address"] == f"127.0.0.1:{port_of(there)}"
        await flows(near, far)
        near.command(DELETE, "north")
        await until(lambda: near.arrived[STATE][-1] == b"", "the state to be gone")
        assert near.results[-1] == {"command": "del", "connection": "north", "ok": True, "reason": "deleted"}
        await until(lambda: "here.north" not in there.broker.sessions, "the far session to be gone")
        near.publish("later", b"1", 1)
        far.publish("later", b"2", 1)
        await until(lambda: not near.outgoing and not far.outgoing, "the acknowledgements")
        assert (near.arrived["later"], far.arrived["later"]) == ([b"1"], [b"2"])


async def test_the_outcome_goes_to_the_response_topic() -> None:
    async with running() as here, watching(here) as (near,), connected(port_of(here), "commander") as client:
        properties: Properties = {"response_topic": "answers/1", "correlation_data": b"17"}
        client.send(Publish(DELETE, b"nobody", 1, packet_id=1, properties=properties))
        await until(lambda: bool(near.arrived["answers/1"] and near.results), "the answers")
        expected = {
            "command": "del",
            "connection": "nobody",
            "ok": False,
            "reason": "there is no bridge nobody",
        }
        assert json.loads(near.arrived["answers/1"][0]) == near.results[0] == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("connection north\naddress 127.0.0.1\ntopic # sideways\n", 'line 3: topic: "sideways" is none of'),
        ("connection north\naddress 127.0.0.1\ncolour red\n", "colour"),
        ("", "connection"),
    ],
)
async def test_what_cannot_be_read_is_refused_and_changes_nothing(text: str, reason: str) -> None:
    async with running() as here, watching(here) as (near,):
        near.command(NEW, text)
        await until(lambda: bool(near.results), "the outcome")
        assert near.results[0]["ok"] is False
        assert reason in near.results[0]["reason"]
        assert not near.arrived[STATE]


async def test_an_unspecified_address_is_oneself() -> None:
    async with running() as here, watching(here) as (near,):
        for number, host in enumerate(("0.0.0.0", "0x7f000001", "::ffff:0.0.0.0"), 1):
            near.command(NEW, section(f"{host}:{here.listening[0][1]}"))
            await until(lambda number=number: len(near.results) == number, "the outcome")  # type: ignore[misc]
            assert near.results[-1]["ok"] is False
            assert "is this node itself" in near.results[-1]["reason"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.2", "0x7f000001"])
async def test_a_bridge_to_oneself_is_refused(host: str) -> None:
    everywhere = (Address("::1", 0),) if ":" in host else (Address("0.0.0.0", 0),)
    if ":" in host and not _has_ipv6():
        pytest.skip("no IPv6 on loopback")
    async with running(mqtt=(*LOOPBACK, *everywhere)) as here, watching(here) as (near,):
        port = next(port for bound, port in here.listening if bound == everywhere[0].host)
        near.command(NEW, section(f"{host}:{port}"))
        await until(lambda: bool(near.results), "the outcome")
        assert near.results[0]["ok"] is False
        assert "is this node itself" in near.results[0]["reason"]


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def test_who_may_command(tmp_path: Path) -> None:
    users, acl = tmp_path / "users", tmp_path / "acl"
    for name in ("ada", "bob", "eve"):
        add_user(users, name, "pw")
    acl.write_text(
        "topic readwrite #\nuser bob\ntopic readwrite $SYS/broker/bridge/#\nuser eve\ntopic readwrite #\n"
    )
    settings: dict[str, Any] = {"passwords": users, "acl": acl, "administrators": frozenset({"ada"})}
    async with running(**settings) as here:
        for user, may in (("ada", True), ("bob", True), ("eve", False), (None, False)):
            login = {"username": user, "password": b"pw"} if user else {}
            async with connected(port_of(here), f"by-{user}", **login) as client:
                client.send(Publish(DELETE, b"nobody", 1, packet_id=1))
                answer = await client.receive()
                assert isinstance(answer, Puback)
                assert (answer.reason_code == Reason.NOT_AUTHORIZED) is not may, user


async def test_without_rules_a_client_of_this_machine_may_command() -> None:
    async with running() as here, connected(port_of(here)) as client:
        client.send(Publish(DELETE, b"nobody", 1, packet_id=1))
        answer = await client.receive()
        assert isinstance(answer, Puback)
        assert answer.reason_code != Reason.NOT_AUTHORIZED


async def test_passwords_are_told_to_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor is the command itself delivered, which holds them."""
    users = tmp_path / "users"
    add_user(users, "bridge", SECRET)
    caplog.set_level("DEBUG")
    login = ("remote_username bridge", f"remote_password {SECRET}")
    async with (
        running(data=tmp_path / "data") as here,
        running(passwords=users, anonymous=False) as there,
        watching(here) as (near,),
        watching(there, username="bridge", password=SECRET) as (far,),
    ):
        near.command(NEW, section(port_of(there), more=login))
        await near.is_up()
        near.command(NEW, section(port_of(there), more=login))  # refused: the name is in use
        near.command(NEW, section(port_of(there), more=(*login, "colour red")))
        await until(lambda: len(near.results) == 3, "the outcomes")
        await flows(near, far)
        assert not near.arrived[NEW]
        for client in (near, far):
            for topic, payloads in client.arrived.items():
                assert not [each for each in payloads if SECRET.encode() in each], topic
    assert SECRET not in caplog.text


async def test_a_wrong_password_is_said_in_the_state(tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(users, "bridge", "right")
    async with (
        running() as here,
        running(passwords=users, anonymous=False) as there,
        watching(here) as (near,),
    ):
        near.command(NEW, section(port_of(there), more=("remote_username bridge", "remote_password wrong")))
        await until(lambda: "refused the connection" in near.state.get("reason", ""), "the reason")
        assert near.state["state"] != "up"


async def test_a_bridge_survives_a_restart_of_its_node(tmp_path: Path) -> None:
    async with running(id="there") as there, watching(there) as (far,):
        async with running(data=tmp_path, id="here") as here, watching(here) as (near,):
            near.command(NEW, section(port_of(there)))
            await near.is_up()
        async with running(data=tmp_path) as here, watching(here) as (near,):
            await near.is_up()
            await flows(near, far)
            near.command(DELETE, "north")
            await until(lambda: near.arrived[STATE][-1] == b"", "the state to be gone")
        async with running(data=tmp_path) as here:
            assert "north" not in part_of(here, BridgesPart).bridges


async def test_what_waits_survives_a_restart_of_the_node(tmp_path: Path) -> None:
    port = free_port()
    async with running(data=tmp_path, id="here") as here, watching(here) as (near,):
        near.command(NEW, section(port))
        await until(lambda: bool(near.results), "the outcome")
        for number in range(20):
            near.publish("kept", b"%d" % number, 1)
        await until(lambda: not near.outgoing, "the acknowledgements")
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(running(mqtt=(Address("127.0.0.1", port),)))
        (far,) = await stack.enter_async_context(watching(there))
        await stack.enter_async_context(running(data=tmp_path))
        await until(lambda: len(far.arrived["kept"]) >= 20, "what waited")
        assert far.arrived["kept"] == [b"%d" % number for number in range(20)]


async def test_bridges_of_files(tmp_path: Path) -> None:
    file = tmp_path / "bridges.conf"
    async with running() as there, watching(there) as (far,):
        file.write_text(section(port_of(there)))
        async with running(BridgesConfig((file,))) as here, watching(here) as (near,):
            await near.is_up()
            await flows(near, far)
    file.write_text("connection north\naddress nowhere.invalid\ntopic # sideways\n")
    with pytest.raises(ConfigError, match="bridges.conf:3"):
        async with running(BridgesConfig((file,))):
            pass


async def test_tls_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    tls = Tls(certificate, key)
    async with (
        running(mqtt=LOOPBACK, mqtts=LOOPBACK, tls=tls) as there,
        running() as here,
        watching(here, there) as (near, far),
    ):
        near.command(NEW, section(port_of(there, "mqtts"), more=(f"bridge_cafile {authority.certificate}",)))
        await near.is_up()
        await flows(near, far)


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    certificate, key = Authority(tmp_path).issue("server")
    other = Authority(tmp_path / "other").certificate
    async with (
        running(mqtts=LOOPBACK, tls=Tls(certificate, key)) as there,
        running() as here,
        watching(here) as (near,),
    ):
        near.command(NEW, section(port_of(there, "mqtts"), more=(f"bridge_cafile {other}",)))
        await until(lambda: "certificate" in near.state.get("reason", ""), "the reason")
        assert near.state["state"] != "up"


async def test_the_address_to_connect_from() -> None:
    async with running() as there, running() as here, watching(here) as (near,):
        near.command(NEW, section(port_of(there), more=("bridge_bind_address 127.0.0.3",)))
        await near.is_up()
        addresses = [each.address for each in there.broker.connections]
        assert any(address.startswith("127.0.0.3") for address in addresses), addresses


async def test_the_next_address_when_the_first_is_dead() -> None:
    async with running() as there, running() as here, watching(here, there) as (near, far):
        near.command(NEW, section(free_port(), port_of(there)))
        await near.is_up()
        assert near.state["address"] == f"127.0.0.1:{port_of(there)}"
        await flows(near, far)


async def test_a_far_broker_that_comes_late_is_found() -> None:
    port = free_port()
    async with running() as here, watching(here) as (near,):
        near.command(NEW, section(port))
        await until(lambda: near.state.get("state") == "waiting", "the bridge to wait")
        assert near.state["reason"]
        near.publish("early", b"1", 1)
        # It is found when somebody subscribes there already, who would miss what waited otherwise.
        async with (
            running() as there,
            watching(there) as (far,),
            Link(("127.0.0.1", port), ("127.0.0.1", port_of(there))),
        ):
            await near.is_up()
            await until(lambda: far.arrived["early"] == [b"1"], "what waited")


async def test_ordinary_clients_see_no_ids() -> None:
    async with running() as there, running() as here, watching(here) as (near,):
        far = PacketWatcher(there, version=MQTT_5)
        async with clients(far):
            await until(lambda: far.is_connected, "the watcher")
            near.command(NEW, section(port_of(there)))
            await near.is_up()
            await flows(near, far)
        assert far.packets
        assert not [packet for packet in far.packets if "user_property" in packet.properties]


async def test_a_node_that_stops_gives_up_an_attempt_to_connect(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never speaks TLS
        more = (f"bridge_cafile {Authority(tmp_path).certificate}",)
        async with running() as here, watching(here) as (near,):
            near.command(NEW, section(silent.getsockname()[1], more=more))
            await until(lambda: near.state.get("state") == "connecting", "the attempt")
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def read_samples(server: Server) -> dict[tuple[str, ...], float]:
    """By name, without hedgerow_bridge_, and labels."""
    text = metrics(server)(Request("GET", "/metrics", {})).body.decode()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {
        (each.name.removeprefix("hedgerow_bridge_"), *each.labels.values()): each.value for each in samples
    }


async def test_the_metrics_tell_what_flowed_and_what_waits() -> None:
    away = free_port()
    async with running() as far, running() as near, watching(far, near) as (there, here):
        here.command(NEW, section(port_of(far), more=("topic a/# both 1",)))
        await here.is_up()
        await flows(here, there, "a/flow")
        here.command(NEW, f"connection south\naddress 127.0.0.1:{away}\ntopic b/# out 1\n")
        await until(lambda: len(here.results) == 2, "the second bridge")
        here.publish("b/one", b"12345", 1)
        here.publish("b/none", b"", 0)
        north, south = part_of(near, BridgesPart).bridges.kept
        await until(lambda: south.ledger.published == 2, "the messages")
        await until(lambda: not north.session.waiting_count, "the far broker's acknowledgement")
        near.broker.duplicates.forgotten = 7
        found = read_samples(near)
    assert (found["up", "north"], found["up", "south"]) == (1.0, 0.0)
    assert (found["queued_messages", "north"], found["queued_messages", "south"]) == (0.0, 1.0)
    assert found["queued_bytes", "south"] >= 5
    assert found["hedgerow_ids_forgotten_total",] == 7.0
    assert found["messages_relayed_total", "north", "out"] >= 1.0
    assert found["messages_relayed_total", "north", "in"] >= 1.0
    assert found["messages_dropped_total", "south", "out", "away"] == 1.0
    for direction, counts in south.ledgers().items():
        told = {key[3] for key in found if key[0] == "messages_dropped_total" and key[2] == direction}
        assert told == counts.keys() - {"published", "relayed", "waiting", "dropped_there"}
