"""A node that other machines reach without a password says so: what is open, to whom, and how to close it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.cli.checks import OK, WARNING
from hedgerow.cli.doctor import CHECKS, check_strangers
from hedgerow.cli.open_listeners import open_listeners
from hedgerow.cli.up import warn_of_open_listeners
from hedgerow.node.config import Config, Tls
from hedgerow.node.values import Address
from hedgerow.web.config import DashboardConfig

EVERYWHERE = Address("*", 1)
HERE = Address("localhost", 2)
NOWHERE = Config(mqtt=(), ws=(), http=())
CERTIFIED = Tls(Path("c"), Path("k"), Path("ca.pem"), require_client_certificate=True)
FILE = Path("file")


def everywhere(*schemes: str, **more: object) -> Config:
    listeners = dict.fromkeys(schemes, (HERE, EVERYWHERE))
    return replace(NOWHERE, **listeners, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "seen", "advice"),
    [
        (everywhere("mqtt"), "mqtt *:1 is open: anyone .* read and write every topic", "--passwords"),
        (everywhere("ws", acl=FILE), "ws *:1 is open: anyone .* what the ACL lets", "--passwords"),
        (everywhere("mqtt", passwords=FILE), "mqtt *:1 is open: anyone", "--no-anonymous"),
        (everywhere("mqtts", tls=replace(CERTIFIED, require_client_certificate=False)), "anyone", "--pass"),
        (everywhere("mqtts", tls=CERTIFIED), "whoever has a certificate of ca.pem", "--client-ca"),
        (
            everywhere("wss", tls=replace(CERTIFIED, use_identity_as_username=True), anonymous=False),
            "wss *:1 is open: whoever has a certificate",
            "--acl",
        ),
        (
            everywhere("mqtts", tls=CERTIFIED, acl=Path("rules")),
            "whoever has a certificate of ca.pem .* what the ACL lets",
            "give fewer rights in rules,",
        ),
        (everywhere("http", mqtt=(HERE,)), "http *:1 is open: .* the dashboard and metrics", "--passwords"),
        (everywhere("http", mqtt=(HERE,), passwords=FILE), "can read metrics without", "--no-anonymous"),
        (
            everywhere("http").with_rooms(DashboardConfig(dashboard=False)),
            "can read metrics without a password",
            "--http localhost",
        ),
    ],
)
def test_each_open_listener_is_told_with_how_to_close_it(
    config: Config, seen: str, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    (found,) = open_listeners(config)
    parts = seen.split(" .* ")
    assert all(part in found.seen for part in parts)
    assert advice in found.advice
    (finding,) = check_strangers(config)
    assert finding == (WARNING, *found)
    with caplog.at_level(logging.WARNING):
        warn_of_open_listeners(config)
    assert [record.getMessage() for record in caplog.records] == [f"{found.seen}; {found.advice}"]


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        everywhere("mqtt", "ws", "http", passwords=FILE, anonymous=False),
        everywhere("mqtts", "https", tls=CERTIFIED, passwords=FILE, anonymous=False),
        everywhere("https", mqtts=(HERE,), tls=CERTIFIED),  # it shows nothing without a certificate
    ],
)
def test_what_takes_a_password_is_not_open(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    assert open_listeners(config) == []
    (finding,) = check_strangers(config)
    assert finding.state == OK
    warn_of_open_listeners(config)
    assert caplog.records == []


def test_there_is_one_for_each() -> None:
    config = everywhere("mqtt", "ws", "http")
    assert [each.seen.split()[0] for each in open_listeners(config)] == ["mqtt", "ws", "http"]


def test_doctor_asks_it() -> None:
    assert check_strangers in [each.run for each in CHECKS]
