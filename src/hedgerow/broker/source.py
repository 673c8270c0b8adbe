"""A source serves subscriptions to filters below a name of its own, with other than what is just published.

A feature has one where a subscription means more than the broker's table can answer: what is behind the name
says what it is subscribed to, and where to begin. The broker keeps the subscription with the session as any
other, counts it and answers it; the source is told, and delivers when it has something, by
`publishing.deliver_batch`. What it hands out is then a delivery as any: in the session's outbox, stored,
acknowledged and sent again by the same rules.

Clients of MQTT 5 may name the source by a user property of SUBSCRIBE and UNSUBSCRIBE, and write the filter
alone: `NAME: WORD` with the filter `a/#` is `PREFIX WORD/a/#`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hedgerow.broker.changes import SubscriptionRecord
    from hedgerow.broker.session import Session
    from hedgerow.message import Properties


class Source:
    prefix = ""
    """Of the filters that it serves: `$NAME/`."""
    user_property = ""
    """By which SUBSCRIBE may name it instead."""

    def refusal(self, session: Session, topic_filter: str) -> int | None:
        """Why the session may not subscribe to this, as a reason code; None: it may."""
        raise NotImplementedError

    def subscribed(self, session: Session, record: SubscriptionRecord, is_new: bool) -> None:
        """It has. SUBACK goes when all that the source has kept for it is stored."""
        raise NotImplementedError

    def unsubscribed(self, session: Session, topic_filter: str) -> None:
        raise NotImplementedError

    def connected(self, session: Session) -> None:
        """A session that it may serve has its connection again."""

    def discarded(self, session: Session) -> None:
        """The session ends; it still has its subscriptions."""


def find_source(sources: Iterable[Source], topic_filter: str) -> Source | None:
    """Whose filter it is; nobody's, as nearly always."""
    return next((each for each in sources if topic_filter.startswith(each.prefix)), None)


def full_name(sources: Sequence[Source], properties: Properties, topic_filter: str) -> str:
    """The filter with what the properties of its packet say of it."""
    for name, value in properties.get("user_property", ()):
        for source in sources:
            if name == source.user_property and not topic_filter.startswith(source.prefix):
                return f"{source.prefix}{value}/{topic_filter}"
    return topic_filter
