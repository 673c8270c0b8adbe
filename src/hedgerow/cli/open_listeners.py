"""What a node serves to other machines without a user's password: `hedgerow up` logs it at its start, and
`hedgerow doctor` says it before.

That is allowed, because the configuration said so in words, perhaps long ago and by somebody else.
"""

from __future__ import annotations

from typing import NamedTuple

from hedgerow.node.config import Config
from hedgerow.node.strangers import ELSEWHERE, MQTT, reached, takes_strangers
from hedgerow.web.config import serves_dashboard

WITH_TLS = ("mqtts", "wss", "https")


class OpenListener(NamedTuple):
    seen: str
    """What is open, and to whom."""
    advice: str
    """How to close it."""


def open_listeners(config: Config) -> list[OpenListener]:
    """One for each address that other machines reach."""
    return [
        OpenListener(f"{scheme} {address} is open: {what}", f"to close it, {_how_to_close(config, scheme)}")
        for scheme, address in reached(config)
        if (what := _served(config, scheme)) is not None
    ]


def _served(config: Config, scheme: str) -> str | None:
    """To whom, and what; None: to users with their passwords alone."""
    if scheme in MQTT:
        return _served_by_mqtt(config, scheme)
    if not takes_strangers(config, ELSEWHERE):
        return None
    shows = serves_dashboard(config) and not config.has_users
    what = "the dashboard and metrics" if shows else "metrics"
    limit = "" if config.acl is None else ", as far as the ACL lets clients without a name"
    return f"anyone who reaches this machine can read {what} without a password{limit}"


def _served_by_mqtt(config: Config, scheme: str) -> str | None:
    rights = "read and write every topic" if config.acl is None else "do what the ACL lets such a client"
    if _takes_certificates(config, scheme):
        if config.has_users and not config.anonymous:
            return None
        authority = config.tls.client_ca if config.tls is not None else None
        return f"whoever has a certificate of {authority} can connect without a password, and {rights}"
    if not config.anonymous:
        return None
    return f"anyone who reaches this machine can connect without a password, and {rights}"


def _takes_certificates(config: Config, scheme: str) -> bool:
    """Must a client without a password have one?"""
    tls = config.tls if scheme in WITH_TLS else None
    is_user = tls is not None and tls.names_users and not config.anonymous
    return is_user or (tls is not None and tls.require_client_certificate)


def _how_to_close(config: Config, scheme: str) -> str:
    here = f"serve this machine alone (--{scheme} localhost:PORT)"
    if scheme in MQTT and _takes_certificates(config, scheme):
        fewer = "set rights (--acl FILE)" if config.acl is None else f"give fewer rights in {config.acl}"
        return f"trust fewer authorities (--client-ca FILE), {fewer}, or {here}"
    if not config.takes_clients:
        return here
    if config.has_users:
        return f"keep clients without a name out (--no-anonymous), or {here}"
    return f"set access.passwords (--passwords FILE) without access.anonymous (--anonymous), or {here}"
