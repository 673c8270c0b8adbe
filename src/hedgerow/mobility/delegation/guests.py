"""Guests of a fixed broker: clients of mobile brokers that are connected here, or are to come.

A guest's subscriptions are its mobile broker's: what it asks for here is written to that one, as is when it
comes and goes, and what it did not get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from hedgerow.message import Message
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.attached import Attached
from hedgerow.mobility.delegation.distributor import Distributor
from hedgerow.mobility.delegation.events import (
    ClientMoved,
    DelegationEvent,
    DelegationRefused,
    DelegationStats,
)
from hedgerow.mobility.delegation.publications import (
    Body,
    EventBody,
    GuestSubscription,
    PublicationKind,
    Serving,
    Unsubscription,
)
from hedgerow.mobility.delegation.topics_held import Mobile
from hedgerow.topics import split_shared

NOT_ITS_OWN = "a callback that is not its own, nor of a client here"


class Guests:
    """`epochs`: for streams that start over; the rest as in `FixedSide`."""

    def __init__(
        self,
        mobiles: Mapping[str, Mobile],
        attached: Attached,
        distributor: Distributor,
        epochs: Iterator[int],
        objection_to: Callable[[str, str, str | None], str | None],
        stats: DelegationStats,
        events: list[DelegationEvent],
    ) -> None:
        self._mobiles = mobiles
        self._attached = attached
        self._distributor = distributor
        self._epochs = epochs
        self._objection_to = objection_to
        self._stats = stats
        self._events = events

    def client_attached(self, callback: str, now: float) -> None:
        if callback in self._attached:
            return
        self._attached.add(callback)
        owner = self._owner(callback)
        if owner is not None:
            self._tell(owner, Serving(callback, True), now)

    def client_left(
        self, callback: str, undelivered: Sequence[tuple[Message, int]], now: float, is_again: bool = False
    ) -> None:
        was_here = callback in self._attached
        self._attached.discard(callback)
        owner = self._owner(callback)
        if owner is None:
            return
        if was_here:
            self._tell(owner, Serving(callback, False), now)
        for message, qos in undelivered:
            handed_back = EventBody(message, ((callback, qos),), is_handed_on=True, is_again=is_again)
            self._distributor.notify(owner, handed_back, now)

    def callback_for(self, client_id: str, username: str | None) -> str | None:
        """Of whoever connects under this id as this user: a guest that is here, or that was announced."""
        expected = self._attached.expected.get(client_id)
        if self._attached.is_here(client_id) or expected is None:
            return self._attached.callback_of(client_id)
        owner = self._owner(expected.callback)
        if owner is None or expected.username != username:
            return None
        return None if self._objection_to(owner.broker_id, "", username) else expected.callback

    def turn_away(self, client_id: str, now: float) -> None:
        """Another client has come under this id: the one that was announced is not to come any more."""
        expected = self._attached.take_expected(client_id)
        owner = self._owner(expected.callback) if expected is not None else None
        if expected is not None and owner is not None:
            self._tell(owner, Serving(expected.callback, False), now)

    def subscribe(self, wanted: GuestSubscription, now: float) -> bool:
        return self._pass_on(PublicationKind.SUBSCRIPTION, wanted.callback, wanted.topic_filter, wanted, now)

    def unsubscribe(self, callback: str, topic_filter: str, now: float) -> bool:
        body = Unsubscription(topic_filter, callback)
        return self._pass_on(PublicationKind.UNSUBSCRIPTION, callback, topic_filter, body, now)

    def _pass_on(
        self, kind: PublicationKind, callback: str, topic_filter: str, body: Body, now: float
    ) -> bool:
        owner = self._owner(callback)
        # The other side would not read on behind what it must refuse.
        is_for_others = split_shared(topic_filter)[1][:1] != "$"
        if owner is None or not is_for_others or callback not in self._attached or owner.stream.is_full:
            self._stats.overflowed += 1
            return False
        owner.stream.put(kind, body, now)
        return True

    def _owner(self, callback: str) -> Mobile | None:
        owner = self._mobiles.get(addresses.owner_of(callback) or "")
        return owner if owner is not None and not owner.has_left else None

    def _tell(self, mobile: Mobile, serving: Serving, now: float) -> None:
        mobile.stream.put(PublicationKind.SERVING, serving, now)
        if mobile.stream.is_overfull and not mobile.stream.is_open:
            # Clients came and went for a long time: when it is back, it is told who is here.
            mobile.stream.start_over(next(self._epochs))

    def handle_serving(self, mobile: Mobile, serving: Serving, topic: str, now: float) -> None:
        callback, is_there, username = serving
        if not self._distributor.may_name(mobile, callback):
            self._stats.unknown_callbacks += 1
            self._events.append(DelegationRefused(mobile.broker_id, topic, NOT_ITS_OWN))
        elif not is_there:
            client_id = addresses.client_id_of(callback) or ""
            why = self._objection_to(mobile.broker_id, client_id, username)
            if why is None and not self._attached.expect(callback, username):
                why = f"another {client_id!r} is here"
            if why is not None:
                # Sent here all the same, it would be this broker's own client, or take another's session.
                self._stats.unknown_callbacks += 1
                mobile.stream.put(PublicationKind.SERVING, Serving(callback, False), now)
                self._events.append(DelegationRefused(mobile.broker_id, topic, why))
        else:
            self._attached.expect_no_more(callback)
            if callback in self._attached:
                self._attached.discard(callback)
                mobile.stream.put(PublicationKind.SERVING, Serving(callback, False), now)
                self._events.append(ClientMoved(callback, False))
