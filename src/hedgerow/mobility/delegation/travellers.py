"""Clients of a mobile broker that go to a fixed broker and come back.

One that is to go is announced first, so that the fixed broker takes it for whom it is when it comes; it is
sent there when `has_handled` says that the fixed broker knows. From when that one says that the client is
there (SERVING), what is for it is written there, until it is back. Clients subscribe where they are: what one
asks for at the fixed broker comes to this one, which owns every subscription.
"""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.events import (
    ClientMoved,
    DelegationEvent,
    GuestSubscribed,
    GuestUnsubscribed,
    TurnedAway,
)
from hedgerow.mobility.delegation.notifier import Notifier
from hedgerow.mobility.delegation.publications import (
    GuestSubscription,
    PublicationKind,
    Serving,
    Unsubscription,
)
from hedgerow.mobility.delegation.uplink import Uplink


@dataclass(slots=True)
class AnnouncedTraveller:
    """A client is on its way to this fixed broker, which was told so by this number of the stream."""

    token: int
    uplink: Uplink
    number: int
    username: str | None


class Travellers:
    def __init__(self, notifier: Notifier, events: list[DelegationEvent]) -> None:
        self._announced: dict[str, AnnouncedTraveller] = {}
        self._notifier = notifier
        self._events = events
        self._callbacks: dict[int, str] = {}
        self._last_token = 0

    def announce(self, callback: str, username: str | None, uplink: Uplink, now: float) -> int:
        addresses.validate(callback)
        self._withdraw(callback)
        body = Serving(callback, False, username)
        number = uplink.stream.put(PublicationKind.SERVING, body, now).number
        self._last_token += 1
        self._announced[callback] = AnnouncedTraveller(self._last_token, uplink, number, username)
        self._callbacks[self._last_token] = callback
        return self._last_token

    def announce_again(self, uplink: Uplink, now: float) -> None:
        """In a stream that begins anew."""
        for callback, announcement in self._announced.items():
            if announcement.uplink is uplink:
                body = Serving(callback, False, announcement.username)
                announcement.number = uplink.stream.put(PublicationKind.SERVING, body, now).number

    def has_handled(self, token: int, current: Uplink | None) -> bool:
        announcement = self._announced.get(self._callbacks.get(token, ""))
        if announcement is None or announcement.uplink is not current:
            return False
        return announcement.uplink.has_handled(announcement.number)

    def forget(self, uplink: Uplink) -> None:
        """No client is there any more, or goes there."""
        self._notifier.call_back(uplink)
        for callback in [name for name, found in self._announced.items() if found.uplink is uplink]:
            self._withdraw(callback)

    def _withdraw(self, callback: str) -> AnnouncedTraveller | None:
        announcement = self._announced.pop(callback, None)
        if announcement is not None:
            del self._callbacks[announcement.token]
        return announcement

    def client_attached(self, callback: str, now: float) -> None:
        """It is connected here, wherever it was before, or was to go."""
        announcement = self._withdraw(callback)
        uplink = self._notifier.remove_away(callback)
        if uplink is None:
            if announcement is not None:
                announcement.uplink.stream.put(PublicationKind.SERVING, Serving(callback, True), now)
            return
        uplink.stream.put(PublicationKind.SERVING, Serving(callback, True), now)
        self._events.append(ClientMoved(callback, False))
        if uplink.is_lost:
            for unsettled in uplink.unsettled.values():
                self._notifier.settle(uplink, unsettled, only=callback)
            self._notifier.reclaim(uplink, only=callback)

    def handle_serving(self, uplink: Uplink, serving: Serving, acknowledged: int) -> None:
        callback = serving.callback
        if not serving.is_here:
            if self._notifier.away.get(callback) is uplink:
                self._notifier.remove_away(callback)
                self._events.append(ClientMoved(callback, False))
            elif self._is_on_its_way(uplink, callback, acknowledged):
                self._withdraw(callback)
                self._events.append(TurnedAway(callback))
        elif not self._knows(uplink, callback):
            self._notifier.stats.unknown_callbacks += 1
        else:
            # It may have come back meanwhile. Then what goes there is sent back, and soon we are told.
            self._withdraw(callback)
            self._notifier.set_away(callback, uplink)
            self._events.append(ClientMoved(callback, True))

    def _is_on_its_way(self, uplink: Uplink, callback: str, acknowledged: int) -> bool:
        """Does the fixed broker know that it is?"""
        announcement = self._announced.get(callback)
        return (
            announcement is not None and announcement.uplink is uplink and announcement.number <= acknowledged
        )

    def _knows(self, uplink: Uplink, callback: str) -> bool:
        announcement = self._announced.get(callback)
        is_on_its_way = announcement is not None and announcement.uplink is uplink
        is_there = self._notifier.away.get(callback) is uplink
        return is_on_its_way or is_there or self._notifier.registries.knows(callback)

    def handle_subscription(self, uplink: Uplink, body: GuestSubscription) -> None:
        if self._knows(uplink, body.callback):
            self._events.append(GuestSubscribed(body))
        else:
            self._notifier.stats.unknown_callbacks += 1

    def handle_unsubscription(self, uplink: Uplink, body: Unsubscription) -> None:
        if self._knows(uplink, body.callback):
            self._events.append(GuestUnsubscribed(body.callback, body.topic_filter))
        else:
            self._notifier.stats.unknown_callbacks += 1
