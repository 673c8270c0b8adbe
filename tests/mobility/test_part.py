"""Mobile and fixed brokers of this process, over real sockets: how links come to be, move and end."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.errors import ConfigError
from hedgerow.mobility.config import MobilityConfig
from hedgerow.mobility.links import UNLISTED
from hedgerow.mobility.part import MobilityPart
from hedgerow.mobility.settings import MobileSettings
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.config import Tls
from hedgerow.node.handlers import Request
from hedgerow.node.metrics import metrics
from hedgerow.node.passwords import set_password
from hedgerow.node.server import Server
from hedgerow.node.values import Address
from tests.node.certificates import Authority
from tests.node.peers import LOOPBACK, connected, part_of, port_of, running
from tests.waiting import PATIENCE_S, until

FIXED = MobilityConfig(role="fixed", domain="farm")
EVERYWHERE = (Address("0.0.0.0", 0),)


def url_of(server: Server, scheme: str = "mqtt", **more: Any) -> BrokerUrl:
    return BrokerUrl("127.0.0.1", port_of(server, scheme), scheme == "mqtts", **more)


def supported_by(*servers: Server, **more: Any) -> MobilityConfig:
    return MobilityConfig(role="mobile", domain="farm", fixed=tuple(map(url_of, servers)), **more)


async def linked(mobile: Server, fixed_id: str) -> None:
    def is_linked() -> bool:
        mobile_node = part_of(mobile, MobilityPart).mobile_node
        current = mobile_node.machine.current if mobile_node is not None else None
        return current is not None and current.fixed_id == fixed_id and current.stream.is_open

    await until(is_linked, f"a link to {fixed_id}")


async def test_a_mobile_broker_links_to_the_first_that_answers(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = BrokerUrl("127.0.0.1", nobody.getsockname()[1])
        async with running(FIXED, id="tower") as tower:
            mobility = MobilityConfig(role="mobile", domain="farm", fixed=(away, url_of(tower)))
            async with running(mobility, id="tractor") as tractor:
                await linked(tractor, "tower")
                assert f"no link to the fixed broker at {away}: connection refused" in caplog.text
                assert part_of(tractor, MobilityPart).machine.supporter == f"127.0.0.1:{port_of(tower)}"
                assert tractor.broker.client_role.is_extended
                assert tower.broker.client_role.is_extended
            await until(lambda: not tower.broker.connections, "the end of the link")


async def test_the_link_comes_back_when_the_fixed_broker_does() -> None:
    async with running(FIXED, id="tower") as tower:
        at = (Address("127.0.0.1", port_of(tower)),)
        mobility = supported_by(tower)
        async with running(mobility, id="tractor") as tractor:
            await linked(tractor, "tower")
            await tower.stop()
            async with running(FIXED, id="tower", mqtt=at):
                await linked(tractor, "tower")


@pytest.mark.parametrize(
    ("listens", "told", "where"),
    [
        (LOOPBACK, "", "127.0.0.1:{port}"),
        (EVERYWHERE, "", "127.0.0.1:{port}"),
        (EVERYWHERE, "farm.example:1883", "farm.example:1883"),
        ((), "", "no address"),
    ],
    ids=["one address", "everywhere", "as told", "nowhere"],
)
async def test_the_fixed_broker_is_told_where_clients_reach_the_mobile_one(
    listens: tuple[Address, ...], told: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fixed = replace(FIXED, homes=frozenset({"farm.example:1883"}))
    async with running(fixed, id="tower") as tower:
        mobility = supported_by(tower, settings=MobileSettings((), address=told))
        async with running(mobility, id="tractor", mqtt=listens) as tractor:
            await linked(tractor, "tower")
            where = where.format(port=port_of(tractor) if listens else 0)
            assert f"tractor, whose clients are at {where}, is linked" in caplog.text


async def test_the_file_of_fixed_brokers_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listed = tmp_path / "fixed"
    async with running(FIXED, id="a") as a, running(FIXED, id="b") as b:
        listed.write_text(f"{url_of(a)}\n")
        mobility = MobilityConfig(role="mobile", domain="farm", fixed_file=listed)
        async with running(mobility, id="tractor") as tractor:
            await linked(tractor, "a")
            listed.write_text(f"# a is left\n{url_of(b)}\n")
            tractor.reload()
            await linked(tractor, "b")
            await until(lambda: not a.broker.connections, "a to be left")
            listed.write_text("ws://nowhere\n")
            tractor.reload()
            assert "nothing reloaded: " in caplog.text
            await linked(tractor, "b")


async def test_nobody_goes_on_dialling_one_that_is_not_listed_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It might be answered at any time, even when it is listed again: then there were two links to it."""
    hanging, ended = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.set()
        await reader.read()
        ended.set()
        writer.close()

    # It waits for the answer to its TLS handshake.
    silent = await asyncio.start_server(say_nothing, "127.0.0.1")
    far = f"mqtts://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    listed = tmp_path / "fixed"
    listed.write_text(f"{far}\n")
    mobility = MobilityConfig(role="mobile", domain="farm", fixed_file=listed)
    async with (
        silent,
        running(FIXED, id="tower") as tower,
        running(mobility, id="tractor") as tractor,
    ):
        await until(hanging.is_set, "an attempt that hangs")
        listed.write_text(f"{url_of(tower)}\n")
        tractor.reload()
        await linked(tractor, "tower")
        await until(ended.is_set, "the attempt to be given up")
        assert f"no link to the fixed broker at {far}: {UNLISTED}" in caplog.text


