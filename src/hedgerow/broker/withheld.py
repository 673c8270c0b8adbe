"""Who does not get a topic from this broker although a subscription matches: another broker sees to it.

A subscription is delegated by its filter: the broker that it was delegated to finds the events for it and
says so. A client that is away is served by another broker. A session with a subscription of its own that
matches, and which is here, is a recipient like any other, with all of its subscriptions.

Links to other brokers and shared subscriptions are never withheld.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from hedgerow.topics import split_shared

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.routes import Recipient
    from hedgerow.broker.session import Session

Watcher = Callable[["Session | None", str, "int | None"], None]
"""Session, topic filter and QoS of a subscription; QoS None: it is gone.

Session None: that of a port, a shared subscription or a bridge, told once for each when it begins and once
when it ends. A client's is told when its QoS may have changed, too.
"""

OTHERS_QOS = 2  # of a subscription that is told without its session, where it is not known


class Withheld(NamedTuple):
    recipient: Recipient
    """With all of the session's subscriptions that match."""
    is_active: bool
    """It is away, and has one among them that is not delegated."""


def sort_out(recipients: Iterable[Recipient], delegated: set[str]) -> tuple[list[Recipient], list[Withheld]]:
    """Who gets a topic here, and who does not."""
    here: list[Recipient] = []
    withheld: list[Withheld] = []
    for recipient in recipients:
        session = recipient.session
        if not session.is_client or not (delegated or session.is_away):
            here.append(recipient)
            continue
        is_active = any(entry.topic_filter not in delegated for entry in recipient.entries)
        if session.is_away or not is_active:
            withheld.append(Withheld(recipient, is_active))
        else:
            here.append(recipient)
    return here, withheld


def tell(
    watcher: Watcher | None,
    session: Session | None,
    topic_filter: str,
    qos: int | None,
    is_change: bool = True,
) -> None:
    """`is_change`: it is new, or gone, rather than renewed."""
    if watcher is None:
        return
    if session is not None and session.is_client:
        watcher(session, topic_filter, qos)
    elif is_change and not (session is not None and (session.is_neighbour or session.is_mobile)):
        watcher(None, topic_filter, qos)


def watch(broker: Broker, watcher: Watcher) -> None:
    """Be told of every subscription: of those that there are now, and of each that comes and goes."""
    table = broker.subscriptions
    table.watcher = watcher
    others: Counter[str] = Counter(table.local.counts)
    for session in list(broker.sessions.values()):
        for full, record in list((session.subscriptions or {}).items()):
            name, topic_filter = split_shared(full)
            if name is None and table.holds(session, topic_filter) and not session.is_neighbour:
                if session.is_client or session.is_mobile:
                    others[topic_filter] -= 1
                if session.is_client:
                    watcher(session, topic_filter, record.subscription.qos)
    for topic_filter in others.elements():
        watcher(None, topic_filter, OTHERS_QOS)


def set_peer(broker: Broker, session: Session, is_peer: bool) -> None:
    """What the watcher was told of a session goes by whether it is a client's."""
    if is_peer == session.is_peer:
        return
    held = {
        name: record.subscription.qos
        for name, record in (session.subscriptions or {}).items()
        if broker.subscriptions.holds(session, name)
    }
    watcher = broker.subscriptions.watcher
    for topic_filter in held:
        tell(watcher, session, topic_filter, None)
    session.is_peer = is_peer
    for topic_filter, qos in held.items():
        tell(watcher, session, topic_filter, qos)
        broker.subscriptions.forget_routes(topic_filter)
