"""The bridges of a node on real sockets: links to far brokers, opened when their machines ask for it."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hedgerow.bridges.bridge_set import BridgeSet
from hedgerow.bridges.commands import Commands
from hedgerow.bridges.config import BridgesConfig
from hedgerow.errors import ConfigError
from hedgerow.node.addresses import dialled_address, is_of_this_machine
from hedgerow.node.dialling import Dialler, Place
from hedgerow.node.fabric_key import find_key
from hedgerow.node.far_link import FarLink
from hedgerow.node.part import NodeContext, Part
from hedgerow.node.status_format import describe_link
from hedgerow.node.tls_files import client_context, load_certificate
from hedgerow.rates import is_loopback

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hedgerow.bridges.bridge import Bridge
    from hedgerow.bridges.following import FollowingBridge
    from hedgerow.bridges.section import FarAddress, Section
    from hedgerow.broker.dialled import DialledConnection
    from hedgerow.node.api import ApiRoute
    from hedgerow.node.config import Config

logger = logging.getLogger(__name__)

TLS_FILES_REFUSED = "the TLS files of the bridge cannot be used; the node's log tells why"
TLS_VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


class BridgesPart(Part):
    bridges: BridgeSet
    commands: Commands
    home: FollowingBridge | None = None
    """To the broker that the node stands beside, if another part has set `make_home`."""

    def __init__(self, node: NodeContext) -> None:
        """Raises ConfigError for a file of the configuration that is wrong."""
        super().__init__(node)
        self._sections = _read_sections(node.config.of(BridgesConfig))
        path = node.config.key_file
        self._secret = None if path is None else find_key(path)  # The user's own is made when it is needed.
        self._dialler = Dialler(node)
        self.make_home: Callable[[str], Section] | None = None
        """To be set before `start`, when the node's id is known, which it is given."""

    def _find_secret(self) -> bytes:
        return self._secret or find_key(None)

    async def start(self) -> None:
        """Raises ConfigError for a bridge of the configuration that cannot be."""
        node, now = self.node, self.node.clock()
        token = lambda: int.from_bytes(os.urandom(6))  # noqa: E731 (a function of one line)
        self.bridges = BridgeSet(node.broker, _random, token, self._is_own, self._find_secret)
        for section in self._sections:
            self.bridges.create(section, now)
        if self.make_home is not None:
            self.home = self.bridges.follow(self.make_home(node.node_id), now)
        self.commands = Commands(node.broker, self.bridges, now)
        self.commands.restore(now)
        self.bridges.leave_unclaimed()

    def _is_own(self, address: FarAddress) -> bool:
        """Does one of this node's listeners answer at this address? Names are looked up when dialled."""
        host = "127.0.0.1" if address.host == "localhost" else dialled_address(address.host)
        return is_of_this_machine(host) and any(
            port == address.port
            and (bound in ("0.0.0.0", "::", host) or is_loopback(host) is is_loopback(bound))
            for bound, port in self.node.listening
        )

    def reload(self, config: Config) -> Callable[[], None]:
        """Bridges of the configuration that are new, changed or gone. Others keep their links."""
        return partial(self._set_sections, _read_sections(config.of(BridgesConfig)))

    def _set_sections(self, sections: list[Section]) -> None:
        now, before = self.node.clock(), {section.name: section for section in self._sections}
        after = {section.name: section for section in sections}
        self._sections = sections
        for name in before.keys() - after.keys():
            if name in self.bridges and not self.commands.has_made(name):
                self.bridges.delete(name, now)
        for name, section in after.items():
            if before.get(name) != section:
                try:
                    self.bridges.create(replace(section, replace=True), now)
                except ConfigError as error:
                    logger.error("bridge %s is as it was: %s", name, error)
        self.bridges.has_work = True
        self.node.flush()

    async def stop(self) -> None:
        await self._dialler.stop()
        now = self.node.clock()
        self.bridges.close(now)
        self.commands.publish_states(now)
        self.commands.close()
        self.node.flush()

    @property
    def has_work(self) -> bool:
        return self.is_running and (self.bridges.has_work or self.commands.has_work)

    def serve(self) -> None:
        """Something happened to a bridge: links to open, states to tell, the next deadline."""
        bridges, now = self.bridges, self.node.clock()
        bridges.serve(now)
        bridges.has_work = False
        for bridge, address in bridges.take_dials(now):
            self._dial(bridge, address)
        self.commands.publish_states(now)
        for event in (*bridges.take_events(), *self.commands.take_events()):
            self.node.event_log.write(event, now)

    @property
    def deadline(self) -> float:
        return self.bridges.deadline

    def handle_timer(self, now: float) -> None:
        self.bridges.handle_timer(now)
        self.bridges.has_work = True

    def _dial(self, bridge: Bridge, address: FarAddress) -> None:
        section = bridge.section

        def open_connection(link: FarLink, now: float) -> DialledConnection:
            return bridge.open(address, now)

        def failed(reason: str) -> None:
            bridge.handle_dial_failed(address, reason, self.node.clock())

        make_tls = partial(self._make_tls, section) if section.is_tls else None
        place = Place(
            str(address), address.host, address.port, open_connection, make_tls, section.bridge_bind_address
        )
        self._dialler.dial(bridge, [place], failed)

    def _make_tls(self, section: Section) -> ssl.SSLContext:
        """Raises ConfigError."""
        try:
            return _tls_context(section)
        except ConfigError as error:
            # A command may name any file, and a state is public: why it fails, which would tell which files
            # there are, only the administrator may know.
            from hedgerow.bridges.events import TlsFilesRefused

            self.node.event_log.write(TlsFilesRefused(section.name, str(error)), self.node.clock())
            raise ConfigError(TLS_FILES_REFUSED) from None

    # What it shows

    def api(self) -> Sequence[ApiRoute]:
        from hedgerow.bridges.io.routes import bridge_routes

        return bridge_routes(self)

    def status(self) -> Mapping[str, Any]:
        return {"links": [_describe(bridge) for bridge in self.bridges.kept]}

    def health(self) -> Mapping[str, int]:
        kept = self.bridges.kept
        return {"bridges": len(kept), "bridges_up": sum(bridge.is_up for bridge in kept)}

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.bridges.metrics import bridge_metrics

        return bridge_metrics(self.bridges.kept)


