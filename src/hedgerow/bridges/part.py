"""The bridges of a node on real sockets: links to far brokers, opened when their machines ask for it."""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
from functools import partial
from typing import TYPE_CHECKING

from hedgerow.bridges.bridge import Bridge
from hedgerow.bridges.bridge_set import BridgeSet
from hedgerow.bridges.commands import Commands
from hedgerow.bridges.following import FollowingBridge
from hedgerow.bridges.io.files import read_bridge_files
from hedgerow.bridges.section import FarAddress, Section
from hedgerow.client.link import explain
from hedgerow.errors import ConfigError
from hedgerow.node.addresses import is_of_this_machine
from hedgerow.node.deadline import DeadlineTimer
from hedgerow.node.dialling import DIAL_ERRORS, DIAL_TIMEOUT_S, explain_dial
from hedgerow.node.far_link import FarLink
from hedgerow.node.lookups import Lookups
from hedgerow.rates import is_loopback

if TYPE_CHECKING:
    from hedgerow.node.server import Server

TLS_VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


class Bridges:
    """`start` needs the server's broker."""

    bridges: BridgeSet
    commands: Commands
    home: FollowingBridge | None = None  # of a sidecar, to the broker that it stands beside

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sections = read_bridge_files(server.config.bridges)
        self._dialling: set[asyncio.Task[None]] = set()
        self._lookups = Lookups()
        self._timer = DeadlineTimer(server.clock, self._handle_timer)
        self._is_running = False

    def start(self) -> None:
        """Raises ConfigError for a bridge of the configuration that cannot be."""
        server, now = self._server, self._server.clock()
        token = lambda: secrets.randbits(48)  # noqa: E731 (a function of one line)
        self.bridges = BridgeSet(server.broker, random.random, token, self._is_own)
        for section in self._sections:
            self.bridges.create(section, now)
        federation = server.config.federation
        if federation.home is not None:
            from hedgerow.federation.io.home_section import home_section

            section = home_section(federation, federation.home, server.node_id)
            self.home = self.bridges.follow(section, now)
        self.commands = Commands(server.broker, self.bridges, now)
        self.commands.restore(now)
        self.bridges.leave_unclaimed()
        self._is_running = True

    def _is_own(self, address: FarAddress) -> bool:
        """Does one of this node's listeners answer at this address? Names are looked up when dialled."""
        host = "127.0.0.1" if address.host == "localhost" else address.host
        return is_of_this_machine(host) and any(
            port == address.port
            and (bound in ("0.0.0.0", "::", host) or is_loopback(host) is is_loopback(bound))
            for bound, port in self._server.listening
        )

    async def stop(self) -> None:
        if not self._is_running:
            return
        self._is_running = False
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        self.bridges.close(self._server.clock())
        self.commands.publish_states(self._server.clock())
        self.commands.close()
        self._timer.cancel()
        self._server.flush()

    @property
    def has_work(self) -> bool:
        return self._is_running and (self.bridges.has_work or self.commands.has_work)

    def serve(self) -> None:
        """Something happened to a bridge: links to open, states to tell, the next deadline."""
        server, bridges = self._server, self.bridges
        now = server.clock()
        bridges.serve(now)
        bridges.has_work = False
        for bridge, address in bridges.take_dials(now):
            task = asyncio.get_running_loop().create_task(self._dial(bridge, address))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        self.commands.publish_states(now)
        for event in (*bridges.take_events(), *self.commands.take_events()):
            server.event_log.write(event, now)
        self._timer.set(bridges.deadline)

    def _handle_timer(self) -> None:
        self.bridges.handle_timer(self._server.clock())
        self.bridges.has_work = True
        self._server.flush()

    async def _dial(self, bridge: Bridge, address: FarAddress) -> None:
        section = bridge.section
        reason = "no address"
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                context = _tls_context(section) if section.is_tls else None
                local = (section.bridge_bind_address, 0) if section.bridge_bind_address else None
                for host in await self._lookups.find(address.host):
                    try:
                        link = FarLink(self._server, str(address), partial(bridge.open, address))
                        await link.open(
                            host,
                            address.port,
                            ssl=context,
                            server_hostname=address.host if context is not None else None,
                            local_addr=local,
                        )
                        return
                    except OSError as error:
                        reason = explain(error)  # of the last, if all fail
        except DIAL_ERRORS as error:
            reason = explain_dial(error)
        if self._is_running:
            bridge.handle_dial_failed(address, reason, self._server.clock())
            self._server.flush()


def _tls_context(section: Section) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=section.bridge_cafile, capath=section.bridge_capath)
        if section.bridge_certfile is not None:
            context.load_cert_chain(section.bridge_certfile, section.bridge_keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS files of the bridge cannot be used: {explain(error)}") from None
    if section.bridge_insecure:
        context.check_hostname = False
    if section.bridge_tls_version is not None:
        context.minimum_version = context.maximum_version = TLS_VERSIONS[section.bridge_tls_version]
    if section.bridge_alpn is not None:
        context.set_alpn_protocols([section.bridge_alpn])
    return context
