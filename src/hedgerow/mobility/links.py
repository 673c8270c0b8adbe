"""The links of a mobile broker to fixed ones: whom it dials, which of them supports it, and how it moves.

Links to several may be open, and one of them is the present one's (`MobileSide.current`). When another is to
have its place while both are there, clients first come home and everything is recovered; what the new one
says meanwhile, its HELLO, waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from hedgerow.message import Message
from hedgerow.mobility.calls import Calls
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.events import FixedLinked, FixedNotLinked
from hedgerow.mobility.link import FixedLink
from hedgerow.mobility.moves import describe_link
from hedgerow.mqtt.reasons import Reason

if TYPE_CHECKING:
    from hedgerow.mobility.mobile import MobileNode

MAX_HEARD = 8
MOVED = "this broker has moved"
UNLISTED = "it is not among the fixed brokers any more"


class FixedLinks:
    def __init__(self, node: MobileNode, now: float) -> None:
        self.fixed_address = node.settings.fixed_address
        """HOST:PORT that clients are sent to."""
        self.is_fixed_tls = False
        self._node = node
        self._calls = Calls(node.settings.fixed, now)
        self._links: dict[str, FixedLink] = {}  # by the id of the fixed broker
        self._next: FixedLink | None = None  # to which this broker moves, once its clients are back
        self._heard: list[Message] = []
        self._plain: set[str] = set()  # URLs of brokers that do not know the extension
        self._told: dict[str, str] = {}  # by URL: the last reason for which there was no link

    @property
    def deadline(self) -> float:
        return self._calls.deadline

    @property
    def is_moving(self) -> bool:
        return self._next is not None

    # Dialling

    def take_dials(self) -> list[str]:
        return self._calls.take(self._node.broker.now)

    def dial_failed(self, url: str, reason: str, now: float) -> None:
        self._node.broker.now = now
        self._calls.failed(url, now)
        if self._told.get(url) != reason:
            self._told[url] = reason
            self._node.note(FixedNotLinked(url, reason))
        self.tell()
        self._node.has_work = True

    def open(
        self, url: str, address: str, now: float, username: str | None = None, password: bytes | None = None
    ) -> FixedLink:
        is_extended = url not in self._plain
        node = self._node
        return FixedLink(self, node.broker, node.domain, url, address, now, username, password, is_extended)

    def set_urls(self, urls: Iterable[str]) -> None:
        self._calls.set_urls(tuple(urls), {link.url for link in self._links.values()})

    # What becomes of a link

    def linked(self, link: FixedLink) -> None:
        assert link.far_node is not None
        node, machine = self._node, self._node.machine
        if not self._calls.lists(link.url):
            link.leave(UNLISTED, is_for_good=True)
            return
        self._calls.answered(link.url)
        before = self._links.get(link.far_node)
        self._links[link.far_node] = link
        if before is not None:
            before.leave("there is a newer link", is_for_good=False)
        current = machine.current
        if current is None or current.fixed_id == link.far_node or not current.stream.is_open:
            self._move_to(link)
        else:
            self._next = link
            self._heard.clear()
        node.has_work = True

    def serve(self) -> None:
        """Move, if that is due: with no client at the present one, and no session on its way there."""
        is_free = not self._node.machine.has_clients_away and not self._node.roaming.is_giving
        if self._next is not None and self._heard and is_free:
            self._move_to(self._next)

    def _move_to(self, link: FixedLink) -> None:
        assert link.far_node is not None
        node = self._node
        self._next = None
        self.fixed_address = node.settings.fixed_address or link.url.rpartition("/")[2]
        self.is_fixed_tls = link.url.startswith("mqtts:")
        node.supporter = self.fixed_address
        node.moved_to(link.far_node, link.maximum_packet_size, link.domain, link.takes_sessions)
        self.tell()
        heard, self._heard = self._heard, []
        for publication in heard:
            self.receive(link, publication)

    def receive(self, link: FixedLink, publication: Message) -> None:
        node = self._node
        if link.far_node is None or self._links.get(link.far_node) is not link:
            return
        if not codec.is_event(publication) and not publication.topic.startswith(f"{link.domain}/"):
            link.leave(f"it writes under another domain than {link.domain}", is_for_good=True)
        elif self._next is link:
            self._heard = [*self._heard, publication][:MAX_HEARD]
            if len(self._heard) == 1:
                node.machine.recover_all(node.broker.now)
        else:
            node.machine.receive_publication(link.far_node, publication, node.broker.now)
            self._note_proof(link)
        node.sync_delegated()
        node.has_work = True

    def _note_proof(self, link: FixedLink) -> None:
        uplink = self._node.machine.current
        if link.is_proved or uplink is None or uplink.fixed_id != link.far_node or not uplink.stream.is_open:
            return
        link.is_proved = True
        self._told.pop(link.url, None)
        self._calls.proved(link.url)
        self._node.note(FixedLinked(link.url, uplink.fixed_id))

    def ended(self, link: FixedLink, reason: str) -> None:
        now = self._node.broker.now
        if link.wants_plain:
            self._plain.add(link.url)
            self._calls.again(link.url, now)
            self._node.has_work = True
            return
        if self._next is link:
            self._next = None
            self._heard.clear()
        if link.far_node is not None and self._links.get(link.far_node) is link:
            del self._links[link.far_node]
            self._node.machine.link_down(link.far_node, now)
        elif any(each.url == link.url for each in self._links.values()):
            return  # A newer one has its place: to dial again would take that one's, without end.
        self.dial_failed(link.url, reason, now)

    def left(self, fixed_id: str) -> None:
        """This broker has moved from there, and taken its leave."""
        link = self._links.pop(fixed_id, None)
        if link is not None:
            self._told[link.url] = MOVED  # That is no news.
            link.leave(MOVED, is_for_good=True)

    def writer(self, publications: Iterable[tuple[str, Message]]) -> Callable[[], None]:
        """Writes them on the links that there are now: on a later one, a HELLO of this would be taken for its
        own, and both sides would wait for the other."""
        return partial(_write, [(self._links.get(fixed_id), each) for fixed_id, each in publications])

    def close(self) -> None:
        for link in list(self._links.values()):
            link.disconnect(Reason.SERVER_SHUTTING_DOWN, "")

    def tell(self) -> None:
        """Its state, as people see it."""
        current, state = self._node.machine.current, self._node.state
        link = self._links.get(current.fixed_id) if current is not None else None
        state.link = describe_link(current, link.url if link is not None else None)
        state.look(self._node.broker.now)


def _write(publications: list[tuple[FixedLink | None, Message]]) -> None:
    for link, publication in publications:
        if link is not None and link.is_connected:
            link.write(publication)
