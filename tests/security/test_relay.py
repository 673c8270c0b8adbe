"""The relay of a mobile broker makes whoever reaches it a client of this machine: it counts as a listener."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.mobility.config import MobilityConfig
from hedgerow.mobility.io.relay import Relay
from hedgerow.node.values import Address
from tests.mobility.io.test_relay import connect, ended, far_broker
from tests.mobility.test_config import by_flags
from tests.node.peers import connected, port_of, running

MOBILE = (
    "--role",
    "mobile",
    "--domain",
    "farm",
    "--fixed",
    "mqtt://10.0.0.1",
    "--fixed-clients-at",
    "10.0.0.9:2883",
)


@pytest.mark.parametrize("address", ["*:2883", "0.0.0.0:2883", "10.0.0.9:2883"])
def test_an_open_relay_has_to_be_meant(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--relay: on .* anyone who reaches this machine could connect"):
        by_flags(*MOBILE, "--relay", address)
    assert by_flags(*MOBILE, "--relay", address, "--anonymous").of(MobilityConfig).relay is not None
    (tmp_path / "users").touch()
    named = by_flags(*MOBILE, "--relay", address, "--passwords", str(tmp_path / "users"))
    assert named.of(MobilityConfig).relay is not None


def test_a_relay_for_this_machine_needs_no_word() -> None:
    assert by_flags(*MOBILE, "--relay", "localhost:2883").of(MobilityConfig).relay is not None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "0.0.0.0", "::ffff:127.0.0.1"])
async def test_a_relay_for_others_leads_nobody_to_this_machine(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A name may lead there at any time, whatever it led to when the node started."""
    async with far_broker() as far, running() as server:
        relay = Relay(server, Address("0.0.0.0", 0), lambda: (host, far.target[1]))
        relay.start()
        try:
            reader, writer = await connect(relay)
            assert await ended(reader)
            writer.close()
            assert far.accepted.empty()
        finally:
            await relay.stop()
    assert f"{host} is for clients of this machine alone" in caplog.text


async def test_a_relay_for_this_machine_may_lead_there() -> None:
    async with running() as fixed, running() as server:
        relay = Relay(server, Address("127.0.0.1", 0), lambda: ("localhost", port_of(fixed)))
        relay.start()
        try:
            async with connected(int(relay.address.rpartition(":")[2]), "guest"):
                assert "guest" in fixed.broker.sessions
        finally:
            await relay.stop()