def _read_sections(config: BridgesConfig) -> list[Section]:
    if not config.bridges and not config.texts:
        return []
    from hedgerow.bridges.io.files import read_bridge_files

    return read_bridge_files(config.bridges, config.texts)


def _describe(bridge: Bridge) -> dict[str, Any]:
    far_node = bridge.connection.far_node if bridge.connection is not None else None
    to = far_node or str(bridge.address or bridge.section.addresses[0])
    state, queued = bridge.state.value, bridge.session.waiting_count
    told = describe_link("bridge", bridge.section.name, to, state, queued, bridge.round_trip_s)
    return told | bridge.ledgers()


def _tls_context(section: Section) -> ssl.SSLContext:
    """Raises ConfigError that names the file."""
    context = client_context(section.bridge_cafile, section.bridge_capath)
    if section.bridge_certfile is not None:
        load_certificate(context, section.bridge_certfile, section.bridge_keyfile)
    if section.bridge_insecure:
        context.check_hostname = False
    if section.bridge_tls_version is not None:
        context.minimum_version = context.maximum_version = TLS_VERSIONS[section.bridge_tls_version]
    if section.bridge_alpn is not None:
        context.set_alpn_protocols([section.bridge_alpn])
    return context


def _random() -> float:
    """From 0 to 1. The module of this name is 0.2 MiB that nothing else needs."""
    return int.from_bytes(os.urandom(6)) / 2**48
