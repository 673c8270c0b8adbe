"""The parts that a node may have, in the order in which they start.

Each line is a part: its name, what makes it, and whether the configuration asks for it. Nothing is imported
for one that is not asked for. A part stops before those above it, and is closed before them, so it may need
them for as long as it lives: the store waits for the journal, the federation of a sidecar goes over a bridge,
and whoever comes through a listener finds everything else there.
"""

from __future__ import annotations

from hedgerow.node.config import Config
from hedgerow.node.part import PartEntry
from hedgerow.node.server import Server

PARTS = (
    PartEntry("journal", "hedgerow.journal.part:JournalPart", lambda config: bool(config.journal.topics)),
    PartEntry(
        "store",
        "hedgerow.node.committer:Committer",
        lambda config: config.data is not None or bool(config.journal.topics),
    ),
    PartEntry("logins", "hedgerow.node.logins:Logins", lambda config: config.passwords is not None),
    PartEntry("bridges", "hedgerow.bridges.part:BridgesPart", lambda config: True),
    # After the bridges: the role that is registered last is asked first whether a CONNECT is for it.
    PartEntry("neighbours refused", "hedgerow.federation.io.refusal:NeighboursRefused", lambda config: True),
    PartEntry(
        "mobile brokers refused", "hedgerow.mobility.io.refusal:MobileBrokersRefused", lambda config: True
    ),
    PartEntry(
        "federation",
        "hedgerow.federation.part:FederationPart",
        lambda config: config.federation.is_enabled or config.federation.home is not None,
    ),
    PartEntry(
        "mobility", "hedgerow.mobility.part:MobilityPart", lambda config: config.mobility.role is not None
    ),
    PartEntry(
        "hot topics",
        "hedgerow.mobility.io.monitoring:Monitoring",
        # A mobile broker's own monitor shows what it decides.
        lambda config: config.mobility.monitors and not config.mobility.is_mobile,
    ),
    PartEntry(
        "multicast", "hedgerow.multicast.part:MulticastPart", lambda config: bool(config.multicast.topics)
    ),
    PartEntry("sensors", "hedgerow.sensors.part:SensorsPart", lambda config: bool(config.udp)),
    PartEntry("dashboard", "hedgerow.web.dashboard:Dashboard", lambda config: config.serves_dashboard),
    PartEntry("listeners", "hedgerow.node.listeners:Listeners", lambda config: True),
    PartEntry("mDNS", "hedgerow.node.mdns_services:MdnsPart", lambda config: config.mdns),
    PartEntry("status", "hedgerow.node.status:StatusTeller", lambda config: True),
    PartEntry(
        "Home Assistant",
        "hedgerow.home_assistant.part:HomeAssistantPart",
        lambda config: config.home_assistant is not None,
    ),
)


def make_server(config: Config) -> Server:
    """A node with the parts that its configuration asks for."""
    return Server(config, PARTS)
