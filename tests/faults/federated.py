"""Federated nodes and sidecars of this process, and Mosquittos beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from hedgerow.federation.config import FederationConfig
from hedgerow.federation.part import FederationPart
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.server import Server
from hedgerow_workshop.lab.harness.brokers import SUBSCRIPTION_LOG, Mosquitto
from tests.node.peers import NOWHERE, part_of, running
from tests.programs import need_program
from tests.waiting import until

AT_ONCE_S = 1.0  # on a busy machine; it takes milliseconds, and without a word it would take 1.5 s
KEY = b"k" * 32


def url_at(port: int, username: str | None = None, password: str | None = None) -> BrokerUrl:
    return BrokerUrl("127.0.0.1", port, False, username, password)


@asynccontextmanager
async def sidecar(
    name: str, home: int | BrokerUrl, *dialled: int | BrokerUrl, **more: Any
) -> AsyncIterator[Server]:
    beside, *others = [each if isinstance(each, BrokerUrl) else url_at(each) for each in (home, *dialled)]
    config = FederationConfig(home=beside, neighbours=tuple(others), **more)
    async with running(config, id=name, **NOWHERE) as server:
        yield server


def hears_its_broker(server: Server) -> bool:
    """Does what subscribes at the broker beside it from now on count as new, and not as there before it?"""
    interests = part_of(server, FederationPart).interests
    return interests is None or interests.log.is_live


def neighbours(server: Server) -> set[str]:
    return set(part_of(server, FederationPart).machine.overlay.round_trips)


async def linked(*servers: Server) -> None:
    """In a line, and to nobody else; and each sidecar hears of who subscribes beside it."""
    ids = [server.node_id for server in servers]
    for at, server in enumerate(servers):
        wanted = {*ids[max(0, at - 1) : at], *ids[at + 1 : at + 2]}
        await until(lambda s=server, w=wanted: neighbours(s) == w, f"the neighbours of {server.node_id}")  # type: ignore[misc]
        await until(lambda s=server: hears_its_broker(s), f"the log beside {server.node_id}")  # type: ignore[misc]


@asynccontextmanager
async def mosquittos(directory: Path, *names: str) -> AsyncIterator[list[Mosquitto]]:
    need_program("mosquitto")
    with ExitStack() as stack:
        brokers = [stack.enter_context(Mosquitto(name, directory / name)) for name in names]
        for broker in brokers:
            broker.more = SUBSCRIPTION_LOG
        await asyncio.gather(*(broker.start() for broker in brokers))
        yield brokers
