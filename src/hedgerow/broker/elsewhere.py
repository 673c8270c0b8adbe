"""Who does not get a topic from this broker although a subscription matches: another broker sees to it.

A filter is *inactive* while another broker matches what is published for it. A client that is away is served
by another broker. A session with an active subscription that matches, and which is here, is a recipient like
any other, with all of its subscriptions.

Only the sessions of movable clients are served elsewhere: never links to other brokers or shared
subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from hedgerow.broker.recipients import Recipient
from hedgerow.broker.session import Session

Watcher = Callable[["Session | None", str, "int | None"], None]
"""Session, topic filter and QoS of a subscription; QoS None: it is gone.

Session None: one that cannot be moved, told once for each when it begins and once when it ends. That of a
movable client is told when its QoS may have changed, too.
"""

OTHERS_QOS = 2  # of a subscription that is told without its session, where it is not known


class Elsewhere(NamedTuple):
    recipient: Recipient
    """With all of the session's subscriptions that match."""
    is_active: bool
    """It is away, and has one among them that is active."""


def sort_out(recipients: Iterable[Recipient], inactive: set[str]) -> tuple[list[Recipient], list[Elsewhere]]:
    """Who gets a topic here, and who does not."""
    here: list[Recipient] = []
    elsewhere: list[Elsewhere] = []
    for recipient in recipients:
        session = recipient.session
        if not session.role.is_movable or not (inactive or session.is_away):
            here.append(recipient)
            continue
        is_active = any(entry.topic_filter not in inactive for entry in recipient.entries)
        if session.is_away or not is_active:
            elsewhere.append(Elsewhere(recipient, is_active))
        else:
            here.append(recipient)
    return here, elsewhere


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
    if session is not None and session.role.is_movable:
        watcher(session, topic_filter, qos)
    elif is_change and (session is None or session.role.is_interest_here):
        watcher(None, topic_filter, qos)
