"""Who may take part in a federation of Mosquittos, and what is said to those who may not."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.federation.config import FederationConfig
from hedgerow.federation.interests.interests import Interests
from hedgerow_workshop.lab.harness.brokers import SUBSCRIPTION_LOG, Mosquitto
from tests.faults.federated import KEY, linked, mosquittos, sidecar, url_at
from tests.node.certificates import Authority
from tests.node.peers import running
from tests.programs import need_program
from tests.waiting import until

ALL_RIGHTS = ("topic readwrite #", "topic readwrite hedgerow/#", "topic read $SYS/#")


@asynccontextmanager
async def guarded(directory: Path, *rights: str) -> AsyncIterator[Mosquitto]:
    """A Mosquitto that knows the user `federator`, with the password `secret` and these rights."""
    rules, users = directory / "rules", directory / "users"
    rules.write_text("\n".join(["user federator", *rights, ""]))
    set_password(users, "secret")
    rules.chmod(0o600)
    need_program("mosquitto")
    with Mosquitto("guarded", directory / "guarded") as broker:
        broker.more = f"{SUBSCRIPTION_LOG}password_file {users}\nacl_file {rules}\n"
        await broker.start()
        yield broker


def set_password(users: Path, password: str) -> None:
    command = [need_program("mosquitto_passwd"), "-b", "-c", str(users), "federator", password]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (
            ("topic readwrite #", "topic readwrite hedgerow/#"),
            "sends us nothing of $SYS/#, so that we do not know what its clients subscribe to and everything "
            "(#) goes there: give the user federator the right `topic read $SYS/#`",
        ),
        (
            ("topic readwrite field/#", "topic read $SYS/#"),
            "give the user federator the right `topic readwrite hedgerow/#`",
        ),
        (
            ("topic readwrite #", "topic deny hedgerow/#", "topic read $SYS/#"),
            "give the user federator the right `topic readwrite hedgerow/#`",
        ),
    ],
    ids=["$SYS is not granted", "hedgerow is not granted", "hedgerow is denied"],
)
async def test_a_right_that_is_missing_at_home_is_named(
    tmp_path: Path,
    rights: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # What is withheld is known by waiting for it.
    assert Interests.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(Interests.__init__.__kwdefaults__, "live_within_s", 0.5)
    async with (
        guarded(tmp_path, *rights) as broker,
        sidecar("s", url_at(broker.port, "federator", "secret")),
    ):
        await until(lambda: expected in caplog.text, "the warning")
        assert caplog.text.count("give the user") == 1


async def test_a_wrong_password_is_told_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the sidecar at home, and by who links to it."""
    async with guarded(tmp_path, *ALL_RIGHTS) as broker:
        url = url_at(broker.port, "federator", "sesame")
        linking = FederationConfig(neighbours=(url,))
        async with sidecar("s", url) as s, running(linking, id="n") as n:
            await until(lambda: "refused the connection: not authorized" in caplog.text, "the sidecar's log")
            await until(lambda: f"no link to {url}: refused: not authorized" in caplog.text, "the node's")
            set_password(tmp_path / "users", "sesame")
            broker.send(signal.SIGHUP)
            await linked(s, n)


@pytest.mark.parametrize("wrong", [None, b"x" * 32], ids=["without a key", "with another key"])
async def test_who_comes_through_a_tunnel_without_the_key_is_refused_and_named(
    tmp_path: Path, wrong: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with mosquittos(tmp_path, "m") as (m,), sidecar("s", m.port, key=KEY) as s:
        stranger = FederationConfig(neighbours=(url_at(m.port),), key=wrong)
        member = FederationConfig(neighbours=(url_at(m.port),), key=KEY)
        async with running(stranger, id="stranger"):
            await until(lambda: "'stranger' is refused: " in caplog.text, "the refusal")
            async with running(member, id="member") as it:
                await linked(s, it)


async def test_a_mosquitto_that_asks_for_certificates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At home, and through a tunnel."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("mosquitto")
    tls = ("cafile", authority.certificate), ("certfile", certificate), ("keyfile", key)
    need_program("mosquitto")
    with Mosquitto("m", tmp_path / "m") as m:
        m.more = "".join(f"{name} {path}\n" for name, path in tls)
        m.more += f"require_certificate true\n{SUBSCRIPTION_LOG}"
        await m.start()
        url = replace(url_at(m.port), is_tls=True)
        certificate, key = authority.issue("federator")
        shown: dict[str, Any] = {"cafile": authority.certificate, "certfile": certificate, "keyfile": key}
        linking = FederationConfig(neighbours=(url,), **shown)
        async with sidecar("s", url, **shown) as s, running(linking, id="n") as n:
            await linked(s, n)
        stranger = FederationConfig(neighbours=(url,), cafile=authority.certificate)
        async with running(stranger, id="stranger"):
            told = f"no link to {url}: TLS failed: TLSv13 alert certificate required"
            await until(lambda: told in caplog.text, "the refusal")
