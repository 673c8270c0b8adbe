"""How mobile and fixed brokers write to each other: by which epochs, and under which topics.

The topics are their own. What they write goes from one to the other on their link and is routed to nobody, so
that no subscription reads it. Nor does anyone publish under these names: who does so takes himself for one of
the brokers.
"""

from __future__ import annotations

from collections.abc import Container

from hedgerow.broker.broker import Broker
from hedgerow.mobility.delegation import codec

_TO_DELEGATE = "delegate"
_EPOCHS_PER_LIFE = 1 << 20


def first_epoch(broker: Broker) -> int:
    """Of the streams of this life of the node, which take one after the other: above all earlier lives'."""
    return broker.epoch * _EPOCHS_PER_LIFE + int(broker.begun_at * _EPOCHS_PER_LIFE)


def is_coordination(topic: str, domain: str, brokers: Container[str]) -> bool:
    """`brokers` are those that are known here. Sensors of the same domain may have events, too: so of other
    names only delegations are meant."""
    if not topic.startswith(domain):
        return False
    try:
        found, broker_id, action = codec.split_topic(topic)
    except codec.CodecError:
        return False
    return found == domain and (broker_id in brokers or action.startswith(_TO_DELEGATE))
