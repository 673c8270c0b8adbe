"""`hedgerow.serve`: a node inside a program, on the program's own event loop.

It is the node of `hedgerow up`, with the same configuration. What a program brings itself is left to it: the
event loop, signals and the log (the loggers below `hedgerow`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hedgerow.client.urls import SCHEMES
from hedgerow.errors import HedgerowError
from hedgerow.kinds import EMBEDDED
from hedgerow.node.config import Config
from hedgerow.node.config_loading import make_config
from hedgerow.node.server import Server
from hedgerow.parts import make_server

Listen = str | Sequence[str] | None


class Node:
    """A node that runs in this program. `serve` makes it."""

    def __init__(self, server: Server) -> None:
        self.id = server.node_id
        """Its name in the fabric."""
        self.urls = tuple(server.urls)
        """Where it listens, with the ports that the system chose."""
        self._server = server

    @property
    def url(self) -> str:
        """The first of `urls` that `hedgerow.connect` takes."""
        for url in self.urls:
            if url.partition("://")[0] in SCHEMES:
                return url
        raise HedgerowError(f"node {self.id} listens nowhere for clients")

    async def stop(self) -> None:
        """Store what is to be kept, disconnect everyone and close, as at the end of `async with serve()`."""
        await self._server.stop()


@asynccontextmanager
async def serve(
    config: str | os.PathLike[str] | Mapping[str, object] | None = None,
    *,
    id: str | None = None,  # noqa: A002 - as in the configuration
    data: str | os.PathLike[str] | None = None,
    mqtt: Listen = None,
    mqtts: Listen = None,
    ws: Listen = None,
    wss: Listen = None,
    http: Listen = None,
    https: Listen = None,
    udp: Listen = None,
) -> AsyncIterator[Node]:
    """Run a node in this program for as long as the block lasts.

        async with hedgerow.serve(mqtt="localhost:1883", data="kept") as node:
            print(node.url)

    Everything that docs/reference/configuration.md lists can be set:

    config  a TOML file as `hedgerow up --config` takes it, or a mapping of the same keys:
            `{"limits": {"connections": 100}, "access.passwords": "passwords"}`
    id      the name of this node, unlike that of any other; made up unless given or stored in `data`
    data    a folder for sessions and messages; without it, they are kept in memory only
    mqtt    where to serve MQTT, "HOST:PORT", several of them, or "off". Port 0: the system chooses one.
            Unless `config` says otherwise, "localhost:0"
    mqtts   where to serve MQTT over TLS; not at all by default, as the following
    ws      MQTT over WebSocket
    wss     MQTT over WebSocket and TLS
    http    the dashboard and metrics
    https   the same over TLS
    udp     UDP sensors

    Options by name override `config`. Raises ConfigError for what cannot be meant, such as a port that is
    taken, and StoreError when `data` cannot be used.
    """
    path = Path(config) if isinstance(config, str | os.PathLike) else None
    given = dict(config) if isinstance(config, Mapping) else {}
    named = {
        "id": id,
        "data": data,
        "mqtt": mqtt,
        "mqtts": mqtts,
        "ws": ws,
        "wss": wss,
        "http": http,
        "https": https,
        "udp": udp,
    }
    given |= {name: value for name, value in named.items() if value is not None}
    async with running(make_config(given, path, EMBEDDED)) as server:
        yield Node(server)


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Server]:
    """A node that is served for as long as the block lasts, as the rest of Hedgerow sees it."""
    server = make_server(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
