"""Which subscriptions another broker can match: those that are a topic filter and a QoS, and nothing more."""

from __future__ import annotations

from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.topics import split_shared


def is_plain(record: SubscriptionRecord) -> bool:
    """What else the client asked for, a fixed broker is not told, and would leave out."""
    wanted = record.subscription
    is_shared = split_shared(wanted.topic_filter)[0] is not None
    has_options = wanted.no_local or wanted.retain_as_published
    return not (is_shared or has_options or record.subscription_identifier is not None)
