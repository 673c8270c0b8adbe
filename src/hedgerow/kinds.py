"""The kinds of node, and what can be configured of each: keys of the node itself, and of its rooms."""

from __future__ import annotations

from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow.federation.config import SIDECAR_KEYS, FederationConfig, check_beside
from hedgerow.mobility.config import MobilityConfig
from hedgerow.node.config import Config, Given
from hedgerow.node.config_files import read_config_file
from hedgerow.node.config_loading import NodeKind
from hedgerow.node.values import Address
from hedgerow.parts import PARTS

CHAPTERS = tuple(entry.chapter for entry in PARTS if entry.chapter is not None)
OF_SIDECARS = {key.name for key in SIDECAR_KEYS}


def check_not_both(config: Config, given: Given) -> None:
    """Between two rooms that do not know each other."""
    if config.of(MobilityConfig).is_mobile and config.of(FederationConfig).is_enabled:
        first = next(name for name in given.values if name.startswith("federation."))
        raise ConfigError(
            f"{given.where(first)}: a mobile broker reaches the others through its fixed broker, which"
            " may be federated"
        )


OF_DATA = ("data", "data_bytes", "data_full", "data_age")


def _is_for_sidecar(name: str) -> bool:
    return name in (*OF_DATA, "id", "http", "dashboard", "access.host_names") or (
        name.startswith(("api.", "log.", "limits.", "federation.")) and name != "federation.enabled"
    )


OF_CLIENTS = {
    "access.anonymous",
    "access.empty_client_ids",
    "access.maximum_qos",
    "access.origins",
    "access.retain_available",
}


def _is_for_dashboard(name: str) -> bool:
    return name in ("id", "http", "https", "tls.certificate", "tls.key") or (
        name.startswith(("access.", "api.", "log.", "limits.", "federation."))
        and name not in {*OF_CLIENTS, "federation.enabled", *OF_SIDECARS}
    )


NODE = NodeKind("hedgerow up", CHAPTERS, Config(), lambda name: name not in OF_SIDECARS, check_not_both)
# It has no clients of its own: whatever it serves, it serves through the broker that it stands beside.
SIDECAR = NodeKind(
    "hedgerow federate", CHAPTERS, Config(mqtt=(), ws=(), http=()), _is_for_sidecar, check_beside
)
# It has no clients at all: it is a member of the federation that it shows.
DASHBOARD = NodeKind(
    "hedgerow dash",
    CHAPTERS,
    Config(mqtt=(), ws=(), http=(Address("localhost", 8781),)),
    _is_for_dashboard,
)
# A program that starts two nodes, or runs beside one, must not find its ports taken.
EMBEDDED = NODE._replace(
    command="hedgerow.serve", defaults=Config(mqtt=(Address("localhost", 0),), ws=(), http=())
)


def kind_of(path: Path) -> NodeKind:
    """Whose configuration it is: only what stands beside a broker names that. Raises ConfigError."""
    return SIDECAR if "federation.broker" in read_config_file(path, SIDECAR.tables) else NODE
