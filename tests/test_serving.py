"""`hedgerow.serve`: a node inside a program."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

import hedgerow
from hedgerow_workshop.programs import free_port
from tests.waiting import take


async def test_a_program_talks_to_its_own_node() -> None:
    async with (
        hedgerow.serve(id="barn") as node,
        hedgerow.connect(node.url) as bus,
        bus.subscribe("home/+/status") as messages,
    ):
        await bus.publish("home/vacuum/status", "done")
        assert [message.payload for message in await take(messages, 1)] == [b"done"]
        assert node.id == "barn"
        assert {urlsplit(url).scheme for url in node.urls} == {"mqtt"}  # and no port that others use
        assert node.url == node.urls[0]


async def test_two_nodes_have_ports_and_names_of_their_own() -> None:
    async with hedgerow.serve() as one, hedgerow.serve() as other:
        assert one.id != other.id
        assert not set(one.urls) & set(other.urls)


async def test_it_listens_where_it_is_told_to() -> None:
    port = free_port()
    async with hedgerow.serve(
        mqtt="off", ws="127.0.0.1:0", udp=["127.0.0.1:0"], http=f"127.0.0.1:{port}"
    ) as node:
        assert [urlsplit(url).scheme for url in node.urls] == ["ws", "http", "udp"]
        assert node.url.startswith("ws://127.0.0.1:")
        async with hedgerow.connect(node.url) as bus:
            await bus.publish("a", qos=1)
        page = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/").read())
        assert b"All events of the last hour" in page


async def test_a_node_without_listeners_has_no_url() -> None:
    async with hedgerow.serve(mqtt="off") as node:
        assert node.urls == ()
        with pytest.raises(hedgerow.HedgerowError, match="listens nowhere"):
            _ = node.url


async def test_what_it_keeps_is_there_the_next_time(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with hedgerow.serve(data=data, id="barn") as node, hedgerow.connect(node.url) as bus:
        await bus.publish("a", "kept", qos=1, retain=True)
    async with hedgerow.serve({"data": str(data)}) as node, hedgerow.connect(node.url) as bus:
        assert node.id == "barn"
        assert [message.payload for message in await take(bus.subscribe("a"), 1)] == [b"kept"]


@pytest.mark.parametrize("as_file", [False, True])
async def test_the_configuration_is_that_of_hedgerow_up(tmp_path: Path, as_file: bool) -> None:
    config: Any = {"id": "barn", "limits": {"connections": 1}, "sys.interval": "never"}
    if as_file:
        (tmp_path / "node.toml").write_text(
            'id = "barn"\nsys.interval = "never"\n[limits]\nconnections = 1\n'
        )
        config = tmp_path / "node.toml"
    async with hedgerow.serve(config, id="shed") as node, hedgerow.connect(node.url):
        assert node.id == "shed"
        with pytest.raises(hedgerow.ConnectError):
            await hedgerow.connect(node.url)


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        (None, {"mqtt": "nowhere"}, r'^mqtt: "nowhere" is not "HOST:PORT" or "off"'),
        ({"tls": {"key": Path("/no/such/file")}}, {}, "^tls.key: /no/such/file: No such file"),
        ({"federation.broker": "mqtt://h"}, {}, "^federation.broker: is no key of hedgerow.serve"),
        ({"colour": "red"}, {}, "^colour: there is no such key"),
        ("/no/such/file", {}, "/no/such/file: cannot be read"),
        (None, {"mqtt": "192.0.2.1:1883"}, "192.0.2.1"),
    ],
)  # fmt: skip
async def test_what_cannot_be_meant_is_refused(config: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(hedgerow.ConfigError, match=reason):
        async with hedgerow.serve(config, **options):
            pass


async def test_a_port_that_is_taken_is_named() -> None:
    async with hedgerow.serve() as node:
        port = urlsplit(node.url).port
        with pytest.raises(hedgerow.ConfigError, match=f"{port}"):
            async with hedgerow.serve(mqtt=f"127.0.0.1:{port}"):
                pass


async def test_it_may_be_stopped_before_the_block_ends() -> None:
    async with hedgerow.serve() as node:
        async with hedgerow.connect(node.url, reconnect=False) as bus:
            await node.stop()
            with pytest.raises(hedgerow.ConnectError):
                await bus.wait_closed()
        with pytest.raises(hedgerow.ConnectError):
            await hedgerow.connect(node.url)
