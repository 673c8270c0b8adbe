"""Being told of every subscription of a broker, and what changes when a session changes its role."""

from __future__ import annotations

from collections import Counter

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.elsewhere import OTHERS_QOS, Watcher, tell
from hedgerow.broker.role import Role
from hedgerow.broker.session import Session
from hedgerow.topics import split_shared


def watch(broker: BrokerCore, watcher: Watcher) -> None:
    """Be told of every subscription: of those that there are now, and of each that comes and goes."""
    table = broker.subscriptions
    table.watcher = watcher
    others: Counter[str] = Counter(table.local.counts)
    for session in list(broker.sessions.values()):
        for full, record in list((session.subscriptions or {}).items()):
            name, topic_filter = split_shared(full)
            if name is None and session.role.is_movable and table.holds(session, topic_filter):
                others[topic_filter] -= 1
                watcher(session, topic_filter, record.subscription.qos)
    for topic_filter in others.elements():
        watcher(None, topic_filter, OTHERS_QOS)


def set_role(broker: BrokerCore, session: Session, role: Role) -> None:
    """What the watcher was told of a session goes by its role."""
    if role is session.role:
        return
    table = broker.subscriptions
    held = {
        name: record.subscription.qos
        for name, record in (session.subscriptions or {}).items()
        if table.holds(session, name)
    }
    for topic_filter in held:
        table.shift_interest(session, topic_filter, role)
        tell(table.watcher, session, topic_filter, None)
    session.role = role
    broker.note_role(session)
    for topic_filter, qos in held.items():
        tell(table.watcher, session, topic_filter, qos)
        table.forget_routes(topic_filter)
