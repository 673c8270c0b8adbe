"""What pages in a browser may reach here: those of this node's own host, and by WebSocket those of origins
that are configured.

A browser shows pages of strangers, and lets each of them open a WebSocket to any place that the browser's
user can reach: the same-origin policy does not cover WebSocket. It says of which origin the page is. A page
whose own name the attacker lets lead here (DNS rebinding) is of the same host as far as the browser can tell,
so that host has to be one that no name server elsewhere gives away. With TLS the browser has verified
the name against our certificate. Programs say no origin, and have no strangers' pages.

Over HTTP a browser says more: whether a page of another site asks (`Sec-Fetch-Site`), and the page's origin
with whatever may change something.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hedgerow.errors import ConfigError
from hedgerow.node.addresses import is_own_name
from hedgerow.node.authority import authority, host_and_port
from hedgerow.node.values import read_text, show

if TYPE_CHECKING:
    from collections.abc import Sequence
    from http import HTTPStatus
    from pathlib import Path

    from hedgerow.node.handlers import Request
    from hedgerow.node.part import NodeContext

ANY = "*"
DEFAULT_PORTS = {"http": 80, "https": 443}
SET_HOST_NAMES = "set access.host_names (--allow-host NAME) for another name of this node"
BY_OWN_NAME = (
    "A browser is answered here by an IP address, localhost or this host's name alone, since another name "
    f"could be that of a page elsewhere: {SET_HOST_NAMES}."
)

_HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def mdns_label(node_id: str) -> str:
    """The first label of a host's name holds 63 bytes, and no dot."""
    return node_id.replace(".", "-")[:63]


def is_own_host(node: NodeContext, header: str) -> bool:
    """Does a Host header name this node, by a name that no name server elsewhere can give away?

    Not by every name in .local: a neighbour on the link could let its own lead to our loopback address.
    """
    host = _plain(host_and_port(header)[0])
    return (
        is_own_name(host)
        or host in node.config.host_names
        or host == f"{mdns_label(node.node_id)}.local".lower()
    )


def objection_to_page(
    node: NodeContext, origins: Sequence[str], hosts: Sequence[str], is_tls: bool
) -> str | None:
    """Why a page may not open a WebSocket, by the Origin and Host headers that came; None: it may."""
    allowed = node.config.origins
    if ANY in allowed or all(origin.lower() in allowed for origin in origins):
        return None
    host = hosts[0] if len(hosts) == 1 else ""
    if not is_tls and not is_own_host(node, host):
        return f"the browser asked for a name that is not known to be this node's: {SET_HOST_NAMES}"
    if not all(_is_of_host(origin, host) for origin in origins):
        return "the page is of another host: set access.origins (--allow-origin ORIGIN) to let it in"
    return None


def is_of_browser(request: Request) -> bool:
    """A browser says which languages its user reads, or whose page asks. Prometheus and curl do not."""
    return any(name in request.headers for name in ("accept-language", "sec-fetch-site", "origin"))


def objection_to_request(node: NodeContext, request: Request) -> tuple[HTTPStatus, str] | None:
    """Why HTTP does not answer, whatever is asked for."""
    from http import HTTPStatus  # which a configuration, and a node that serves no HTTP, has no use for

    headers, host = request.headers, request.headers.get("host", "")
    if not request.is_tls and not is_own_host(node, host):
        return HTTPStatus.MISDIRECTED_REQUEST, BY_OWN_NAME
    is_link = (
        request.method == "GET" and headers.get("sec-fetch-dest") == "document"
    )  # that somebody followed
    is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_link
    if is_foreign or ("origin" in headers and not _is_own_origin(headers["origin"], host)):
        return HTTPStatus.FORBIDDEN, "This is not for pages of other sites."
    return None


def _is_own_origin(origin: str, host: str) -> bool:
    # By the host alone: behind a proxy that adds TLS, the browser's scheme is not the one that we see.
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _is_of_host(origin: str, header: str) -> bool:
    """On any port: no page comes from that of a WebSocket listener. `null` is a sandbox, or a file."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    page = _plain(host_and_port(parts.netloc)[0])
    if parts.scheme not in DEFAULT_PORTS or not page:
        return False
    host = _plain(host_and_port(header)[0])
    return page == host or (_is_loopback_name(page) and _is_loopback_name(host))


def _is_loopback_name(host: str) -> bool:
    # Not by `rates.is_loopback`, which is for addresses alone: 127.0.0.1.evil.example is a name.
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


# Configuration


def read_host_names(value: object, base: Path) -> frozenset[str]:
    return frozenset(_read_host_name(each, base) for each in _listed(value))


def _read_host_name(value: object, base: Path) -> str:
    name = _plain(read_text(value, base))
    if not _HOST_NAME.fullmatch(name):
        raise ConfigError(f"{show(value)} is not a host's name, such as barn.example")
    return name


def read_origins(value: object, base: Path) -> frozenset[str]:
    return frozenset(_read_origin(each, base) for each in _listed(value))


def _read_origin(value: object, base: Path) -> str:
    """As a browser sends it (RFC 6454 §6.2): in lower case, without the scheme's own port."""
    text = read_text(value, base)
    if text == ANY:
        return text
    wrong = ConfigError(f"{show(value)} is not the origin of a page, such as https://app.example, or *")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise wrong from None
    host, port = host_and_port(parts.netloc)
    is_host = _HOST_NAME.fullmatch(host) or ":" in host
    if not (parts.scheme and is_host) or parts.path.strip("/") or parts.query:
        raise wrong
    return f"{parts.scheme}://{authority(host, None if port == DEFAULT_PORTS.get(parts.scheme) else port)}"


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]
