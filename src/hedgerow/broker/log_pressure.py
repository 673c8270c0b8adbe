"""Making room in a log that is full, so that those who wait can go on (`shares.py` says who may).

First without loss: a segment of which little is needed is written anew, without the rest. Then, where a user
waits, addresses without one that hold most of what these hold beyond half of the log. Then an owner that
holds more than its share does without the oldest of that, where others wait. What those others published is
not touched for the sake of one that has filled the log: for it room is made where most is its own. Then,
where somebody chose that, the oldest segment goes, whoever waits for it. Else publishers wait.
"""

from __future__ import annotations

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import note_dropped, note_payer
from hedgerow.broker.needed import SPARSE_PART, NeededSegment, joined
from hedgerow.broker.owners import is_user
from hedgerow.broker.session import Session
from hedgerow.broker.unwritten import RELAYED

MAX_ASKED = 16  # Owners: all of the log is looked through for what each can do without.
MAX_LOOKED_AT = 4  # Segments in one batch: all sessions are asked what they need of each,
MAX_QUESTIONS = 20_000  # and so often together, but for one segment.


def make_room(broker: BrokerCore, waiting: set[str]) -> None:
    """A step of it, for publishers that wait. What it gives up is stored with the next batch, and then there
    may be room."""
    durability = broker.durability
    if _find_sparse(broker):
        return
    others = waiting
    if any(map(is_user, waiting)):
        for owner in durability.shares.nameless[:MAX_ASKED]:
            if _pay(broker, owner, _to_give_up(broker, owner, waiting)):
                return
    for owner in durability.shares.over[:MAX_ASKED]:
        others = others - {owner}  # And of those before it, which hold more: it does not pay for them.
        if others <= {"", RELAYED} and not _has_others(broker, owner):
            continue  # Other nodes have logs of their own.
        if durability.shares.pays(owner, others) and _pay(broker, owner, _to_give_up(broker, owner, others)):
            return
    if durability.bounds.drops_oldest:
        oldest = _to_drop(broker, waiting)
        if oldest is not None:
            _drop(broker, oldest, None)


def _pay(broker: BrokerCore, owner: str, segment: NeededSegment | None) -> bool:
    """The owner does without what it has of that segment, if there is one."""
    if segment is None:
        return False
    note_payer(broker, owner)
    broker.durability.shares.look_again()
    _drop(broker, segment, owner)
    return True


def _has_others(broker: BrokerCore, owner: str) -> bool:
    """Has anybody else sessions here? Other nodes are not asked for."""
    return any(
        session.owner is not None and session.owner != owner and not session.role.is_link
        for session in broker.sessions.values()
    )


def _find_sparse(broker: BrokerCore) -> bool:
    """Is there a segment to be written anew?"""
    durability = broker.durability
    for _ in range(max(1, min(MAX_LOOKED_AT, MAX_QUESTIONS // (1 + len(broker.sessions))))):
        found = durability.needed.maybe_sparse()
        if found is None or not durability.has_disk:
            return False
        segment, end = found
        segment.looked_at = segment.references
        runs = [
            run
            for session in broker.sessions.values()
            if session.stored is not None and session.stored.count
            for _, run in session.stored.runs_after(segment.first, end, end - segment.first)
        ]
        # What a session that has ended leaves to others of its shared subscription is in none of these.
        is_known = sum(count for _, count in runs) == segment.references
        needed = joined(runs)
        if is_known and SPARSE_PART * sum(count for _, count in needed) <= end - segment.first:
            durability.changes.sparse.append((segment.first, end, needed))
            return True
    return False


def _to_give_up(broker: BrokerCore, owner: str, waiting: set[str]) -> NeededSegment | None:
    """The oldest segment that this owner can do without for the sake of those who wait."""
    log, shares = broker.durability.needed, broker.durability.shares
    held = [each for each in log.segments if owner in each.holders]
    flooder = shares.flooder
    if flooder is None or flooder == owner:
        return held[0] if held else None
    of_flooder = next((each for each in held if _is_mostly_of(each, flooder)), None)
    if of_flooder is not None or waiting == {flooder}:
        return of_flooder
    return held[0] if held else None


def _to_drop(broker: BrokerCore, waiting: set[str]) -> NeededSegment | None:
    """The oldest that goes, whoever waits for it: of one that has filled the log, and of what it filled."""
    segments = broker.durability.needed.segments
    flooder = broker.durability.shares.flooder
    if flooder is not None:
        of_flooder = next((each for each in segments if _is_mostly_of(each, flooder)), None)
        if of_flooder is not None or waiting == {flooder}:
            return of_flooder
    return segments[0] if segments else None


def _is_mostly_of(segment: NeededSegment, publisher: str) -> bool:
    return 2 * segment.published.get(publisher, 0) >= segment.bytes


def _drop(broker: BrokerCore, segment: NeededSegment, owner: str | None) -> None:
    """Sessions of this owner, or all, do without what they have there."""
    durability = broker.durability
    end = next(end for each, end in durability.needed.spans(durability.next_position) if each is segment)
    for session in broker.sessions.values():
        if session.stored is not None and (owner is None or session.stored.owner == owner):
            _give_up(broker, session, segment.first, end)


def _give_up(broker: BrokerCore, session: Session, first: int, end: int) -> None:
    count = broker.durability.give_up(session, first, end)
    if count:
        if session.ledger is not None:
            session.ledger.overflowed += count
        broker.stats.publish_dropped += count
        note_dropped(broker, session, count)
