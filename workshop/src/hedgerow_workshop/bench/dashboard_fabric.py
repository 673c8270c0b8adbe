"""For `bench dashboard`: many nodes of one fabric in one process.

    python -m hedgerow_workshop.bench.dashboard_fabric COUNT

Each is a whole `Node` with a port of its own, dials the one before it and the one seven before it, and
finds more by itself. When all of them listen, one line says on which ports, as JSON; SIGTERM ends them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys

import uvloop

from hedgerow.federation.config import FederationConfig
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.config import Config
from hedgerow.node.server import Server
from hedgerow.node.values import Address
from hedgerow.parts import make_server
from hedgerow_workshop.bench.peers import raise_open_files

HOST = "127.0.0.1"
STRIDE = 7
# At the default of 5 s the announcements of 49 nodes take more than a machine with two cores has left.
ANNOUNCE_INTERVAL_S = 30.0


def neighbours(ports: list[int]) -> list[int]:
    """Whom the next node dials, of those that listen already."""
    return [ports[-back] for back in (1, STRIDE) if back <= len(ports)]


def node_id(number: int) -> str:
    return f"bench-{number:02}"


def config_of(number: int, ports: list[int]) -> Config:
    urls = tuple(BrokerUrl(HOST, port) for port in neighbours(ports))
    federation = FederationConfig(neighbours=urls, enabled=True, announce_interval_s=ANNOUNCE_INTERVAL_S)
    return Config(
        mqtt=(Address(HOST, 0),),
        ws=(),
        http=(),
        id=node_id(number),
        sys_interval_s=0.0,
    ).with_rooms(federation)


async def run(count: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    servers: list[Server] = []
    ports: list[int] = []
    try:
        for number in range(1, count + 1):
            server = make_server(config_of(number, ports))
            await server.start()
            servers.append(server)
            ports.append(server.listening[0][1])
        print(json.dumps({"ports": ports}), flush=True)
        await stop.wait()
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    raise_open_files()
    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(run(int(sys.argv[1])))


if __name__ == "__main__":
    main()
