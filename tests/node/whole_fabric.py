"""Nodes that have, together, every part that a node can have, for who looks at all metrics.

Tests do, and `tools/make_reference.py`, which knows no pytest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from hedgerow.federation.part import FederationPart
from hedgerow.kinds import NODE, SIDECAR
from hedgerow.node.config_loading import NodeKind, load_config
from hedgerow.node.handlers import Request, Response
from hedgerow.node.metrics import metrics
from hedgerow.node.server import Server
from hedgerow.parts import make_server
from hedgerow_workshop.programs import free_udp_port
from tests.node.peers import part_of, port_of
from tests.waiting import until

HOUSE = """
id = "house"
mqtt = "127.0.0.1:0"
ws = "off"
http = "127.0.0.1:0"
[federation]
enabled = true
document_neighbours = "9=mqtt://127.0.0.1:9"
"""

BARN = """
id = "barn"
mqtt = "127.0.0.1:0"
ws = "127.0.0.1:0"
http = "127.0.0.1:0"
udp = "127.0.0.1:0"
data = "data"
bridges = "bridges.conf"
[journal]
topics = "#"
[federation]
neighbours = "mqtt://127.0.0.1:{house}"
[mobility]
role = "fixed"
domain = "farm"
monitors = true
[multicast]
topics = "field/#"
interfaces = "lo"
ip = 4
port = {udp}
"""

TRACTOR = """
id = "tractor"
mqtt = "127.0.0.1:0"
ws = "off"
http = "127.0.0.1:0"
[mobility]
role = "mobile"
domain = "farm"
fixed = "mqtt://127.0.0.1:{barn}"
relay = "127.0.0.1:0"
"""

SIDECAR_OF_HOUSE = """
id = "sidecar"
http = "127.0.0.1:0"
[federation]
broker = "mqtt://127.0.0.1:{house}"
"""

BRIDGE = "connection north\naddress 127.0.0.1:{house}\ntopic orchard/# both 1\n"


@asynccontextmanager
async def whole_fabric(folder: Path) -> AsyncIterator[dict[str, Server]]:
    """By node id: `barn` has nearly everything, `tractor` is mobile, `sidecar` stands beside `house`, which
    looks for a federator that is not ours."""
    async with AsyncExitStack() as stack:
        servers: dict[str, Server] = {}

        async def start(text: str, kind: NodeKind = NODE) -> int:
            path = folder / "node.toml"
            path.write_text(text)
            server = make_server(load_config(path, {}, kind))
            await server.start()
            stack.push_async_callback(server.stop)
            servers[server.node_id] = server
            return port_of(server) if server.config.mqtt else 0

        house = await start(HOUSE)
        (folder / "bridges.conf").write_text(BRIDGE.format(house=house))
        barn = await start(BARN.format(house=house, udp=free_udp_port()))
        await start(TRACTOR.format(barn=barn))
        await start(SIDECAR_OF_HOUSE.format(house=house), SIDECAR)
        federation = part_of(servers["barn"], FederationPart)
        await until(lambda: bool(federation.machine.overlay.round_trips), "barn and house to be neighbours")
        yield servers


def families_of(server: Server) -> dict[str, Metric]:
    """What a scrape of this node gives, as a parser that is not ours reads it."""
    response = metrics(server)(Request("GET", "/metrics"))
    assert isinstance(response, Response)
    text = response.body.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def all_families(servers: Iterable[Server]) -> dict[str, list[Metric]]:
    found: dict[str, list[Metric]] = {}
    for server in servers:
        for name, family in families_of(server).items():
            found.setdefault(name, []).append(family)
    return found
