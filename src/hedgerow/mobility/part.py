"""A mobile or a fixed broker on real sockets: links to fixed brokers, opened when the mobile one asks for
them, its relay, and the deadlines of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hedgerow.mobility.config import MobilityConfig, secret_files
from hedgerow.mobility.fixed import FixedNode
from hedgerow.mobility.io.relay import Relay
from hedgerow.mobility.link import FixedLink
from hedgerow.mobility.links import UNLISTED
from hedgerow.mobility.mobile import MobileNode
from hedgerow.mobility.status import describe_hot
from hedgerow.node.authority import authority
from hedgerow.node.broker_urls import BrokerUrl, is_unspecified, warn_if_readable
from hedgerow.node.dialling import Dialler, Place, make_tls_context
from hedgerow.node.far_link import FarLink
from hedgerow.node.memory import SpareMemory, give_back
from hedgerow.node.part import NodeContext, Part
from hedgerow.node.status_format import describe_link

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hedgerow.node.config import Config

MANY_DELEGATED = 1_000
"""Filters, after which memory is given back: what this broker matched them with is freed."""
MOBILE_TELL_S = 2.0  # The link to the fixed broker is small, and nobody here knows who listens there.


class MobilityPart(Part):
    machine: MobileNode | FixedNode

    def __init__(self, node: NodeContext) -> None:
        """Binds the relay. Raises ConfigError."""
        super().__init__(node)
        self._config = config = node.config.of(MobilityConfig)
        self._fixed = {str(url): url for url in config.read_fixed()}
        self._make_tls = make_tls_context(config.cafile, config.certfile, config.keyfile, "mobility")
        self._links: dict[str, FixedLink] = {}  # by URL, the last that was opened
        self._dialler = Dialler(node)
        self.tell_status_s = MOBILE_TELL_S if config.is_mobile else 0.0
        self._spare = SpareMemory(MANY_DELEGATED)
        self.relay: Relay | None = None
        if config.relay is not None:
            self.relay = Relay(node, config.relay, self._relay_target)

    @property
    def relaying(self) -> list[str]:
        return [self.relay.address] if self.relay is not None else []

    @property
    def mobile_node(self) -> MobileNode | None:
        return self.machine if isinstance(self.machine, MobileNode) else None

    @property
    def fixed_node(self) -> FixedNode | None:
        return self.machine if isinstance(self.machine, FixedNode) else None

    async def start(self) -> None:
        broker, config, now = self.node.broker, self._config, self.node.clock()
        if config.is_mobile:
            relay_address = self.relay.address if self.relay is not None else ""
            settings = config.settings_with(self._fixed.values(), relay_address)
            self.machine = MobileNode(broker, config.domain, settings, now)
        else:
            takeover_after_s = config.settings.takeover_after_s
            self.machine = FixedNode(broker, config.domain, config.allow, takeover_after_s, config.homes)
        warn_if_readable(secret_files(self.node.config).values())
        if self.relay is not None:
            self.relay.start()

    def reload(self, config: Config) -> Callable[[], None]:
        named = config.of(MobilityConfig)
        new = replace(self._config, fixed=named.fixed, fixed_file=named.fixed_file)
        return partial(self._reloaded, new, new.read_fixed())

    def _reloaded(self, config: MobilityConfig, urls: tuple[BrokerUrl, ...]) -> None:
        self._config = config
        self._set_fixed(urls)

    def _set_fixed(self, urls: tuple[BrokerUrl, ...]) -> None:
        """The fixed brokers from now on, in order of preference."""
        if isinstance(self.machine, MobileNode):
            self._fixed = {str(url): url for url in urls}
            for address in self._dialler.keys:
                # It may hang until this one is listed again, and would then be a second link to it.
                if address not in self._fixed and self._dialler.cancel(address):
                    self.machine.links.dial_failed(str(address), UNLISTED, self.node.clock())
            self.machine.set_fixed(self._fixed, self.node.clock())
            self.node.flush()

    async def stop(self) -> None:
        if self.relay is not None:
            await self.relay.stop()
        await self._dialler.stop()
        self.machine.close(self.node.clock())
        self.node.flush()

    async def close(self) -> None:
        if self.relay is not None:
            await self.relay.stop()

    @property
    def has_work(self) -> bool:
        return self.is_running and self.machine.has_work

    def serve(self) -> None:
        """Something happened: links to open, things to say, the next deadline."""
        machine, now = self.machine, self.node.clock()
        machine.serve(now)
        if isinstance(machine, MobileNode):
            for address in machine.links.take_dials():
                self._dial(machine, address)
        for event in machine.take_events():
            self.node.event_log.write(event, now)
        self._spare.note(len(self.node.broker.subscriptions.inactive), now)

    @property
    def deadline(self) -> float:
        return min(self.machine.deadline, self._spare.deadline)

    def handle_timer(self, now: float) -> None:
        self.machine.handle_timer(now)
        if self._spare.is_due(now):
            self.node.broker.forget_routes()  # Publishers remember those of a thousand topics each.
            give_back()

    def _dial(self, mobile: MobileNode, address: str) -> None:
        def failed(reason: str) -> None:
            mobile.links.dial_failed(address, reason, self.node.clock())

        url = self._fixed.get(address)
        places = [self._place(mobile, url)] if url is not None else []
        self._dialler.dial(address, places, failed, reason=UNLISTED)

    def _place(self, mobile: MobileNode, url: BrokerUrl) -> Place:
        password = None if url.password is None else url.password.encode()

        def open_connection(link: FarLink, now: float) -> FixedLink:
            opened = mobile.links.open(str(url), self._clients_at(link), now, url.username, password)
            self._links = {each: self._links[each] for each in self._links if each in self._fixed}
            self._links[str(url)] = opened
            return opened

        make_tls = self._make_tls if url.is_tls else None
        return Place(str(url), url.host, url.port, open_connection, make_tls)

    def _clients_at(self, link: FarLink) -> str:
        """Where the fixed broker is to send this node's clients: where it listens, and if that is everywhere,
        where this link comes from."""
        if self._config.settings.address or not self.node.listening:
            return self._config.settings.address
        host, port = self.node.listening[0]
        if is_unspecified(host):
            host = link.transport.get_extra_info("sockname")[0]
        return authority(host, port)

    def _relay_target(self) -> tuple[str, int] | None:
        """The fixed broker that this one is with, also while its link is down: clients may get in."""
        mobile = self.mobile_node
        current = mobile.machine.current if mobile is not None else None
        for address, link in self._links.items():
            if current is not None and link.far_node == current.fixed_id and address in self._fixed:
                return self._fixed[address].host, self._fixed[address].port
        return None

    # What it shows

    def status(self) -> Mapping[str, Any]:
        told = {"kind": self._config.role, "links": list(self._describe_links())}
        mobile = self.mobile_node
        if mobile is None:
            return told
        fixed = str((mobile.state.link or {}).get("broker") or "")
        return told | {"hot": describe_hot(mobile.monitor, fixed)}

    def _describe_links(self) -> Iterator[dict[str, Any]]:
        mobile, fixed = self.mobile_node, self.fixed_node
        if mobile is not None:
            link = mobile.state.link
            if link is not None and link["broker"]:
                fixed_id = str(link["broker"])
                yield describe_link("fixed", fixed_id, fixed_id, "up" if link["linked"] else "down")
        if fixed is not None:
            for mobile_id, _, _ in fixed.describe():
                state = "up" if fixed.is_linked(mobile_id) else "down"
                yield describe_link("mobile", mobile_id, mobile_id, state)

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.mobility.metrics import hot_metrics, mobility_metrics

        delegated = len(self.node.broker.subscriptions.inactive)
        relayed = len(self.relay.passed) if self.relay is not None else None
        yield from mobility_metrics(self.machine, delegated, relayed)
        if (mobile := self.mobile_node) is not None:
            yield from hot_metrics(mobile.monitor)
