"""Who does not get a topic from this broker although a subscription matches: another broker sees to it.

A filter is *inactive* while another broker matches what is published for it. Then nothing of it is in the
structures by which this broker matches: `Withheld` has the names of such filters, and whose they are, so that
they can be put back. A client that is away is served by another broker. A session with an active
subscription that matches, and which is here, is a recipient like any other, with all of its subscriptions.

Only the sessions of movable clients are served elsewhere: never links to other brokers or shared
subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hedgerow.broker.recipients import Entry, Recipient
from hedgerow.broker.session import Session
from hedgerow.topics import FilterMap

Watcher = Callable[["Session | None", str, "int | None"], None]
"""Session, topic filter and QoS of a subscription; QoS None: it is gone.

Session None: one that cannot be moved, told once for each when it begins and once when it ends. That of a
movable client is told when its QoS may have changed, too.
"""

OTHERS_QOS = 2  # of a subscription that is told without its session, where it is not known
ALWAYS = float("-inf")  # since when one is subscribed who may have been so before that was known
MAX_IN_TUPLE = 8  # A set of so few takes five times the memory of a tuple.

Owners = tuple[Session, ...] | set[Session]


class Withheld:
    """Inactive filters, and the sessions whose subscriptions they are."""

    def __init__(self) -> None:
        self._owners: FilterMap[Owners] = FilterMap()
        self.count = 0
        """Subscriptions."""

    def __contains__(self, topic_filter: object) -> bool:
        return topic_filter in self._owners

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)

    def match(self, topic: str) -> tuple[str, ...]:
        """The filters that match."""
        return tuple(topic_filter for topic_filter, _ in self._owners.match(topic)) if self._owners else ()

    def begin(self, topic_filter: str, owners: Iterable[Session]) -> None:
        held = tuple(owners)
        self.count += len(held)
        self._owners.set(topic_filter, held if len(held) <= MAX_IN_TUPLE else set(held))

    def end(self, topic_filter: str) -> Owners:
        owners = self._owners.remove(topic_filter) or ()
        self.count -= len(owners)
        return owners

    def holds(self, session: Session, topic_filter: str) -> bool:
        return session in (self._owners.get(topic_filter) or ())

    def add(self, session: Session, topic_filter: str) -> bool:
        """True: it is new."""
        owners = self._owners[topic_filter]
        if session in owners:
            return False
        self.end(topic_filter)
        if isinstance(owners, set):
            owners.add(session)
            self._owners.set(topic_filter, owners)
            self.count += len(owners)
        else:
            self.begin(topic_filter, (*owners, session))
        return True

    def discard(self, session: Session, topic_filter: str) -> bool:
        """True: it was there."""
        owners = self._owners.get(topic_filter)
        if owners is None or session not in owners:
            return False
        self.count -= 1
        if isinstance(owners, set):
            owners.discard(session)
        else:
            self._owners.set(topic_filter, tuple(each for each in owners if each is not session))
        return True


def entry_of(session: Session, topic_filter: str) -> Entry | None:
    """As the session has it. What was withheld has been so for a time that nobody has noted."""
    record = (session.subscriptions or {}).get(topic_filter)
    if record is None:
        return None
    return Entry(session, topic_filter, record.subscription, record.subscription_identifier, ALWAYS)


def with_withheld(recipient: Recipient, filters: Iterable[str]) -> Recipient:
    """With those of its subscriptions that match and that another broker matches: it gets one copy."""
    session = recipient.session
    more = [entry for each in filters if (entry := entry_of(session, each)) is not None]
    return Recipient(session, [*recipient.entries, *more]) if more else recipient


def sort_out(recipients: Iterable[Recipient]) -> tuple[list[Recipient], list[Recipient]]:
    """Who gets a topic here, and who is away."""
    here: list[Recipient] = []
    elsewhere: list[Recipient] = []
    for recipient in recipients:
        session = recipient.session
        (elsewhere if session.role.is_movable and session.is_away else here).append(recipient)
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
