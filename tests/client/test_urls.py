"""URLs: what each part means, and what a wrong one is told."""

from __future__ import annotations

import pytest

from hedgerow.client.urls import SCHEMES, parse_url
from hedgerow.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "rest"),
    [
        ("mqtt://localhost", "mqtt", "localhost", 1883, ""),
        ("mqtts://broker.example/", "mqtts", "broker.example", 8883, "/"),
        ("MQTT://h:1", "mqtt", "h", 1, ""),
        ("mqtt://127.0.0.1:65535", "mqtt", "127.0.0.1", 65535, ""),
        ("mqtt://[::1]", "mqtt", "::1", 1883, ""),
        ("mqtt://[fe80::1%eth0]:1884", "mqtt", "fe80::1%eth0", 1884, ""),
        ("ws://h", "ws", "h", 80, ""),
        ("wss://h:9001/path?token=1", "wss", "h", 9001, "/path?token=1"),
        ("mqtt://h/farm/#", "mqtt", "h", 1883, "/farm/#"),
        ("multicast://", "multicast", "", 18_514, ""),
        ("multicast://:99?ip=4", "multicast", "", 99, "?ip=4"),
        ("multicast://eth0,wlan0", "multicast", "eth0,wlan0", 18_514, ""),
    ],
)
def test_parts(url: str, scheme: str, host: str, port: int, rest: str) -> None:
    address = parse_url(url)
    assert (address.scheme.name, address.host, address.port, address.rest) == (scheme, host, port, rest)
    assert (address.username, address.password) == (None, None)


@pytest.mark.parametrize(
    ("url", "username", "password"),
    [
        ("mqtt://u@h", "u", None),
        ("mqtt://u:p@h", "u", "p"),
        ("mqtt://u:@h", "u", ""),
        ("mqtt://a%40b:p%3A%2F@h", "a@b", "p:/"),
        ("mqtt://u:p:q@h", "u", "p:q"),
        ("mqtt://u:p@[::1]:1884", "u", "p"),
    ],
)
def test_user_and_password(url: str, username: str, password: str | None) -> None:
    address = parse_url(url)
    assert (address.username, address.password) == (username, password)


@pytest.mark.parametrize(
    ("url", "path"), [("ws://h", "/mqtt"), ("ws://h/", "/mqtt"), ("wss://h/a/b?c", "/a/b?c")]
)
def test_websocket_path(url: str, path: str) -> None:
    assert parse_url(url).path == path


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mqtt://u:secret@h:1884", "mqtt://u@h:1884"),
        ("mqtt://[::1]", "mqtt://[::1]:1883"),
        ("wss://h", "wss://h:443/mqtt"),
    ],
)
def test_text_for_people_has_no_password(url: str, text: str) -> None:
    assert str(parse_url(url)) == text


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", 'no transport "http://"; there are mqtt://, mqtts://, ws://, wss://'),
        ("localhost", '"localhost" is not a URL'),
        ("localhost:1883", '"localhost:1883" is not a URL'),
        ("mqtt:///topic", "names no host"),
        ("mqtt://h:0", 'port "0"'),
        ("mqtt://h:65536", 'port "65536"'),
        ("mqtt://h:mqtt", 'port "mqtt"'),
        ("mqtt://h:-1", 'port "-1"'),
        ("mqtt://[::1", "is not a URL"),
        ("", "is not a URL"),
    ],
)
def test_a_wrong_url_is_told_why(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert reason in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "house:1883", "10.0.0.2", "[::1]:1883"])
def test_a_host_alone_is_told_as_the_url_that_it_would_be(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(host)
    assert str(caught.value).endswith(f"; did you mean mqtt://{host}?")
    parse_url(f"mqtt://{host}")


@pytest.mark.parametrize("url", ["a b", "http://h"])
def test_who_takes_some_schemes_offers_no_others(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url, ("mqtt", "mqtts"))
    assert str(caught.value).endswith("; there are mqtt://, mqtts://")


@pytest.mark.parametrize("url", ["mqtt://u:secret@h:99999", "mqtt://u:secret@[::1", "u:secret@h"])
def test_an_error_does_not_quote_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


def test_every_scheme_has_a_module_that_opens_a_transport() -> None:
    from importlib import import_module

    for scheme in SCHEMES.values():
        assert callable(import_module(scheme.module).open_transport)
