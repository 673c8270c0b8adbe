"""A node's federation on real sockets: links to neighbours, opened when the overlay asks for them."""

from __future__ import annotations

import json
import logging
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from hedgerow.bridges.far_connection import OWN_FILTERS
from hedgerow.bridges.part import BridgesPart
from hedgerow.errors import ConfigError
from hedgerow.federation import federation as machine
from hedgerow.federation.config import DOCUMENT_WIRE, DocumentUrl, FederationConfig, secret_files
from hedgerow.federation.document.gateway import FILTERS as DOCUMENT_FILTERS
from hedgerow.federation.document.gateway import DocumentGateway, GatewaySettings
from hedgerow.federation.document.link import DocumentLink
from hedgerow.federation.document.neighbours import DocumentPeer
from hedgerow.federation.document.wire import OWN_TOPICS
from hedgerow.federation.document.wire import QOS as DOCUMENT_QOS
from hedgerow.federation.home import Home
from hedgerow.federation.interests.interests import EVERYTHING, Interests
from hedgerow.federation.io.discovery import NodeDiscovery, own_urls
from hedgerow.federation.io.home_section import home_section
from hedgerow.federation.log_probe import LogProbe
from hedgerow.federation.mesh.meshes import FilterState
from hedgerow.federation.neighbour_connection import NeighbourConnection
from hedgerow.federation.neighbour_session import Keeping
from hedgerow.federation.overlay.limits import DIAL_S
from hedgerow.federation.overlay.wire import Peer
from hedgerow.federation.state import describe_filters, ledgers_of
from hedgerow.node.api import LINK, READ, ApiRoute, list_of, record
from hedgerow.node.broker_urls import BrokerUrl, warn_if_readable
from hedgerow.node.dialling import DIAL_TIMEOUT_S, Dialler, Place, make_tls_context
from hedgerow.node.far_link import FarLink
from hedgerow.node.part import NEVER, NodeContext, Part
from hedgerow.node.status_format import MAX_FILTERS, describe_link
from hedgerow.node.strangers import ELSEWHERE, takes_strangers

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hedgerow.node.config import Config

logger = logging.getLogger(__name__)

MESHES = "meshes"  # told beside the node's status
MAX_FILTER = 1_000  # characters
MAX_FILTERS_BYTES = 256 * 1024  # of all of them, as JSON
MAX_NOT_REACHED = 20


