"""SIGHUP: what a running node reads again, what it says of that, and that nobody loses their connection."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from hedgerow.bridges.commands import STATE_PREFIX
from hedgerow.cli.up import raise_file_limit
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import (
    CONNACK,
    MQTT_5,
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Subscribe,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.passwords import delete_user, set_password
from tests.cli.serving import Serving
from tests.node.certificates import Authority
from tests.node.peers import raw_client
from tests.waiting import until

TLS_CLIENTS = 1000

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Node:
    """`hedgerow up --config FILE`, whose file changes."""

    def __init__(self, directory: Path, running: ExitStack, text: str) -> None:
        self.file = directory / "node.toml"
        self.file.write_text(text)
        self.serving = Serving(directory, "up", "--config", str(self.file))
        running.callback(self.serving.end)
        self.serving.wait()
        self._reloads = 0

    def port(self, scheme: str = "mqtt") -> int:
        found = re.search(rf"listening {scheme}://127.0.0.1:(\d+)", self.serving.output)
        assert found is not None
        return int(found[1])

    @property
    def log(self) -> str:
        return self.serving.log

    async def reload(self, text: str | None = None, says: str = "reloaded") -> str:
        """What the log has of it."""
        if text is not None:
            self.file.write_text(text)
        before = len(self.log)
        self.serving.process.send_signal(signal.SIGHUP)
        await until(lambda: says in self.log[before:] and self.log.endswith("\n"), f"{says!r} in the log")
        return self.log[before:]


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def connect(port: int, context: ssl.SSLContext, client_id: str) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(encode(Connect(client_id), MQTT_5))
    assert (await reader.read(100))[0] >> 4 == CONNACK
    return reader, writer


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


def base(mqtt: str = '"127.0.0.1:0"') -> str:
    return f'id = "n"\nmqtt = {mqtt}\nws = "off"\nhttp = "off"\n'


async def test_a_new_certificate_and_authority_without_losing_a_connection(
    tmp_path: Path, running: ExitStack
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = Authority(tmp_path / "old", "Old"), Authority(tmp_path / "new", "New")
    shown, key, trusted = (tmp_path / name for name in ("shown.pem", "shown.key", "trusted.pem"))

    def put(authority: Authority) -> None:
        certificate, private = authority.issue("server")
        shown.write_bytes(certificate.read_bytes())
        key.write_bytes(private.read_bytes())
        trusted.write_bytes(authority.certificate.read_bytes())

    put(old)
    raise_file_limit()
    node = Node(
        tmp_path,
        running,
        base('"off"')
        + 'mqtts = "127.0.0.1:0"\nlimits.connects_per_s = 0\n[tls]\nrequire_client_certificate = true\n'
        + f'certificate = "{shown}"\nkey = "{key}"\nclient_ca = "{trusted}"\n',
    )
    port, context = node.port("mqtts"), old.client_context("client")
    async with asyncio.timeout(60):
        streams = [await connect(port, context, f"client-{number}") for number in range(TLS_CLIENTS)]
    try:
        put(new)
        said = await node.reload()
        assert "tls.certificate (its file), tls.key (its file), tls.client_ca (its file)" in said
        for _, writer in streams:
            writer.write(encode(Pingreq(), MQTT_5))
        for reader, _ in streams:
            assert await reader.read(100) == encode(Pingresp(), MQTT_5)
        async with raw_client(port, context=new.client_context("client")) as client:
            client.send(Connect("another"))
            assert isinstance(await client.receive(), Connack)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)
        # Who shows a certificate of the old authority is told, by an alert.
        context.load_verify_locations(new.certificate)
        with pytest.raises(ssl.SSLError, match="unknown ca"):
            await connect(port, context, "old")
    finally:
        await asyncio.gather(*(close(writer) for _, writer in streams))


async def test_settings_of_the_file_and_what_waits_for_a_restart(tmp_path: Path, running: ExitStack) -> None:
    rules, users = tmp_path / "rules", tmp_path / "users"
    rules.write_text("topic readwrite #\n")
    set_password(users, "ada", b"a", iterations=1000, create=True)
    set_password(users, "bob", b"b", iterations=1000)
    more = f'[access]\npasswords = "{users}"\nacl = "{rules}"\n'
    node = Node(tmp_path, running, base() + more)
    async with raw_client(node.port()) as ada, raw_client(node.port()) as bob:
        for client, name in ((ada, "ada"), (bob, "bob")):
            client.send(Connect(name, username=name, password=name[0].encode()))
            assert isinstance(await client.receive(), Connack)

        said = await node.reload()
        assert "configuration and files reloaded; nothing has changed" in said

        delete_user(users, "bob")
        rules.write_text("user ada\ntopic read #\n")
        said = await node.reload(
            base('"127.0.0.1:1"')
            + 'sys.interval = "1 s"\nlog.level = "debug"\n'
            + "limits.connections = 1\nlimits.packet_bytes = 1000\n"
            + more
        )
        for changed in (
            "log.level (the default, now debug)",
            "limits.connections (10000, now 1)",
            "access.passwords (its file)",
            "access.acl (its file)",
        ):
            assert changed in said
        for waiting in ("mqtt", "sys.interval", "limits.packet_bytes"):
            assert f"warning  {waiting}: changed, takes effect after a restart" in said
        assert "the user is gone" in node.log
        ada.send(Publish("a", b"1", 1, packet_id=1))
        answer = await ada.receive()
        assert isinstance(answer, Puback)
        assert answer.reason_code == Reason.NOT_AUTHORIZED
        async with raw_client(node.port()) as third:
            third.send(Connect("third", username="ada", password=b"a"))
            refused = await third.receive()
            assert isinstance(refused, Connack)
            assert refused.reason_code == Reason.SERVER_BUSY

        said = await node.reload()
        assert "nothing has changed" in said
        assert "mqtt: changed, takes effect after a restart" in said  # until then


async def test_what_is_wrong_leaves_all_as_it_was(tmp_path: Path, running: ExitStack) -> None:
    node = Node(tmp_path, running, base())
    said = await node.reload(base() + 'log.level = "debug"\nlimits.nonsense = 1\n', "nothing reloaded")
    assert f"{node.file}:6: limits.nonsense: there is no such key" in said
    assert "debug" not in node.log.replace(said, "")
    async with raw_client(node.port()) as client:
        client.send(Connect("c"))
        assert isinstance(await client.receive(), Connack)


async def test_passwords_that_were_not_there_wait_and_let_nobody_else_in(
    tmp_path: Path, running: ExitStack
) -> None:
    users = tmp_path / "users"
    set_password(users, "ada", b"a", iterations=1000, create=True)
    with_users = f'access.passwords = "{users}"\n'
    node = Node(tmp_path, running, base() + with_users)
    said = await node.reload(base())
    assert "access.passwords: changed, takes effect after a restart" in said
    async with raw_client(node.port()) as client:
        client.send(Connect("c"))
        answer = await client.receive()
        assert isinstance(answer, Connack)
        assert answer.reason_code == Reason.NOT_AUTHORIZED


async def test_bridges_come_change_and_go(tmp_path: Path, running: ExitStack) -> None:
    bridges = tmp_path / "bridges.conf"

    def section(name: str, topic: str) -> str:
        return f"connection {name}\naddress 127.0.0.1:1\ntopic {topic} out 1\n"

    bridges.write_text(section("steady", "a") + section("changing", "b") + section("going", "c"))
    node = Node(tmp_path, running, base() + f'bridges = "{bridges}"\n')
    bridges.write_text(section("steady", "a") + section("changing", "d") + section("coming", "e"))
    said = await node.reload()
    assert "changed: bridges (its file)" in said
    assert await states(node) == {"steady": "a out 1", "changing": "d out 1", "coming": "e out 1"}


async def states(node: Node) -> dict[str, str]:
    """The bridges that there are, and the topic of each."""
    found: dict[str, str] = {}
    async with raw_client(node.port()) as client:
        client.send(Connect("c"), Subscribe(1, [Subscription(f"{STATE_PREFIX}+/state")]), Pingreq())
        while not isinstance(packet := await client.receive(), Pingresp):
            if isinstance(packet, Publish):
                name = packet.topic.removeprefix(STATE_PREFIX).partition("/")[0]
                found[name] = json.loads(packet.payload)["topics"][0]
    return found