async def test_user_and_password_are_those_of_the_url(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passwords = tmp_path / "passwords"
    set_password(passwords, "mob", b"secret", create=True, iterations=1_000)
    async with running(FIXED, id="tower", passwords=passwords, anonymous=False) as tower:
        async with running(supported_by(tower), id="stranger"):
            await until(
                lambda: f"no link to the fixed broker at {url_of(tower)}: " in caplog.text, "a refusal"
            )
        known = url_of(tower, username="mob", password="secret")
        mobility = MobilityConfig(role="mobile", domain="farm", fixed=(known,))
        async with running(mobility, id="tractor") as tractor:
            await linked(tractor, "tower")
        assert "secret" not in caplog.text


async def test_only_those_who_may_are_supported(caplog: pytest.LogCaptureFixture) -> None:
    choosy = MobilityConfig(role="fixed", domain="farm", allow=frozenset({"tractor"}))
    async with running(choosy, id="tower") as tower, running(id="plain") as plain:
        async with running(supported_by(tower), id="drone"):
            await until(lambda: "no right to delegate" in caplog.text, "the refusal")
        async with running(supported_by(plain), id="drone"):
            refusal = f"no link to the fixed broker at {url_of(plain)}: "
            await until(lambda: refusal in caplog.text, "the refusal of who is no fixed broker")
        async with running(supported_by(tower), id="tractor") as tractor:
            await linked(tractor, "tower")


async def test_over_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    tls = Tls(*authority.issue("tower"))
    async with running(FIXED, id="tower", mqtts=LOOPBACK, tls=tls) as tower:
        url = url_of(tower, "mqtts")
        distrusting = MobilityConfig(role="mobile", domain="farm", fixed=(url,))
        async with running(distrusting, id="tractor"):
            untrusted = f"no link to the fixed broker at {url}: the server's certificate is not trusted"
            await until(lambda: untrusted in caplog.text, "the distrust")
        trusting = MobilityConfig(role="mobile", domain="farm", fixed=(url,), cafile=authority.certificate)
        async with running(trusting, id="tractor") as tractor:
            await linked(tractor, "tower")


async def test_clients_are_sent_to_the_relay_and_pass_through_it() -> None:
    async with running(FIXED, id="tower") as tower:
        mobility = supported_by(tower, relay=Address("127.0.0.1", 0))
        async with running(mobility, id="tractor") as tractor:
            await linked(tractor, "tower")
            relay = part_of(tractor, MobilityPart).relay
            assert relay is not None
            assert part_of(tractor, MobilityPart).machine.supporter == relay.address
            async with connected(int(relay.address.rpartition(":")[2]), "guest"):
                assert "guest" in tower.broker.sessions
                assert "guest" not in tractor.broker.sessions
                seen = metrics(tractor)(Request("GET", "/metrics", {})).body.decode()
                assert "hedgerow_mobility_relayed_connections 1.0" in seen
                assert "hedgerow_mobility_delegated_filters 0.0" in seen
                assert "hedgerow_mobility_refused_total 0.0" in seen
                async with asyncio.timeout(PATIENCE_S):
                    await tractor.stop()
                assert not tractor.open_sockets


async def test_it_stops_while_it_dials() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)  # The kernel answers, and nobody says CONNACK.
        url = BrokerUrl("127.0.0.1", silent.getsockname()[1])
        mobility = MobilityConfig(role="mobile", domain="farm", fixed=(url,))
        async with running(mobility, id="tractor") as tractor:
            await until(lambda: tractor.open_sockets == 1, "the link to be opened")
        assert not tractor.open_sockets


async def test_a_relay_that_cannot_listen_leaves_nothing_behind() -> None:
    async with running() as taken:
        at = Address("127.0.0.1", port_of(taken))
        mobility = supported_by(taken, relay=at)
        with pytest.raises(ConfigError, match="relay: cannot listen on .* the port is in use"):
            async with running(mobility, id="tractor"):
                pass
