"""Who may be which neighbour.

A node id proves nothing: whoever connects makes it up, and the key of a federation is the same for all of its
members. So the session of a neighbour, with its queue and its link, belongs to the user who logged in as that
node. Another user who says the same id is refused, and the link stays. A user is *entitled* to an id that is
its own name, or to which the ACL gives it the right `$hedgerow/node/ID`. It gets the id even from one who
came first, though not that one's queue. One who is not entitled gets no session that this node made by
dialling, since nothing says that the two are the same.

Anonymous neighbours are one user, and the first one keeps its link for as long as that lives: only the same
site may take it over. Once it is gone, whoever says the id may have it.

A link that this node dialled proves where the other end is, and no more. It may be the neighbour of an id
that others hold if the id has answered there before, or itself said over its link that it is there, or if
the address is configured and no other id has answered there. Addresses that members pass on prove nothing:
whoever answers there is an anonymous client, and no neighbour where those may not do everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from urllib.parse import quote

from hedgerow.broker.broker import Broker
from hedgerow.broker.connection import Connection
from hedgerow.broker.dialled import DialledConnection
from hedgerow.broker.owners import owner_of
from hedgerow.broker.session import Session
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX

NODE_RIGHT = "$hedgerow/node/"  # and the id of the node that a user may be, percent-encoded
KEPT = "federation places"
HEALTHY_S = 1.0  # without a word: twice what probes take
MAX_PLACES = 4  # of one node; one without a session has only those that are configured


def node_right(node_id: str) -> str:
    """The topic that a user may write if it may be this node."""
    return NODE_RIGHT + quote(node_id, safe="")


class Identities:
    """`is_configured`: is this an address of a neighbour that people have listed? `is_proven`: has whoever
    answers there proved to be a member? `takes_strangers`: may anybody connect to this node?"""

    def __init__(
        self,
        broker: Broker,
        is_configured: Callable[[str], bool],
        is_proven: Callable[[str], bool] = lambda address: False,
        *,
        takes_strangers: bool = True,
    ) -> None:
        self._broker = broker
        self._is_configured = is_configured
        self._is_proven = is_proven
        self._takes_strangers = takes_strangers
        self._said: dict[str, tuple[str, ...]] = {}  # by node id: where it said that it is, on its own link
        # By node id: where it answered, the latest last.
        self._places: dict[str, list[str]] = {
            node_id: json.loads(text) for node_id, text in broker.kept_by(KEPT).items()
        }

    def _session(self, node_id: str) -> Session | None:
        return self._broker.sessions.get(NEIGHBOUR_PREFIX + node_id)

    # Those who connect

    def is_entitled(self, username: str | None, node_id: str) -> bool:
        """Did people say that this user is this node?"""
        access = self._broker.access
        return username is not None and (
            username == node_id
            or (
                not access.is_open
                and access.may_write(username, NEIGHBOUR_PREFIX + node_id, node_right(node_id))
            )
        )

    def refusal(self, node_id: str, username: str | None, address: str) -> str | None:
        """Why whoever logged in as this user may not be this node; None: it may."""
        session = self._session(node_id)
        if session is None or session.username == username is not None:
            return None
        remedy = f"log in as user {node_id!r}, or give your user the right to write {node_right(node_id)}"
        if session.username is not None:
            if self.is_entitled(username, node_id) and not self.is_entitled(session.username, node_id):
                return None
            return f"node {node_id!r} belongs to another user here; {remedy}"
        if username is None:
            if self._is_held_elsewhere(session, address):
                return f"node {node_id!r} has a link already, from another address"
        elif session.owner is None and not self.is_entitled(username, node_id):
            return f"node {node_id!r} is a neighbour that this node dialled; {remedy}"
        return None

    def inherits(self, node_id: str) -> bool:
        """Does a user that may be this node get the session, which this node made by dialling?"""
        session = self._session(node_id)
        return session is not None and session.username is None and session.owner is None

    def _is_held_elsewhere(self, session: Session, address: str) -> bool:
        link = session.connection
        if not isinstance(link, Connection) or isinstance(link, DialledConnection):
            return False  # One that was dialled is the federation's to judge.
        if self._broker.now >= link.heard_at + HEALTHY_S:
            return False
        return owner_of(None, link.address) != owner_of(None, address)

    # Those whom this node dialled

    def doubt(self, node_id: str, address: str) -> str | None:
        """Why whoever answered at this address is not taken for this node; None: it is."""
        session = self._session(node_id)
        if self._is_place_of(node_id, address):
            return None
        if session is None or (session.username is None and session.connection is None):
            return self._doubt_of_stranger(address)
        other = next((other for other, places in self._places.items() if address in places), None)
        if other is not None:
            return f"node {other!r} was at {address}, and {node_id!r} has a link or a user of its own"
        if self._is_configured(address):
            return None
        return f"node {node_id!r} has a link or a user of its own, and never was at {address}"

    def _is_place_of(self, node_id: str, address: str) -> bool:
        return address in self._places.get(node_id, ()) or address in self._said.get(node_id, ())

    def doubt_of_place(self, node_id: str, address: str) -> str | None:
        """Why whoever answers there would be no neighbour, so that it need not be dialled."""
        return None if self._is_place_of(node_id, address) else self._doubt_of_stranger(address)

    def _doubt_of_stranger(self, address: str) -> str | None:
        """A member that may read little here could otherwise have us dial a node of its own, which may read
        everything."""
        may_do_everything = self._takes_strangers and self._broker.access.is_open
        if may_do_everything or self._is_configured(address) or self._is_proven(address):
            return None
        return f"nothing proves who is at {address}; list it as a neighbour, or give all members one key"

    def answered(self, node_id: str, address: str) -> None:
        """It was taken for this node."""
        for other in [other for other, places in self._places.items() if address in places]:
            if other == node_id:
                return
            self._set_places(other, [each for each in self._places[other] if each != address])
        self._set_places(node_id, [*self._places.get(node_id, ()), address][-MAX_PLACES:])

    def said(self, node_id: str, addresses: Iterable[str]) -> None:
        """On its own link it said where it is to be dialled."""
        self._said[node_id] = tuple(addresses)

    def forget(self, node_id: str) -> None:
        """Its session has ended."""
        self._said.pop(node_id, None)
        if node_id in self._places:
            # Else a configured neighbour could let its session end, and answer as another.
            self._set_places(node_id, [each for each in self._places[node_id] if self._is_configured(each)])

    def _set_places(self, node_id: str, places: list[str]) -> None:
        if places:
            self._places[node_id] = places
        else:
            del self._places[node_id]
        self._broker.durability.keep(KEPT, node_id, json.dumps(places) if places else None)
