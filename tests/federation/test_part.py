"""Federated nodes of this process, over real sockets: how links come to be and end, and what people see."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hedgerow.federation.config import FederationConfig
from hedgerow.federation.part import FederationPart
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.config import Tls
from hedgerow.node.handlers import Request
from hedgerow.node.metrics import metrics
from hedgerow.node.server import Server
from tests.faults.client import PersistentClient
from tests.faults.client import running as clients
from tests.faults.federated import AT_ONCE_S, KEY, linked, neighbours
from tests.node.certificates import Authority
from tests.node.peers import LOOPBACK, part_of, port_of, running
from tests.waiting import until

OPEN = FederationConfig(enabled=True)


def url_of(server: Server, scheme: str = "mqtt") -> BrokerUrl:
    return BrokerUrl("127.0.0.1", port_of(server, scheme), scheme == "mqtts")


def linking(*servers: Server, **more: Any) -> FederationConfig:
    return FederationConfig(neighbours=tuple(map(url_of, servers)), **more)


async def test_the_file_beyond_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listed = tmp_path / "neighbours"
    async with running(OPEN, id="b") as b, running(OPEN, id="c") as c:
        listed.write_text(f"{url_of(b)}\n")
        async with running(FederationConfig(neighbours_file=listed), id="a") as a:
            await linked(a, b)
            listed.write_text(f"# b is gone\n{url_of(c)}\n")
            a.reload()
            await linked(a, c)
            await until(lambda: not neighbours(b), "b to be left")
            listed.write_text("ws://nowhere\n")
            a.reload()
            assert "nothing reloaded: " in caplog.text
            assert "neighbours:1: ws://nowhere" in caplog.text
            assert neighbours(a) == {"c"}


async def test_a_node_that_stops_tells_its_neighbours() -> None:
    """Those that it dialled, and those that dialled it."""
    async with (
        running(OPEN, id="a") as a,
        running(linking(a), id="b") as b,
        running(linking(b), id="c") as c,
    ):
        await linked(a, b, c)
        async with asyncio.timeout(AT_ONCE_S):
            await b.stop()
            await until(lambda: not neighbours(a) and not neighbours(c), "its loss")


async def test_a_node_without_a_certificate_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    tls = Tls(*authority.issue("acceptor"), authority.certificate, require_client_certificate=True)
    certificate, key = authority.issue("member")
    async with running(OPEN, id="acceptor", mqtts=LOOPBACK, tls=tls) as acceptor:
        stranger = FederationConfig(neighbours=(url_of(acceptor, "mqtts"),), cafile=authority.certificate)
        async with running(stranger, id="stranger"):
            refusal = "mqtts connection from 127.0.0.1 closed: peer did not return a certificate"
            await until(lambda: refusal in caplog.text, "the refusal at the acceptor")
            await until(lambda: f"no link to {url_of(acceptor, 'mqtts')}: " in caplog.text, "the dialler's")
            assert not neighbours(acceptor)
        member = FederationConfig(
            neighbours=(url_of(acceptor, "mqtts"),),
            cafile=authority.certificate,
            certfile=certificate,
            keyfile=key,
        )
        async with running(member, id="member") as in_it:
            await linked(in_it, acceptor)


@pytest.mark.parametrize("wrong", [None, b"x" * 32], ids=["without a key", "with another key"])
async def test_a_node_that_has_not_the_key_is_refused_and_named(
    wrong: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(FederationConfig(enabled=True, key=KEY), id="a") as a,
        running(linking(a, key=wrong), id="stranger") as stranger,
    ):
        await until(lambda: "'stranger' is refused: " in caplog.text, "the refusal")
        async with running(linking(a, key=KEY), id="member") as member:
            await linked(a, member)
        assert not neighbours(stranger)


def read_metrics(server: Server) -> dict[tuple[str, ...], float]:
    """By name, without hedgerow_federation_, and labels in the order of their names."""
    text = metrics(server)(Request("GET", "/metrics", {})).body.decode()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    prefix = "hedgerow_federation_"
    return {
        (each.name.removeprefix(prefix), *each.labels.values()): each.value
        for each in samples
        if each.name.startswith(prefix)
    }


async def test_what_people_see(tmp_path: Path) -> None:
    async with (
        running(OPEN, id="a") as a,
        running(linking(a), id="b", data=tmp_path) as b,
    ):
        await linked(a, b)
        near = PersistentClient(port_of(a), "near", subscriptions=(("field/#", 1),))
        far = PersistentClient(port_of(b), "far")
        async with clients(near, far):
            await until(lambda: near.is_connected and far.is_connected, "the clients")
            far.publish("field/1", b"31", 1)
            await until(lambda: near.arrived["field/1"] == [b"31"] and not far.outgoing, "a message")
        found = read_metrics(b)
        assert found["neighbours",] == 1
        assert 0 < found["round_trip_seconds", "a"] < 1
        assert found["messages_published_total", "out", "a"] == 1
        assert found["packets_total", "in", "CORE_ANN"] >= 1
        assert found["overlay_packets_ignored_total", "malformed"] == 0
        assert read_metrics(a)["messages_relayed_total", "in", "b"] == 1
        await until(lambda: read_metrics(b)["queued_messages", "a"] == 0, "the acknowledgement")
        assert read_metrics(b)["messages_relayed_total", "out", "a"] == 1
        await a.stop()
        await until(lambda: not neighbours(b), "the end of a")
        async with clients(far):
            far.publish("field/1", b"32", 1)
            await until(lambda: not far.outgoing, "the acknowledgement")
        found = read_metrics(b)
        assert found["queued_messages", "a"] == 1
        assert found["queued_bytes", "a"] > 0
        assert found["neighbours",] == 0


async def test_nothing_is_kept_for_a_neighbour_that_asks_for_nothing() -> None:
    """As a dashboard does: it wants to hear everything, and while it is closed nobody is to pay for that."""
    async with running(OPEN, mqtt=LOOPBACK, id="a") as a:
        async with running(linking(a, keep_s=0.0), id="looker") as looker:
            await linked(a, looker)
            looker.broker.subscriptions.reserve("#")
            looker.flush()
            await until(lambda: "#" in a.broker.subscriptions.beyond.counts, "its wish")
        await until(lambda: not part_of(a, FederationPart).machine.neighbour_sessions(), "its end")
        assert "#" not in a.broker.subscriptions.local.counts
