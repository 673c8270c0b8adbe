"""Whether a node shows the dashboard, and to whom: the `dashboard` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.errors import ConfigError
from hedgerow.node.config import Chapter, Config, Given
from hedgerow.node.values import Key, read_boolean


@dataclass(slots=True, frozen=True)
class DashboardConfig:
    dashboard: bool = True
    """Beside metrics and health, wherever HTTP is served."""


def serves_dashboard(config: Config) -> bool:
    return config.of(DashboardConfig).dashboard and bool(config.http or config.https)


# What keeps strangers from reading a dashboard: the key that it takes, and how to say it.
CLOSED = {
    "access.passwords": "set access.passwords (--passwords FILE)",
    "access.anonymous": "say that this is meant, access.anonymous = true (--anonymous)",
    "dashboard": "serve metrics alone, dashboard = false (--no-dashboard)",
}


def check_open_dashboard(config: Config, given: Given) -> None:
    """Whoever wants strangers to read it has to say so."""
    if config.passwords is not None or "access.anonymous" in given.values or not serves_dashboard(config):
        return
    ways = "; or ".join(text for name, text in CLOSED.items() if name in given.keys)
    for name, addresses in (("http", config.http), ("https", config.https)):
        for address in addresses:
            if not address.is_loopback:
                raise ConfigError(
                    f"{given.where(name)}: on {address} anyone who reaches this machine could read every "
                    f"message on the dashboard: {ways}"
                )


CHAPTER = Chapter(
    DashboardConfig,
    (
        Key(
            "dashboard",
            "--dashboard",
            "",
            read_boolean,
            "serve the dashboard where HTTP is served (default: yes)",
        ),
    ),
    lambda given: DashboardConfig(given.values["dashboard"]),
    check_open_dashboard,
)
