"""Whoever answers as a server may send clients elsewhere: no password goes to a host that only it names."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.client.following import Guard, Whereabouts
from hedgerow.client.urls import parse_url, read_host
from hedgerow.errors import ConfigError, ConnectError
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.packets import (
    MQTT_EXTENDED,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Renew,
)
from hedgerow.mqtt.reasons import Reason
from tests.client.scripted import polite, scripted
from tests.node.certificates import Authority
from tests.waiting import until

LOGIN: dict[str, Any] = {"username": "alice", "password": "open-sesame", "reconnect_delay": (0.01, 0.05)}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """All hosts under .example are this machine, which the client cannot know."""
    find = asyncio.BaseEventLoop.getaddrinfo

    async def find_here(loop: Any, host: Any, *arguments: Any, **options: Any) -> Any:
        here = isinstance(host, str) and host.endswith(".example")
        return await find(loop, "127.0.0.1" if here else host, *arguments, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", find_here)


def send_away(reference: str, how: str) -> Any:
    def answer(packet: Packet) -> list[Packet] | None:
        if not isinstance(packet, Connect):
            return polite(packet)
        reason = Reason.SERVER_MOVED if "moved" in how else Reason.USE_ANOTHER_SERVER
        if how.startswith("refused"):
            return [Connack(False, reason, {"server_reference": reference})]
        return [Connack(), Disconnect(reason, {"server_reference": reference})]

    return answer


def password_of(packet: Packet) -> bytes | None:
    assert isinstance(packet, Connect)
    return packet.password


@pytest.mark.parametrize("how", ["refused", "refused, moved", "ended", "ended, moved"])
@pytest.mark.parametrize("secret", ["password", "authentication_data"])
async def test_a_secret_does_not_go_in_clear_where_a_server_says(
    names: None, how: str, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    login: dict[str, Any] = LOGIN
    if secret == "authentication_data":
        data = {"authentication_method": "m", "authentication_data": b"open-sesame"}
        login = {"properties": data, "version": 5, "reconnect_delay": (0.01, 0.05)}
    async with scripted() as other:
        reference = f"other.example:{other.port}"
        async with scripted(send_away(reference, how)) as home:
            url = f"mqtt://home.example:{home.port}"
            if "refused" in how:
                with pytest.raises(ConnectError, match="server"):
                    await hedgerow.connect(url, **login)
            else:
                async with hedgerow.connect(url, **login):
                    await until(lambda: home.connections >= 3, "the client to come back")
        assert other.connections == 0
    assert f"sends us to {reference}; our password does not go there in clear" in caplog.text


async def test_a_renewal_is_not_followed_there_and_the_client_stays(
    names: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted() as other, scripted() as home:
        home.version = MQTT_EXTENDED
        async with hedgerow.connect(f"mqtt://home.example:{home.port}", follow=True, **LOGIN) as bus:
            home.send(Renew(Renewal.CONNECTION, f"other.example:{other.port}"))
            home.send(Renew(Renewal.RENEW_TOPICS, f"other.example:{other.port}"))
            await until(lambda: caplog.text.count("our password does not go there") == 2, "the refusals")
            await bus.publish("a", "still here", qos=1)
        assert other.connections == 0


async def test_it_goes_where_the_application_lists_the_host(names: None) -> None:
    async with scripted() as other:
        reference = f"other.example:{other.port}"
        async with scripted(send_away(reference, "refused")) as home:
            url = f"mqtt://home.example:{home.port}"
            for listed in "other.example", [f"OTHER.example:{other.port}"]:
                async with hedgerow.connect(url, follow_to=listed, **LOGIN):
                    pass
            with pytest.raises(ConnectError):
                await hedgerow.connect(url, follow_to=["other.example:9"], **LOGIN)
        assert [password_of(packet) for packet in other.of(Connect)] == [b"open-sesame"] * 2


async def test_it_goes_anywhere_without_a_password_and_to_the_same_host_with_one(names: None) -> None:
    async with scripted() as other:
        async with (
            scripted(send_away(f"other.example:{other.port}", "refused")) as home,
            hedgerow.connect(f"mqtt://home.example:{home.port}", username="alice"),
        ):
            pass
        async with (
            scripted(send_away(f"HOME.example:{other.port}", "refused")) as home,
            hedgerow.connect(f"mqtt://home.example:{home.port}", **LOGIN),
        ):
            pass
        assert [password_of(packet) for packet in other.of(Connect)] == [None, b"open-sesame"]


@pytest.mark.parametrize("insecure", ["without authorities", "without names"])
async def test_what_is_not_checked_at_home_is_not_good_enough_elsewhere(
    names: None, insecure: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    options: dict[str, Any] = {"insecure": True} | LOGIN
    if insecure == "without names":
        options["ca_file"] = authority.certificate
    async with scripted(tls=context) as other:
        reference = f"other.example:{other.port}"
        async with scripted(send_away(reference, "refused"), tls=context) as home:
            with pytest.raises(ConnectError):
                await hedgerow.connect(f"mqtts://home.example:{home.port}", **options)
            assert "does not go there without a check of its certificate" in caplog.text
            async with hedgerow.connect(
                f"mqtts://home.example:{home.port}", follow_to="other.example", **options
            ):
                pass
        assert other.connections == 1


def test_a_certificate_that_is_checked_is_good_enough() -> None:
    home = parse_url("mqtts://u:p@home.example")
    checked, unchecked = ssl.create_default_context(), ssl.create_default_context()
    unchecked.check_hostname = False
    assert Whereabouts(home, Guard(tls=checked)).read("other.example:1") is not None
    assert Whereabouts(home, Guard(tls=unchecked)).read("other.example:1") is None


@pytest.mark.parametrize(
    ("home", "sent_to", "is_followed"),
    [
        ("localhost", "127.0.0.1:2", True),
        ("127.0.0.1", "[::1]:2", True),
        ("[2001:db8::1]", "[2001:DB8:0:0::1]:2", True),
        ("home.example", "home.example.:2", True),
        ("home.example", "home.example.evil.example:2", False),
        ("10.0.0.1", "10.0.0.10:2", False),
        ("localhost", "10.0.0.1:2", False),
    ],
)
def test_what_counts_as_the_same_host(home: str, sent_to: str, is_followed: bool) -> None:
    whereabouts = Whereabouts(parse_url(f"mqtt://{home}"), Guard())
    assert (whereabouts.read(sent_to) is not None) is is_followed
    assert (whereabouts.redirect(Reason.SERVER_MOVED, sent_to) is not None) is is_followed
    assert Whereabouts(parse_url(f"mqtt://{home}")).read(sent_to) is not None


def test_a_server_that_moved_does_not_lead_on() -> None:
    """The host that counts is the one that the application named, or listed."""
    whereabouts = Whereabouts(parse_url("mqtt://home.example"), Guard((("second.example", None),)))
    assert whereabouts.redirect(Reason.SERVER_MOVED, "second.example:1") is not None
    assert whereabouts.read("third.example:1") is None
    assert whereabouts.read("home.example:1") is not None


def test_hosts_are_listed_as_in_urls() -> None:
    assert read_host("[2001:DB8::1]:1884") == ("2001:db8::1", 1884)
    for wrong in "", "a b", "mqtt://a", "a:99999", "a:0", "[::1].evil.example":
        with pytest.raises(ConfigError, match="is not HOST or HOST:PORT"):
            hedgerow.connect("mqtt://home.example", follow_to=[wrong])
