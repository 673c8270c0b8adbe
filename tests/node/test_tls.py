"""TLS listeners: who gets in, as whom, and how failures end."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from hedgerow.broker.limits import Limits
from hedgerow.errors import ConfigError
from hedgerow.mqtt.packets import Connack, Connect, Disconnect
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.config import Tls
from hedgerow.node.tls import server_context
from tests.node.certificates import Authority
from tests.node.peers import LOOPBACK, port_of, raw_client, running
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_tls(authority: Authority, **options: Any) -> Tls:
    certificate, key = authority.issue("server")
    return Tls(certificate, key, authority.certificate if options else None, **options)


async def test_mqtt_over_tls(authority: Authority) -> None:
    async with running(mqtts=LOOPBACK, tls=server_tls(authority)) as server:
        assert server.urls == [f"mqtts://127.0.0.1:{port_of(server, 'mqtts')}"]
        async with raw_client(port_of(server, "mqtts"), context=authority.client_context()) as client:
            client.send(Connect("client"))
            assert isinstance(await client.receive(), Connack)


async def test_tls_1_1_is_refused(authority: Authority) -> None:
    context = authority.client_context()
    with pytest.warns(DeprecationWarning, match=r"TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with running(mqtts=LOOPBACK, tls=server_tls(authority)) as server:
        # By an alert, or by the reset that overtakes it with some versions of OpenSSL.
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            async with raw_client(port_of(server, "mqtts"), context=context):
                pass


async def test_the_last_packet_arrives_although_input_is_left_unread(authority: Authority) -> None:
    async with running(mqtts=LOOPBACK, tls=server_tls(authority)) as server:
        async with raw_client(port_of(server, "mqtts"), context=authority.client_context()) as client:
            client.send(Connect("client"), b"\xf7\x00", b"\0" * 1_000_000)
            assert isinstance(await client.receive(), Connack)
            answer = await client.receive()
            assert isinstance(answer, Disconnect)
            assert answer.reason_code == Reason.MALFORMED_PACKET
            assert await client.closed()
        await until(lambda: server.open_sockets == 0, "the socket to close")


async def test_a_client_certificate_is_a_name(authority: Authority) -> None:
    tls = server_tls(authority, require_client_certificate=True, use_identity_as_username=True)
    context = authority.client_context("tractor")
    async with (
        running(mqtts=LOOPBACK, tls=tls, anonymous=False) as server,
        raw_client(port_of(server, "mqtts"), context=context) as client,
    ):
        client.send(Connect("client"))
        answer = await client.receive()
        assert isinstance(answer, Connack)
        assert answer.reason_code == 0
        assert server.broker.sessions["client"].username == "tractor"


async def test_an_optional_certificate_may_be_missing_but_not_wrong(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "stranger").mkdir()
    stranger = Authority(tmp_path / "stranger", "Another Authority")
    tls = server_tls(authority, use_identity_as_username=True)
    async with running(mqtts=LOOPBACK, tls=tls) as server:
        port = port_of(server, "mqtts")
        async with raw_client(port, context=authority.client_context()) as client:
            client.send(Connect("nameless"))
            assert isinstance(await client.receive(), Connack)
            assert server.broker.sessions["nameless"].username is None
        context = authority.client_context()
        context.load_cert_chain(*stranger.issue("tractor"))
        async with raw_client(port, context=context) as client:
            client.send(Connect("impostor"))
            assert await client.closed()  # with TLS 1.3 the client learns of it at its first read
        assert "impostor" not in server.broker.sessions


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b""])
async def test_what_is_not_tls_is_one_line_in_the_log(
    authority: Authority, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    caplog.set_level(logging.INFO)
    async with running(mqtts=LOOPBACK, tls=server_tls(authority)) as server:
        async with raw_client(port_of(server, "mqtts")) as client:
            client.writer.write(sent)
            client.writer.write_eof()
            await client.reader.read()
        await until(lambda: bool(caplog.records), "a line in the log")
    (line,) = caplog.records
    assert line.exc_info is None
    assert line.getMessage().startswith("mqtts connection from 127.0.0.1 closed: ")


async def test_a_handshake_that_stalls_is_ended(authority: Authority) -> None:
    limits = Limits(connect_timeout_s=0.2)
    async with (
        running(mqtts=LOOPBACK, tls=server_tls(authority), limits=limits) as server,
        raw_client(port_of(server, "mqtts")) as client,
        asyncio.timeout(10),
    ):
        assert await client.reader.read() == b""


def test_bad_files_are_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    _, other_key = authority.issue("other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for tls, words in (
        (Tls(certificate, other_key), ["tls.key", str(other_key), "does not belong"]),
        (Tls(nonsense, key), ["tls.certificate", str(nonsense), "PEM"]),
        (Tls(certificate, key, nonsense), ["tls.client_ca", str(nonsense), "no certificate"]),
        (Tls(certificate, tmp_path / "missing"), ["tls.key", "missing", "No such file"]),
    ):
        with pytest.raises(ConfigError) as caught:
            server_context(tls, "mqtt")
        for word in words:
            assert word in str(caught.value)


def test_an_encrypted_key_does_not_ask_for_its_passphrase(authority: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = authority.issue("server")
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="is encrypted; decrypt it with openssl pkey"):
        server_context(Tls(certificate, key), "mqtt")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shows", [False, True], ids=["none", "of another authority"])
async def test_a_client_whose_certificate_is_refused_is_told_by_an_alert(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, shows: bool
) -> None:
    """RFC 8446 §4.4.2.4 and §6.2, RFC 5246 §7.2.2."""
    (tmp_path / "other").mkdir()
    context = authority.client_context()
    context.minimum_version = context.maximum_version = version
    if shows:
        context.load_cert_chain(*Authority(tmp_path / "other", "Another").issue("client"))
    async with running(
        mqtts=LOOPBACK, tls=server_tls(authority, require_client_certificate=True), shut_down_s=0.5
    ) as server:
        told = await asyncio.to_thread(refused, port_of(server, "mqtts"), context)
        assert "alert" in told
        if shows:
            assert "unknown ca" in told
        elif version == ssl.TLSVersion.TLSv1_3:
            assert "certificate required" in told


def refused(port: int, context: ssl.SSLContext) -> str:
    """What a client sees that sends its CONNECT at once."""
    with pytest.raises(ssl.SSLError) as caught:
        connect_and_read(port, context)
    return str(caught.value)


def connect_and_read(port: int, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a" + b"\xc0\x00" * 100_000)
        client.recv(1)


def open_files() -> list[str]:
    return [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


async def test_alerts_are_sent_to_many_at_once_and_leave_nothing(authority: Authority) -> None:
    async with running(
        mqtts=LOOPBACK, tls=server_tls(authority, require_client_certificate=True), shut_down_s=0.5
    ) as server:
        port, context = port_of(server, "mqtts"), authority.client_context()
        before = len(open_files())
        for told in await asyncio.gather(*(asyncio.to_thread(refused, port, context) for _ in range(30))):
            assert "alert" in told
        # uvloop may have opened one or two of its own meanwhile.
        await until(lambda: len(open_files()) <= before + 2, "all sockets to be closed")


async def test_a_certificate_that_was_revoked_is_refused(authority: Authority, tmp_path: Path) -> None:
    trusted, revoked = authority.client_context("trusted"), authority.client_context("revoked")
    crl = tmp_path / "revoked.crl"
    authority.revoke(crl, "revoked")
    tls = server_tls(authority, require_client_certificate=True, crl_file=crl)
    async with running(mqtts=LOOPBACK, tls=tls, shut_down_s=0.5) as server:
        port = port_of(server, "mqtts")
        async with raw_client(port, context=trusted) as client:
            client.send(Connect("c"))
            assert isinstance(await client.receive(), Connack)
        assert "certificate revoked" in await asyncio.to_thread(refused, port, revoked)


def test_a_file_without_a_revocation_list_is_named(authority: Authority) -> None:
    tls = server_tls(authority, require_client_certificate=True, crl_file=authority.certificate)
    with pytest.raises(ConfigError, match=r"tls\.crl_file: .*authority\.pem: there is no revocation list in"):
        server_context(tls, "mqtt")


async def test_a_client_may_be_the_user_that_the_whole_subject_says(authority: Authority) -> None:
    tls = server_tls(authority, use_subject_as_username=True)
    context = authority.client_context("phone")
    async with (
        running(mqtts=LOOPBACK, tls=tls, shut_down_s=0.5) as server,
        raw_client(port_of(server, "mqtts"), context=context) as client,
    ):
        client.send(Connect("c", username="somebody else"))
        assert isinstance(await client.receive(), Connack)
        (connection,) = server.broker.connections
        assert connection.connected_session().username == "CN=phone"
