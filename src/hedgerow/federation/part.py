"""A node's federation on real sockets: links to neighbours, opened when the overlay asks for them."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from functools import partial
from typing import TYPE_CHECKING

from hedgerow.bridges.stamps import CONTROL_FILTER
from hedgerow.errors import ConfigError
from hedgerow.federation import federation as machine
from hedgerow.federation.config import FederationConfig, warn_of_readable_secrets
from hedgerow.federation.home import Home
from hedgerow.federation.interests.interests import Interests
from hedgerow.federation.io.discovery import NodeDiscovery, own_urls
from hedgerow.federation.neighbour_connection import NeighbourConnection
from hedgerow.federation.neighbour_session import Keeping
from hedgerow.federation.overlay.limits import DIAL_S
from hedgerow.federation.overlay.wire import Peer
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.deadline import DeadlineTimer
from hedgerow.node.dialling import DIAL_ERRORS, DIAL_TIMEOUT_S, dial, explain_dial, make_tls_context
from hedgerow.node.far_link import FarLink
from hedgerow.node.lookups import Lookups

if TYPE_CHECKING:
    from hedgerow.node.server import Server

logger = logging.getLogger(__name__)


class FederationPart:
    """`start` needs the server's broker and listeners."""

    machine: machine.Federation

    def __init__(self, server: Server) -> None:
        self._server = server
        self._config: FederationConfig = server.config.federation
        self._statics = self._config.read_neighbours()
        tls = (self._config.cafile, self._config.certfile, self._config.keyfile)
        self._tls = make_tls_context(*tls, "the federation")
        self._dialling: set[asyncio.Task[None]] = set()
        self._lookups = Lookups()
        self._timer = DeadlineTimer(server.clock, self._handle_timer)
        self._discovery: NodeDiscovery | None = None
        self._is_running = False
        self.interests: Interests | None = None  # of a sidecar, in what the broker beside it wants

    def start(self) -> None:
        server, config, now = self._server, self._config, self._server.clock()
        self.machine = machine.Federation(
            server.broker,
            map(str, self._own_urls()),
            now,
            random=random.random,
            random_bytes=secrets.token_bytes,
            key=config.key,
            redundancy=config.redundancy,
            settings=config.overlay_settings,
            keeping=Keeping(config.keep_s, config.queue_bytes),
            announce_interval_s=config.announce_interval_s,
        )
        warn_of_readable_secrets(config)
        for url in self._statics:
            self.machine.overlay.add_static(Peer("", (str(url),)), now)
        for url in config.join:
            self.machine.overlay.join(Peer("", (str(url),)), now)
        if config.discover:
            self._discovery = NodeDiscovery(server.node_id, config, server.urls, self._found)
            self._discovery.start()
        if config.home is not None:
            self._stand_beside(config.home, now)
        self._is_running = True
        self.machine.handle_timer(now)

    def _stand_beside(self, home: BrokerUrl, now: float) -> None:
        assert self._server.bridges is not None
        bridge = self._server.bridges.home
        assert bridge is not None
        self.interests = Interests(
            now,
            self._config.assume,
            client_id=bridge.section.remote_clientid_on(self._server.node_id),
            own_filters=(CONTROL_FILTER,),
            broker=str(home),
            user=home.username,
            remembered=bridge.listened,
        )
        Home(self.machine, bridge, self.interests)
        bridge.on_refused_by_node = partial(self._refused_by_node, home)

    def _refused_by_node(self, home: BrokerUrl, node_id: str) -> None:
        what = f"{home} is the Hedgerow node {node_id}, which federates itself"
        instead = f"start it by `hedgerow up --id {node_id} --neighbour URL`, and nothing beside it"
        self._server.on_hopeless(ConfigError(f"{what}: {instead}"))

    def _own_urls(self) -> list[BrokerUrl]:
        """What other members are told. A node whose neighbours are all given has no need to be found."""
        config = self._config
        if config.join or config.discover or config.enabled or config.advertise:
            return own_urls(config, self._server.urls)
        return []

    def _found(self, node_id: str, urls: list[str]) -> None:
        overlay, peer = self.machine.overlay, Peer(node_id, tuple(urls))
        if len(overlay.neighbours()) >= overlay.settings.active_target:
            overlay.remember([peer])  # Who joins everyone that it sees pushes others out.
        else:
            overlay.join(peer, self._server.clock())
        self.machine.has_work = True
        self._server.flush()

    def set_neighbours(self, neighbours: tuple[BrokerUrl, ...]) -> None:
        """The static ones from now on."""
        now, overlay = self._server.clock(), self.machine.overlay
        before, after = {str(url) for url in self._statics}, {str(url) for url in neighbours}
        self._statics = neighbours
        for address in sorted(before - after):
            overlay.remove_static(Peer("", (address,)), now)
        for address in sorted(after - before):
            overlay.add_static(Peer("", (address,)), now)
        self.machine.handle_timer(now)
        self._server.flush()

    async def stop(self) -> None:
        if not self._is_running:
            return
        self._is_running = False
        if self._discovery is not None:
            await self._discovery.stop()
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        self.machine.close(self._server.clock())
        self._server.flush()
        self._timer.cancel()

    @property
    def has_work(self) -> bool:
        return self._is_running and self.machine.has_work

    def serve(self) -> None:
        """Something happened: links to open, things to say, the next deadline."""
        now = self._server.clock()
        self.machine.serve(now)
        for peer in self.machine.take_dials():
            task = asyncio.get_running_loop().create_task(self._dial(peer))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        for event in self.machine.take_events():
            self._server.event_log.write(event, now)
        self._timer.set(self.machine.deadline)

    def _handle_timer(self) -> None:
        self.machine.handle_timer(self._server.clock())
        self._server.flush()

    async def _dial(self, peer: Peer) -> None:
        reason = "no address"
        # All of them together stay below the overlay's patience.
        timeout_s = min(DIAL_TIMEOUT_S, 0.9 * DIAL_S / max(1, len(peer.addresses)))
        for address in peer.addresses:
            url = self._config.url_to_dial(address, (*self._statics, *self._config.join))
            if url is None:
                continue
            try:
                await self._dial_url(peer, url, timeout_s)
                return
            except DIAL_ERRORS as error:
                reason = explain_dial(error, timeout_s)
        if self._is_running:
            self.machine.dial_failed(peer, reason)
            self._server.flush()

    async def _dial_url(self, peer: Peer, url: BrokerUrl, timeout_s: float) -> None:
        password = None if url.password is None else url.password.encode()
        context = self._tls() if url.is_tls else None

        async def open_to(host: str) -> None:
            link = FarLink(self._server, str(url), partial(self._open, peer, url, password))
            name = url.host if context is not None else None
            await link.open(host, url.port, ssl=context, server_hostname=name)

        await dial(self._lookups, url.host, open_to, timeout_s)

    def _open(self, peer: Peer, url: BrokerUrl, password: bytes | None, now: float) -> NeighbourConnection:
        return self.machine.open(peer, str(url), now, url.username, password)