class FederationPart(Part):
    machine: machine.Federation
    tells_beside = (MESHES,)

    def __init__(self, node: NodeContext) -> None:
        """Raises ConfigError."""
        super().__init__(node)
        self._config = node.config.of(FederationConfig)
        self._statics = self._config.read_linked()
        self._documents = self._config.read_document_neighbours()
        tls = (self._config.cafile, self._config.certfile, self._config.keyfile)
        self._make_tls = make_tls_context(*tls, "the federation")
        self._dialler = Dialler(node)
        self._discovery: NodeDiscovery | None = None
        self.gateway: DocumentGateway | None = None  # where neighbours speak the document's wire
        self.interests: Interests | None = None  # of a sidecar, in what the broker beside it wants
        self._bridges = node.find(BridgesPart)
        if self._config.home is not None and self._bridges is not None:
            self._bridges.make_home = partial(home_section, self._config, self._config.home)

    async def start(self) -> None:
        node, config, now = self.node, self._config, self.node.clock()
        self.machine = machine.Federation(
            node.broker,
            map(str, self._own_urls()),
            now,
            random=random.random,
            random_bytes=secrets.token_bytes,
            key=config.key,
            redundancy=config.redundancy,
            settings=config.overlay_settings,
            keeping=Keeping(config.keep_s, config.queue_bytes),
            announce_interval_s=config.announce_interval_s,
            is_certified=config.is_certified,
            takes_strangers=takes_strangers(node.config, ELSEWHERE),
        )
        node.broker.duplicates.clock = node.clock
        node.broker.duplicates.set_bounds(config.data_log_bytes, config.data_log_age_s)
        warn_if_readable(secret_files(node.config).values())
        for url in self._statics:
            self.machine.overlay.add_static(Peer("", (str(url),)), now)
        for url in config.join:
            self.machine.overlay.join(Peer("", (str(url),)), now)
        if config.discover:
            self._discovery = NodeDiscovery(node.node_id, config, node.urls, self._found)
            self._discovery.start()
        if self._documents or config.wire == DOCUMENT_WIRE:
            self._open_gateway(now)
        if config.home is not None:
            self._stand_beside(config.home, now)
        self.machine.handle_timer(now)

    def _open_gateway(self, now: float) -> None:
        config, machine = self._config, self.machine
        self.gateway = DocumentGateway(
            self.node.broker,
            GatewaySettings(
                _peers(self._documents),
                config.data_log_bytes,
                config.data_log_age_s,
                config.redundancy,
                config.announce_interval_s,
                Keeping(config.keep_s, config.queue_bytes),
            ),
            now,
            is_in_fabric=self._is_in_fabric,
            token=partial(secrets.randbits, 64),
            is_sidecar=config.home is not None,
        )
        machine.keep_here(OWN_TOPICS)

    def _is_in_fabric(self) -> bool:
        """Are there neighbours of our own kind, or are there to be?"""
        config = self._config
        return bool(self._statics or config.join or config.discover or self.machine.overlay.round_trips)

    def _stand_beside(self, home: BrokerUrl, now: float) -> None:
        bridge = self._bridges.home if self._bridges is not None else None
        assert bridge is not None
        self.interests = Interests(
            now,
            self._config.assume or (),
            # Whoever names what is wanted knows it.
            until_known=EVERYTHING if self._config.assume is None else (),
            client_id=bridge.section.remote_clientid_on(self.node.node_id),
            own_filters=OWN_FILTERS,
            broker=str(home),
            user=home.username,
            remembered=bridge.listened,
        )
        beside = Home(self.machine, bridge, self.interests)
        beside.dial_probe = partial(self._dial_log_probe, beside, home)
        if self.gateway is not None:
            for topic_filter in DOCUMENT_FILTERS:
                bridge.watch(topic_filter, self.gateway.hear, DOCUMENT_QOS)
        bridge.on_refused_by_node = partial(self._refused_by_node, home)

    def _dial_log_probe(self, beside: Home, url: BrokerUrl) -> None:
        password = None if url.password is None else url.password.encode()

        def open_connection(link: FarLink, now: float) -> LogProbe:
            return LogProbe(self.node.broker, now, str(url), url.username, password, beside.probed)

        place = Place(str(url), url.host, url.port, open_connection, self._make_tls if url.is_tls else None)
        self._dialler.dial(LogProbe, [place], lambda reason: beside.probed(has_left=False))

    def _refused_by_node(self, home: BrokerUrl, node_id: str) -> None:
        what = f"{home} is the Hedgerow node {node_id}, which federates itself"
        instead = f"start it by `hedgerow up --id {node_id} --neighbour URL`, and nothing beside it"
        self.node.give_up(ConfigError(f"{what}: {instead}"))

    def _own_urls(self) -> list[BrokerUrl]:
        """What other members are told. A node whose neighbours are all given has no need to be found."""
        config = self._config
        if config.join or config.discover or config.enabled or config.advertise:
            return own_urls(config, self.node.urls)
        return []

    def _found(self, node_id: str, urls: list[str]) -> None:
        overlay, peer = self.machine.overlay, Peer(node_id, tuple(urls))
        if len(overlay.neighbours()) < overlay.settings.active_target:
            overlay.join(peer, self.node.clock())
        elif self._config.key is None:  # With one, the others would take it for a member's word.
            overlay.remember([peer])  # Who joins everyone that it sees pushes others out.
        self.machine.has_work = True
        self.node.flush()

    def reload(self, config: Config) -> Callable[[], None]:
        """The neighbours that are named."""
        named = config.of(FederationConfig)
        new = replace(self._config, neighbours=named.neighbours, neighbours_file=named.neighbours_file)
        return partial(self._reloaded, new, new.read_linked(), new.read_document_neighbours())

    def _reloaded(
        self, config: FederationConfig, linked: tuple[BrokerUrl, ...], documents: tuple[DocumentUrl, ...]
    ) -> None:
        self._config = config
        self.machine.rights_changed()
        self._set_neighbours(linked)
        if self.gateway is not None:
            for gone in set(map(_address, self._documents)) - set(map(_address, documents)):
                self._dialler.cancel(gone)
            self._documents = documents
            self.gateway.set_neighbours(_peers(documents), self.node.clock())
            self.node.flush()

    def _set_neighbours(self, neighbours: tuple[BrokerUrl, ...]) -> None:
        """The static ones from now on."""
        now, overlay = self.node.clock(), self.machine.overlay
        before, after = {str(url) for url in self._statics}, {str(url) for url in neighbours}
        self._statics = neighbours
        for address in sorted(before - after):
            overlay.remove_static(Peer("", (address,)), now)
        for address in sorted(after - before):
            overlay.add_static(Peer("", (address,)), now)
        self.machine.handle_timer(now)
        self.node.flush()

    async def stop(self) -> None:
        if self._discovery is not None:
            await self._discovery.stop()
        await self._dialler.stop()
        if self.gateway is not None:
            self.gateway.close(self.node.clock())
        self.machine.close(self.node.clock())
        self.node.flush()

    @property
    def has_work(self) -> bool:
        return self.is_running and (
            self.machine.has_work or (self.gateway is not None and self.gateway.has_work)
        )

    def serve(self) -> None:
        """Something happened: links to open, things to say, the next deadline."""
        now = self.node.clock()
        if self.gateway is not None:
            self._serve_gateway(self.gateway, now)
        self.machine.serve(now)
        for peer in self.machine.take_dials():
            self._dial(peer)
        for event in self.machine.take_events():
            self.node.event_log.write(event, now)

    def _serve_gateway(self, gateway: DocumentGateway, now: float) -> None:
        gateway.serve(now)
        for address in gateway.take_dials():
            self._dial_document(gateway, address)
        for event in gateway.take_events():
            self.node.event_log.write(event, now)

    @property
    def deadline(self) -> float:
        of_gateway = self.gateway.deadline if self.gateway is not None else NEVER
        return min(self.machine.deadline, of_gateway)

    def handle_timer(self, now: float) -> None:
        if self.gateway is not None:
            self.gateway.handle_timer(now)
        self.machine.handle_timer(now)

    def _dial(self, peer: Peer) -> None:
        listed = (*self._statics, *self._config.join)
        urls = (self._config.url_to_dial(address, listed) for address in peer.addresses)
        places = [self._place(peer, url) for url in urls if url is not None]
        # All of them together stay below the overlay's patience.
        timeout_s = min(DIAL_TIMEOUT_S, 0.9 * DIAL_S / max(1, len(peer.addresses)))
        self._dialler.dial(peer, places, partial(self.machine.dial_failed, peer), timeout_s)

    def _dial_document(self, gateway: DocumentGateway, address: str) -> None:
        known = next(each.url for each in self._documents if _address(each) == address)
        url = self._config.document_url_to_dial(known)
        password = None if url.password is None else url.password.encode()

        def open_connection(link: FarLink, now: float) -> DocumentLink:
            return gateway.open(address, now, url.username, password)

        place = Place(address, url.host, url.port, open_connection, self._make_tls if url.is_tls else None)
        self._dialler.dial(address, [place], partial(gateway.dial_failed, address))

    def _place(self, peer: Peer, url: BrokerUrl) -> Place:
        password = None if url.password is None else url.password.encode()

        def open_connection(link: FarLink, now: float) -> NeighbourConnection:
            return self.machine.open(peer, str(url), now, url.username, password)

        make_tls = self._make_tls if url.is_tls else None
        return Place(str(url), url.host, url.port, open_connection, make_tls)

    # What it shows

    def status(self) -> Mapping[str, Any]:
        home = self._config.home
        links = {"links": list(chain(self._neighbours(), self._document_neighbours(), self._not_reached()))}
        return links if home is None else links | {"kind": "sidecar", "beside": str(home)}

    def api(self) -> Sequence[ApiRoute]:
        return (
            ApiRoute(
                "GET",
                "/neighbours",
                READ,
                "This node's neighbours in its federation.",
                lambda call: {"items": list(self.status()["links"])},
                record({"items": list_of(LINK)}),
            ),
        )

    def _neighbours(self) -> Iterator[dict[str, Any]]:
        round_trips = self.machine.overlay.round_trips
        for name, session in self.machine.neighbour_sessions():
            state = "up" if self.machine.is_linked(name) else "down"
            queued = session.waiting_count
            link = describe_link("neighbour", name, name, state, queued, round_trips.get(name))
            yield link | ledgers_of(session)

    def _document_neighbours(self) -> Iterator[dict[str, Any]]:
        for each in self.gateway.neighbours.values() if self.gateway is not None else ():
            round_trip_s = each.link.round_trip_s if each.link is not None else None
            state, queued = "up" if each.is_up else "down", each.session.waiting_count
            link = describe_link("document", each.address, each.address, state, queued, round_trip_s)
            yield link | {"out": ledgers_of(each.session)["out"]}

    def _not_reached(self) -> Iterator[dict[str, Any]]:
        for address in islice(self.machine.not_reached, MAX_NOT_REACHED):
            yield describe_link("neighbour", address, address, "down")

    def status_beside(self, beside: str) -> Mapping[str, Any]:
        federator = self.machine.federator
        told = describe_filters(_that_fit(federator.describe(MAX_FILTERS)))
        return {"filters": told, "more_filters": federator.filter_count - len(told)}

    def health(self) -> Mapping[str, int]:
        return {"neighbours": len(self.machine.overlay.round_trips)}

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.federation.metrics import federation_metrics, gateway_metrics, interest_metrics

        yield from federation_metrics(self.machine)
        if self.gateway is not None:
            yield from gateway_metrics(self.gateway)
        if self.interests is not None:
            yield from interest_metrics(self.interests)


def _address(document: DocumentUrl) -> str:
    return str(document.url)


def _peers(documents: Iterable[DocumentUrl]) -> tuple[DocumentPeer, ...]:
    return tuple(DocumentPeer(_address(each), each.number, each.user) for each in documents)


def _that_fit(filters: list[FilterState]) -> Iterator[FilterState]:
    """A client may subscribe to a thousand filters of 60 kB: who shows meshes would take none of it."""
    room = MAX_FILTERS_BYTES
    for each in filters:
        if len(each.topic_filter) <= MAX_FILTER:
            room -= len(json.dumps(each.topic_filter))
            if room < 0:
                return
            yield each
