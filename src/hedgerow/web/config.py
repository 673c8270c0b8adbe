"""Whether a node shows the dashboard and the API, and to whom: `dashboard` and `api` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow.node.config import Chapter, Config, Given
from hedgerow.node.values import AT_RELOAD, Key, read_boolean, read_file_path


@dataclass(slots=True, frozen=True)
class DashboardConfig:
    dashboard: bool = True
    """Beside metrics and health, wherever HTTP is served."""


def serves_dashboard(config: Config) -> bool:
    return config.of(DashboardConfig).dashboard and bool(config.http or config.https)


@dataclass(slots=True, frozen=True)
class ApiConfig:
    enabled: bool | None = None
    """None: where the dashboard is."""
    tokens: Path | None = None


def serves_api(config: Config) -> bool:
    enabled = config.of(ApiConfig).enabled
    return serves_dashboard(config) if enabled is None else enabled and bool(config.http or config.https)


# What keeps strangers from reading a dashboard: the key that it takes, and how to say it.
CLOSED = {
    "access.passwords": "set access.passwords (--passwords FILE)",
    "access.anonymous": "say that this is meant, access.anonymous = true (--anonymous)",
    "dashboard": "serve metrics alone, dashboard = false (--no-dashboard)",
}


def check_open_dashboard(config: Config, given: Given) -> None:
    """Whoever wants strangers to read it has to say so."""
    is_shown = serves_dashboard(config) or serves_api(config)
    if config.has_users or "access.anonymous" in given.values or not is_shown:
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

API_CHAPTER = Chapter(
    ApiConfig,
    (
        Key(
            "api.enabled",
            "--api",
            "",
            read_boolean,
            "serve the API where HTTP is served (default: where the dashboard is)",
        ),
        Key(
            "api.tokens",
            "--api-tokens",
            "FILE",
            read_file_path,
            "tokens and their rights, as hedgerow token writes them",
            takes_effect=AT_RELOAD,
        ),
    ),
    lambda given: ApiConfig(given.values.get("api.enabled"), given.values.get("api.tokens")),
)
