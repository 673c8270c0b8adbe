"""One node for every stranger: all four transports, with certificates made for this run."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.node.certificates import Authority
from tests.programs import Node, run_node

TRANSPORTS = {"tcp": "mqtt", "tls": "mqtts", "websocket": "ws", "secure-websocket": "wss"}


@dataclass(frozen=True)
class Reach:
    """How a client reaches the node over one transport."""

    scheme: str
    port: int
    authority: Path

    @property
    def is_tls(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Node]:
    """Shared by all tests, so each test keeps to topics and client ids of its own: see `name`."""
    certificate, key = authority.issue("server")
    listeners = [word for scheme in TRANSPORTS.values() for word in (f"--{scheme}", "127.0.0.1:0")]
    tls = ["--certificate", str(certificate), "--key", str(key)]
    with run_node(tmp_path_factory.mktemp("node"), *listeners, *tls) as node:
        yield node


@pytest.fixture(params=TRANSPORTS.values(), ids=list(TRANSPORTS))
def reach(request: pytest.FixtureRequest, node: Node, authority: Authority) -> Reach:
    """Each transport in turn."""
    return Reach(request.param, node.port(request.param), authority.certificate)


@pytest.fixture
def tcp(node: Node, authority: Authority) -> Reach:
    return Reach("mqtt", node.port(), authority.certificate)


@pytest.fixture
def name() -> str:
    """A first topic level, or client id, that nobody else uses."""
    return f"t{uuid.uuid4().hex[:12]}"
