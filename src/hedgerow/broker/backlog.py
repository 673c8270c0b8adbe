"""Retained messages that a subscription is yet to get.

They are not copied: a client that subscribes to everything and reads nothing costs a cursor, whatever is
retained. What is published meanwhile reaches the client as any live message, so that only what was there when
it subscribed is sent from here. Whether the client may read it, and whether it has expired, is asked when it
is sent.
"""

from __future__ import annotations

from hedgerow.broker.retained import Retained
from hedgerow.broker.topic_order import Cursor
from hedgerow.message import Message
from hedgerow.mqtt.packets import Subscription


class Backlog:
    """Of one subscription."""

    __slots__ = (
        "_cursor",
        "_deleted_count",
        "_deleted_cursor",
        "_value_count",
        "identifiers",
        "looked_at",
        "qos",
    )

    def __init__(
        self, retained: Retained, subscription: Subscription, identifier: int | None, with_tombstones: bool
    ) -> None:
        self.qos = subscription.qos
        self.identifiers = () if identifier is None else (identifier,)
        self.looked_at = 0  # characters of the topic that the last step looked at
        self._value_count = retained.count
        self._deleted_count = retained.tombstones.count
        self._cursor: Cursor | None = Cursor(subscription.topic_filter)
        self._deleted_cursor = Cursor(subscription.topic_filter) if with_tombstones else None

    @property
    def is_done(self) -> bool:
        return self._cursor is None and self._deleted_cursor is None

    def step(self, retained: Retained, now: float) -> Message | None:
        """Look at one topic, and return its message if it is to be sent."""
        cursor, tombstones = self._cursor, retained.tombstones
        if cursor is not None:
            topic = cursor.step(retained.order)
            self.looked_at = cursor.looked_at
            message = retained.get_older(topic, self._value_count) if topic is not None else None
            if cursor.is_done:
                self._cursor = None
            has_expired = message is not None and message.expires_at is not None and message.expires_at <= now
            return None if has_expired else message
        cursor = self._deleted_cursor
        assert cursor is not None
        topic = cursor.step(tombstones.order)
        self.looked_at = cursor.looked_at
        message = tombstones.get_older(topic, self._deleted_count) if topic is not None else None
        if cursor.is_done:
            self._deleted_cursor = None
        return message if message is not None and not tombstones.is_over(message, now) else None
