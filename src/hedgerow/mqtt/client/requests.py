"""The client's subscriptions: SUBSCRIBE and UNSUBSCRIBE until they are answered, and again after a loss.

`Requests` outlives connections. What was asked for and not answered is asked for again on the next
connection; and when the server comes back without the session, everything that stands is subscribed
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hedgerow.errors import ProtocolError, RefusedError
from hedgerow.message import Properties
from hedgerow.mqtt.client.events import Event, Subscribed, Unsubscribed
from hedgerow.mqtt.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from hedgerow.mqtt.reasons import FAILURE, Reason, describe
from hedgerow.topics import is_wildcard, split_shared, validate_filter

# Subscriptions made again go out in packets of at most about this size, which every server takes.
_RESTORE_BYTES = 4_096


@dataclass(slots=True)
class _Request:
    handle: int
    packet: Subscribe | Unsubscribe


@dataclass(slots=True)
class _Standing:
    subscription: Subscription
    properties: Properties


class Requests:
    def __init__(self) -> None:
        self.sent: dict[int, _Request] = {}
        """By packet identifier: sent on this connection and not answered."""
        self._unsent: list[_Request] = []
        self._standing: dict[str, _Standing] = {}
        self._server: Properties = {}  # what the server's CONNACK said it offers
        self._active: frozenset[str] = frozenset()  # what stands in a session that another server began

    def __bool__(self) -> bool:
        return bool(self.sent or self._unsent)

    @property
    def identifiers_available(self) -> bool:
        return bool(self._server.get("subscription_identifier_available", 1))

    def subscribe(self, handle: int, subscriptions: Sequence[Subscription], properties: Properties) -> None:
        for subscription in subscriptions:
            validate_filter(subscription.topic_filter)
            split_shared(subscription.topic_filter)
            reason_code = self._refusal(subscription.topic_filter, properties)
            if reason_code:
                raise RefusedError(f"{subscription.topic_filter}: {describe(reason_code)}", reason_code)
        self._unsent.append(_Request(handle, Subscribe(0, list(subscriptions), properties)))
        for subscription in subscriptions:
            self._standing[subscription.topic_filter] = _Standing(subscription, properties)

    def unsubscribe(self, handle: int, topic_filters: Sequence[str]) -> None:
        for topic_filter in topic_filters:
            validate_filter(topic_filter)
        self._unsent.append(_Request(handle, Unsubscribe(0, list(topic_filters))))
        for topic_filter in topic_filters:
            self._standing.pop(topic_filter, None)

    def _refusal(self, topic_filter: str, properties: Properties) -> int:
        """The reason code with which the server would disconnect us for this subscription, or 0."""
        server = self._server
        if is_wildcard(topic_filter) and not server.get("wildcard_subscription_available", 1):
            return Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        if topic_filter.startswith("$share/") and not server.get("shared_subscription_available", 1):
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if "subscription_identifier" in properties and not self.identifiers_available:
            return Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
        return 0

    def take(self, allocate_packet_id: Callable[[], int]) -> Iterator[Subscribe | Unsubscribe]:
        """The packets to send now, each with a packet identifier of its own."""
        unsent, self._unsent = self._unsent, []
        for request in unsent:
            request.packet.packet_id = allocate_packet_id()
            self.sent[request.packet.packet_id] = request
            yield request.packet

    def connection_ended(self) -> None:
        self._unsent = [*self.sent.values(), *self._unsent]
        self.sent.clear()
        self._server = {}

    def connected(self, session_present: bool, server: Properties, events: list[Event]) -> None:
        self._server = server
        if not session_present or self._active:
            active = self._active if session_present else frozenset[str]()
            self._unsent = [*self._restore(active), *self._unsent]
        self._active = frozenset()
        possible: list[_Request] = []
        for request in self._unsent:
            packet = request.packet
            if isinstance(packet, Subscribe):
                refusals = [
                    self._refusal(each.topic_filter, packet.properties) for each in packet.subscriptions
                ]
                if any(refusals):
                    self._report(
                        request, packet, [code or Reason.UNSPECIFIED_ERROR for code in refusals], "", events
                    )
                    continue
            possible.append(request)
        self._unsent = possible

    def begin_from(self, other: Requests, active: Sequence[str]) -> None:
        """For another server, which may have the session and then has these filters active."""
        self._standing = other._standing.copy()
        self._active = frozenset(active)

    def follow(self, other: Requests) -> None:
        """What was asked for at the other server since `begin_from`, which answers those who wait for it."""
        for topic_filter in self._standing.keys() - other._standing.keys():
            self.unsubscribe(0, [topic_filter])
        for topic_filter, standing in other._standing.items():
            mine = self._standing.get(topic_filter)
            if mine is None or mine.subscription is not standing.subscription:
                self.subscribe(0, [standing.subscription], standing.properties)

    def inherit(self, other: Requests) -> None:
        """What the other server has not answered, and will not."""
        self._unsent += [*other.sent.values(), *other._unsent]
        other.sent.clear()
        other._unsent.clear()

    @property
    def has_asked(self) -> bool:
        """Does the application, and not this machine alone, wait for an answer?"""
        return any(request.handle for request in (*self.sent.values(), *self._unsent))

    def _restore(self, active: frozenset[str]) -> Iterator[_Request]:
        """Subscribe again to what stands, except where an unanswered request does so anyway."""
        asked = active | {
            subscription.topic_filter
            for request in self._unsent
            if isinstance(request.packet, Subscribe)
            for subscription in request.packet.subscriptions
        }
        packet: Subscribe | None = None
        size = 0
        for topic_filter, standing in self._standing.items():
            if topic_filter in asked:
                continue
            if packet is None or packet.properties != standing.properties or size > _RESTORE_BYTES:
                if packet is not None:
                    yield _Request(0, packet)
                packet = Subscribe(0, [], standing.properties)
                size = 0
            packet.subscriptions.append(standing.subscription)
            size += len(topic_filter.encode()) + 3
        if packet is not None:
            yield _Request(0, packet)

    def answered(self, packet: Suback | Unsuback, events: list[Event]) -> None:
        request = self.sent.pop(packet.packet_id, None)
        wanted = Subscribe if isinstance(packet, Suback) else Unsubscribe
        if request is None or not isinstance(request.packet, wanted):
            raise ProtocolError(
                Reason.PROTOCOL_ERROR,
                f"{type(packet).__name__.upper()} for {packet.packet_id}, which awaits none",
                "MQTT-2.2.1-6",
            )
        reason = packet.properties.get("reason_string", "")
        self._report(request, request.packet, packet.reason_codes, reason, events)

    def _report(
        self,
        request: _Request,
        packet: Subscribe | Unsubscribe,
        reason_codes: list[int],
        reason: str,
        events: list[Event],
    ) -> None:
        if isinstance(packet, Unsubscribe):
            filters = packet.topic_filters
            # MQTT 3 has no reason codes here: an answer is a success.
            codes = reason_codes or [int(Reason.SUCCESS)] * len(filters)
            _check_count(len(codes), len(filters), "MQTT-3.11.3-1")
            events.append(Unsubscribed(request.handle, filters, codes, reason))
            return
        subscriptions = packet.subscriptions
        _check_count(len(reason_codes), len(subscriptions), "MQTT-3.9.3-1")
        for subscription, reason_code in zip(subscriptions, reason_codes, strict=True):
            standing = self._standing.get(subscription.topic_filter)
            if reason_code >= FAILURE and standing is not None and standing.subscription is subscription:
                del self._standing[subscription.topic_filter]
        events.append(Subscribed(request.handle, subscriptions, reason_codes, reason))


def _check_count(found: int, expected: int, clause: str) -> None:
    if found != expected:
        raise ProtocolError(
            Reason.PROTOCOL_ERROR, f"{found} reason codes for {expected} topic filters", clause
        )
