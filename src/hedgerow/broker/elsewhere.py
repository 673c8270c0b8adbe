"""Who does not get a topic from this broker although a subscription matches: another broker sees to it.

A filter is *inactive* while another broker matches what is published for it. Then nothing of it is in the
structures by which this broker matches: `Withheld` has the names of such filters, and whose they are, so that
they can be put back. That is packed, and so are these subscriptions in their sessions (`resting.py`). A
client that is away is served by another broker. A session with an active subscription that matches, and which
is here, is a recipient like any other, with all of its subscriptions.

Only the sessions of movable clients are served elsewhere: never links to other brokers or shared
subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct

from hedgerow.broker.recipients import Entry, Recipient
from hedgerow.broker.resting import MAX_OWNERS, pack, unpack
from hedgerow.broker.resting import Owners as OwnersByKey
from hedgerow.broker.session import Session
from hedgerow.packed import PartlyPacked
from hedgerow.topics import FilterMap

Watcher = Callable[["Session | None", str, "int | None"], None]
"""Session, topic filter and QoS of a subscription; QoS None: it is gone.

Session None: one that cannot be moved, told once for each when it begins and once when it ends. That of a
movable client is told when its QoS may have changed, too.
"""

OTHERS_QOS = 2  # of a subscription that is told without its session, where it is not known
ALWAYS = float("-inf")  # since when one is subscribed who may have been so before that was known
Owners = tuple[Session, ...] | set[Session]

_KEY = Struct("<Q")  # of a session


class Withheld:
    """Inactive filters, and the sessions whose subscriptions they are."""

    def __init__(self) -> None:
        self._exact: PartlyPacked[Owners] = PartlyPacked(self._write_keys, self._read_keys)
        self._owners: FilterMap[Owners] = FilterMap(self._exact)
        self._sessions = OwnersByKey()
        self._size = 0  # filters: most brokers have none, and ask for each subscription
        self.count = 0
        """Subscriptions."""

    def _write_keys(self, owners: Owners) -> bytes:
        return b"".join(_KEY.pack(session.key) for session in owners)

    def _read_keys(self, topic_filter: str, keys: bytes) -> Owners:
        return tuple(self._sessions[key] for (key,) in _KEY.iter_unpack(keys))

    def __contains__(self, topic_filter: object) -> bool:
        return self._size > 0 and topic_filter in self._owners

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return self._size

    def match(self, topic: str) -> tuple[str, ...]:
        """The filters that match."""
        return tuple(self._owners.match_filters(topic)) if self._size else ()

    def begin(self, topic_filter: str, owners: Iterable[Session]) -> None:
        held = tuple(owners)
        self._size += 1
        for session in held:
            self._came(session)
            pack(session, topic_filter)
        self._set(topic_filter, held)

    def _set(self, topic_filter: str, held: tuple[Session, ...]) -> None:
        if len(held) <= MAX_OWNERS:
            self._owners.set(topic_filter, held)
            self._exact.pack(topic_filter)
        else:
            self._exact.unpack(topic_filter)
            self._owners.set(topic_filter, set(held))

    def _came(self, session: Session) -> None:
        self.count += 1
        self._sessions.add(session)

    def _went(self, session: Session) -> None:
        self.count -= 1
        self._sessions.discard(session)

    def end(self, topic_filter: str) -> Owners:
        owners = self._owners.get(topic_filter) or ()
        self._owners.remove(topic_filter)
        self._size -= 1
        for session in owners:
            self._went(session)
            unpack(session, topic_filter)
        return owners

    def holds(self, session: Session, topic_filter: str) -> bool:
        return session in (self._owners.get(topic_filter) or ())

    def add(self, session: Session, topic_filter: str) -> bool:
        """True: it is new."""
        owners = self._owners[topic_filter]
        if session in owners:
            return False
        self._came(session)
        pack(session, topic_filter)
        if isinstance(owners, set):
            owners.add(session)
        else:
            self._set(topic_filter, (*owners, session))
        return True

    def discard(self, session: Session, topic_filter: str) -> bool:
        """True: it was there."""
        owners = self._owners.get(topic_filter)
        if owners is None or session not in owners:
            return False
        if isinstance(owners, set):
            owners.discard(session)
        else:
            self._set(topic_filter, tuple(each for each in owners if each is not session))
        self._went(session)
        unpack(session, topic_filter)
        return True


def entry_of(session: Session, topic_filter: str, since: float = ALWAYS) -> Entry | None:
    """As the session has it. What was withheld has been so for a time that nobody has noted."""
    record = (session.subscriptions or {}).get(topic_filter)
    if record is None:
        return None
    return Entry(session, topic_filter, record.subscription, record.subscription_identifier, since)


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
