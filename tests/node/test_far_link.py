"""A dial that is given up in the very moment in which its link opens leaves nothing behind."""

from __future__ import annotations

import asyncio
import sys

import pytest

from hedgerow.federation.config import FederationConfig
from hedgerow.node.broker_urls import BrokerUrl
from tests.node.peers import port_of, running

TURNS = 30  # of the loop; the link is open after a few


@pytest.mark.skipif(sys.platform == "win32", reason="no uvloop there")
def test_a_node_that_stops_while_it_dials(caplog: pytest.LogCaptureFixture) -> None:
    """With uvloop, as nodes run; asyncio's own loop tells the link that it was closed."""
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_stop_while_dialling())
    assert "failed" not in caplog.text


async def _stop_while_dialling() -> None:
    async with running(FederationConfig(enabled=True), id="b") as b:
        neighbours = (BrokerUrl("127.0.0.1", port_of(b), False),)
        for turns in range(TURNS):
            async with running(FederationConfig(neighbours=neighbours), id="a") as a:
                for _ in range(turns):
                    await asyncio.sleep(0)
                async with asyncio.timeout(1.0):
                    await a.stop()
                assert a.open_sockets == 0
