"""`hedgerow sub --journal`: a journal of what an application received, each copy of it, for `quality`.

Messages have their fabric-wide ids there, since the subscriber tells the broker a name of its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import hedgerow
from hedgerow.cli.client_options import Target
from hedgerow.client.urls import BROKER_SCHEMES, parse_url
from hedgerow.errors import ConfigError
from hedgerow.journal import Writer
from hedgerow.message import Message

TRANSPORT = "subscriber"  # by which the pipeline knows such a journal


def name_subscriber(target: Target) -> None:
    """Have the broker send ids. ConfigError: nobody there gives any."""
    scheme = parse_url(target.url).scheme.name
    if scheme not in BROKER_SCHEMES:
        raise ConfigError(f"--journal: messages have ids from a broker alone, not from {scheme}://")
    if target.arguments["origin"] is None:
        target.arguments["origin"] = target.arguments["client_id"] or f"sub-{os.getpid()}"


class SubscriberJournal:
    """The journal in `directory`, of a subscriber at the broker of `bus`."""

    def __init__(self, directory: Path, bus: hedgerow.Bus, target: Target) -> None:
        address = parse_url(target.url)
        broker = getattr(bus, "broker_name", None) or f"{address.host}:{address.port}"
        self._name: str = target.arguments["origin"]
        self._writer = Writer(directory, broker, drop_duplicates=False)

    async def keep(self, messages: Sequence[Message]) -> None:
        """Returns when they are durable."""
        now = time.time()
        for message in messages:
            self._writer.append(message, transport=TRANSPORT, received_at=now, client=self._name)
        await asyncio.to_thread(self._writer.flush)

    def close(self) -> None:
        self._writer.close()
