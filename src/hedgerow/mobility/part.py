"""A mobile or a fixed broker on real sockets: links to fixed brokers, opened when the mobile one asks for
them, its relay, and the deadlines of both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hedgerow.errors import ConfigError
from hedgerow.mobility.config import warn_of_readable_secrets
from hedgerow.mobility.fixed import FixedNode
from hedgerow.mobility.io.relay import Relay
from hedgerow.mobility.link import FixedLink
from hedgerow.mobility.links import UNLISTED
from hedgerow.mobility.mobile import MobileNode
from hedgerow.node.authority import authority
from hedgerow.node.broker_urls import BrokerUrl, is_unspecified
from hedgerow.node.deadline import DeadlineTimer
from hedgerow.node.dialling import DIAL_ERRORS, dial, explain_dial, make_tls_context
from hedgerow.node.far_link import FarLink
from hedgerow.node.lookups import Lookups

if TYPE_CHECKING:
    from hedgerow.node.server import Server


class MobilityPart:
    """`start` needs the server's broker and listeners, and makes `node`."""

    node: MobileNode | FixedNode

    def __init__(self, server: Server) -> None:
        """Binds the relay. Raises ConfigError."""
        self._server = server
        self._config = config = server.config.mobility
        self._fixed = {str(url): url for url in config.read_fixed()}
        self._tls = make_tls_context(config.cafile, config.certfile, config.keyfile, "mobility")
        self._links: dict[str, FixedLink] = {}  # by URL, the last that was opened
        self._dialling: dict[asyncio.Task[None], str] = {}  # and the URL that each dials
        self._lookups = Lookups()
        self._timer = DeadlineTimer(server.clock, self._handle_timer)
        self._is_running = False
        self.relay: Relay | None = None
        if config.relay is not None:
            self.relay = Relay(server, config.relay, self._relay_target)

    @property
    def mobile_node(self) -> MobileNode | None:
        return self.node if isinstance(self.node, MobileNode) else None

    @property
    def fixed_node(self) -> FixedNode | None:
        return self.node if isinstance(self.node, FixedNode) else None

    def start(self) -> None:
        server, config, now = self._server, self._config, self._server.clock()
        if config.is_mobile:
            relay_address = self.relay.address if self.relay is not None else ""
            settings = config.settings_with(self._fixed.values(), relay_address)
            self.node = MobileNode(server.broker, config.domain, settings, now)
        else:
            takeover_after_s = config.settings.takeover_after_s
            self.node = FixedNode(server.broker, config.domain, config.allow, takeover_after_s)
        warn_of_readable_secrets(config)
        if self.relay is not None:
            self.relay.start()
        self._is_running = True

    def set_fixed(self, urls: tuple[BrokerUrl, ...]) -> None:
        """The fixed brokers from now on, in order of preference."""
        if isinstance(self.node, MobileNode):
            self._fixed = {str(url): url for url in urls}
            for task, address in self._dialling.items():
                # It may hang until this one is listed again, and would then be a second link to it.
                if address not in self._fixed and task.cancel():
                    self.node.links.dial_failed(address, UNLISTED, self._server.clock())
            self.node.set_fixed(self._fixed, self._server.clock())
            self._server.flush()

    async def stop(self) -> None:
        if self.relay is not None:
            await self.relay.stop()
        if not self._is_running:
            return
        self._is_running = False
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        self.node.close(self._server.clock())
        self._server.flush()
        self._timer.cancel()

    @property
    def has_work(self) -> bool:
        return self._is_running and self.node.has_work

    def serve(self) -> None:
        """Something happened: links to open, things to say, the next deadline."""
        node, now = self.node, self._server.clock()
        node.serve(now)
        if isinstance(node, MobileNode):
            for address in node.links.take_dials():
                task = asyncio.get_running_loop().create_task(self._dial(node, address))
                self._dialling[task] = address
                task.add_done_callback(self._dialling.pop)
        for event in node.take_events():
            self._server.event_log.write(event, now)
        self._timer.set(node.deadline)

    def _handle_timer(self) -> None:
        self.node.handle_timer(self._server.clock())
        self._server.flush()

    async def _dial(self, node: MobileNode, address: str) -> None:
        try:
            url = self._fixed.get(address)
            if url is None:
                raise ConfigError(UNLISTED)
            await self._dial_url(node, url)
        except DIAL_ERRORS as error:
            if self._is_running:
                node.links.dial_failed(address, explain_dial(error), self._server.clock())
                self._server.flush()

    async def _dial_url(self, node: MobileNode, url: BrokerUrl) -> None:
        password = None if url.password is None else url.password.encode()
        context = self._tls() if url.is_tls else None

        async def open_to(host: str) -> None:
            def open_connection(now: float) -> FixedLink:
                clients_at = self._clients_at(link)
                opened = node.links.open(str(url), clients_at, now, url.username, password)
                self._links = {each: self._links[each] for each in self._links if each in self._fixed}
                self._links[str(url)] = opened
                return opened

            link = FarLink(self._server, str(url), open_connection)
            name = url.host if context is not None else None
            await link.open(host, url.port, ssl=context, server_hostname=name)

        await dial(self._lookups, url.host, open_to)

    def _clients_at(self, link: FarLink) -> str:
        """Where the fixed broker is to send this node's clients: where it listens, and if that is everywhere,
        where this link comes from."""
        if self._config.settings.address or not self._server.listening:
            return self._config.settings.address
        host, port = self._server.listening[0]
        if is_unspecified(host):
            host = link.transport.get_extra_info("sockname")[0]
        return authority(host, port)

    def _relay_target(self) -> tuple[str, int] | None:
        """The fixed broker that this one is with, also while its link is down: clients may get in."""
        current = self.node.machine.current if isinstance(self.node, MobileNode) else None
        for address, link in self._links.items():
            if current is not None and link.far_node == current.fixed_id and address in self._fixed:
                return self._fixed[address].host, self._fixed[address].port
        return None
