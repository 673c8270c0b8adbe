"""Which topics are the brokers' own: those under which mobile and fixed ones write to each other.

What they write goes from one to the other on their link and is routed to nobody, so that no subscription
reads it. Nor does anyone publish under these names: who does so takes himself for one of the brokers.
"""

from __future__ import annotations

from collections.abc import Container

from hedgerow.fabric.delegation import codec

_TO_DELEGATE = "delegate"


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
