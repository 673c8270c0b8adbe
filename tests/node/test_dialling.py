"""Dialling a host: every address of it gets its turn, and a failure is told in words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.node.dialling import DIAL_ERRORS, dial, explain_dial, tls_context
from hedgerow.node.lookups import Lookups


class Names(Lookups):
    """A name server of our own."""

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self._addresses = list(addresses)

    async def find(self, host: str) -> list[str]:
        return self._addresses


async def refused(address: str) -> None:
    raise ConnectionRefusedError


async def test_an_address_that_says_nothing_leaves_time_for_the_others() -> None:
    tried: list[str] = []

    async def open_to(address: str) -> None:
        tried.append(address)
        if address != "10.0.0.3":
            await asyncio.Event().wait()

    await dial(Names("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"), "tower", open_to, 0.2)
    assert tried == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


async def test_the_last_failure_is_told() -> None:
    async def open_to(address: str) -> None:
        await (refused(address) if address == "10.0.0.2" else asyncio.Event().wait())

    with pytest.raises(ConnectionRefusedError) as raised:
        await dial(Names("10.0.0.1", "10.0.0.2"), "tower", open_to, 0.1)
    assert explain_dial(raised.value) == "connection refused"
    with pytest.raises(TimeoutError) as late:
        await dial(Names("10.0.0.2", "10.0.0.1"), "tower", open_to, 0.1)
    assert explain_dial(late.value, 0.1) == "no answer in 0.1 s"
    with pytest.raises(ConnectionError, match="no address"):
        await dial(Names(), "tower", open_to, 0.1)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300])
async def test_a_name_that_means_nothing(host: str) -> None:
    with pytest.raises(DIAL_ERRORS) as raised:
        await dial(Lookups(), host, refused)
    assert explain_dial(raised.value)


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match="the TLS files of mobility cannot be used: "):
        tls_context(tmp_path / "ca.pem", None, None, "mobility")
