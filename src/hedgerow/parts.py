"""The parts that a node may have, in the order in which they start.

Each line is a part: its name, what makes it, whether the configuration asks for it, and its room's chapter of
the configuration. Of a room that is not asked for, nothing but that is imported. A part stops before those
above it, and is closed before them, so it may need them for as long as it lives: the store waits for the
journal, the federation of a sidecar goes over a bridge, and whoever comes through a listener finds everything
else there.
"""

from __future__ import annotations

from hedgerow.bridges import config as bridges
from hedgerow.federation import config as federation
from hedgerow.home_assistant import config as home_assistant
from hedgerow.journal import config as journal
from hedgerow.mobility import config as mobility
from hedgerow.multicast import config as multicast
from hedgerow.node.config import Config
from hedgerow.node.part import PartEntry
from hedgerow.node.server import Server
from hedgerow.quotas import config as quotas
from hedgerow.sensors import config as sensors
from hedgerow.web import config as web

PARTS = (
    PartEntry(
        "journal",
        "hedgerow.journal.part:JournalPart",
        lambda config: bool(config.of(journal.JournalConfig).topics),
        journal.CHAPTER,
    ),
    PartEntry(
        "replays refused",
        "hedgerow.journal.io.refusal:ReplaysRefused",
        lambda config: not config.of(journal.JournalConfig).topics,
    ),
    PartEntry(
        "store",
        "hedgerow.node.committer:Committer",
        lambda config: config.data is not None or bool(config.of(journal.JournalConfig).topics),
    ),
    PartEntry("logins", "hedgerow.node.logins:Logins", lambda config: config.has_users),
    PartEntry("bridges", "hedgerow.bridges.part:BridgesPart", lambda config: True, bridges.CHAPTER),
    # After the bridges: the role that is registered last is asked first whether a CONNECT is for it.
    PartEntry("neighbours refused", "hedgerow.federation.io.refusal:NeighboursRefused", lambda config: True),
    PartEntry(
        "mobile brokers refused", "hedgerow.mobility.io.refusal:MobileBrokersRefused", lambda config: True
    ),
    PartEntry(
        "federation",
        "hedgerow.federation.part:FederationPart",
        lambda config: config.of(federation.FederationConfig).takes_part,
        federation.CHAPTER,
    ),
    PartEntry(
        "mobility",
        "hedgerow.mobility.part:MobilityPart",
        lambda config: config.of(mobility.MobilityConfig).role is not None,
        mobility.CHAPTER,
    ),
    PartEntry(
        "hot topics",
        "hedgerow.mobility.io.monitoring:Monitoring",
        lambda config: config.of(mobility.MobilityConfig).monitors_alone,
    ),
    PartEntry(
        "multicast",
        "hedgerow.multicast.part:MulticastPart",
        lambda config: bool(config.of(multicast.Multicast).topics),
        multicast.CHAPTER,
    ),
    PartEntry(
        "sensors",
        "hedgerow.sensors.part:SensorsPart",
        lambda config: bool(config.of(sensors.SensorSettings).udp),
        sensors.CHAPTER,
    ),
    PartEntry("quotas", "hedgerow.quotas.part:QuotasPart", lambda config: True, quotas.CHAPTER),
    PartEntry("API", "hedgerow.web.api.part:ApiPart", web.serves_api, web.API_CHAPTER),
    PartEntry("dashboard", "hedgerow.web.dashboard:Dashboard", web.serves_dashboard, web.CHAPTER),
    PartEntry("listeners", "hedgerow.node.listeners:Listeners", lambda config: True),
    PartEntry("mDNS", "hedgerow.node.mdns_services:MdnsPart", lambda config: config.mdns),
    PartEntry("backlogs", "hedgerow.node.backlog_watch:BacklogWatch", lambda config: True),
    PartEntry("status", "hedgerow.node.status:StatusTeller", lambda config: True),
    PartEntry(
        "Home Assistant",
        "hedgerow.home_assistant.part:HomeAssistantPart",
        lambda config: config.of(home_assistant.HomeAssistantConfig).prefix is not None,
        home_assistant.CHAPTER,
    ),
)


def make_server(config: Config) -> Server:
    """A node with the parts that its configuration asks for."""
    return Server(config, PARTS)
