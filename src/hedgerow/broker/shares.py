"""Whose turn it is to wait, or to do without, where the log is full (`log_pressure.py` does it).

Below the bound nobody is asked. At the bound two things are looked at. How much of the log the clients of
an owner have *published*: whoever has published more than is left waits, and the others go on, in a reserve
beyond the bound. And how much waits for the sessions of an owner, which it *holds*: an owner that holds more
than its share does without some of it, before anybody else has to wait for it or to do without. Addresses
without a user can be many: together they do without what is beyond half of the log, before a user waits.

Nodes and parts of a node have no owner here, and no share.
"""

from __future__ import annotations

from collections.abc import Iterator

from hedgerow.broker.needed import MAX_POSITION, NeededLog
from hedgerow.broker.owners import is_address
from hedgerow.broker.unwritten import Unwritten, UnwrittenMessage, UnwrittenRow

RESERVE_PART = 8  # One in so many bytes of the bound, beyond it, is for those who have published little.
LEAST_SHARE = 16  # An owner may always hold one in so many bytes; more, where few others hold something.
NAMELESS_PART = 2  # Addresses without a user hold one in so many bytes together, where a user waits.
LOOK_S = 0.1  # How much all hold is added up this seldom.


class Shares:
    __slots__ = ("_bound", "_log", "_look_at", "half", "nameless", "over", "share", "told")

    def __init__(self, log: NeededLog, bound: int | None) -> None:
        self._log = log
        self._bound = bound
        self._look_at = 0.0
        self.over: list[str] = []
        """Owners that hold more than their share, whoever holds most first; none where the log has room."""
        self.half: set[str] = set()
        """Those of them that hold more than half of the log. To them alone it is not left what somebody
        publishes who floods it: else that would be a way to have others' messages go."""
        self.nameless: list[str] = []
        """Addresses that hold most, where all addresses together hold more than half of the log."""
        self.share = 0
        """In bytes, as of then."""
        self.told: set[str] = set()
        """Those of whom it was said, since the log last had room."""

    @property
    def is_full(self) -> bool:
        """Is the bound reached?"""
        return self._bound is not None and self._log.bytes >= self._bound

    @property
    def left(self) -> int:
        """With the reserve."""
        bound = self._bound or 0
        return bound + bound // RESERVE_PART - self._log.bytes

    def floods(self, publisher: str) -> bool:
        """Did it publish most of what is in the log?"""
        return bool(publisher) and 2 * self._log.published.get(publisher, 0) >= max(1, self._log.bytes)

    @property
    def flooder(self) -> str | None:
        return next((each for each in self._log.published if self.floods(each)), None)

    def refuses(self, owner: str | None, publisher: str) -> bool:
        """Must a session of this owner do without what that one publishes?"""
        return owner in self.half and owner != publisher and self.floods(publisher)

    def look(self, end: int, now: float) -> None:
        """Who holds more than its share? `end`: of the log."""
        if not self.is_full:
            self.over, self.half, self.nameless, self._look_at = [], set(), [], 0.0
            if self._bound is not None and self._log.bytes < self._bound // 2:
                self.told.clear()
        elif now >= self._look_at:
            self._look_at = now + LOOK_S
            held = self._log.held_bytes(end)
            self.share = self.share_of(len(held))
            over = [(size, owner) for owner, size in held.items() if size > self.share]
            self.over = [owner for _, owner in sorted(over, reverse=True)]
            self.half = {each for each in self.over if 2 * held[each] > (self._bound or 0)}
            self.nameless = self._beyond_half({each: held[each] for each in held if is_address(each)})

    def _beyond_half(self, held: dict[str, int]) -> list[str]:
        """Of these, those that hold most, until the rest hold no more than half of the log."""
        rest = sum(held.values())
        found: list[str] = []
        for owner in sorted(held, key=held.__getitem__, reverse=True):
            if NAMELESS_PART * rest <= (self._bound or 0):
                break
            found.append(owner)
            rest -= held[owner]
        return found

    def pays(self, owner: str, others: set[str]) -> bool:
        """Does this one, which holds more than its share, do without something for those who wait?"""
        return bool(others) and (owner in self.half or any(not self.floods(each) for each in others))

    def is_news(self, owner: str) -> bool:
        """Was it not said yet that this one does without?"""
        if owner in self.told:
            return False
        self.told.add(owner)
        return True

    def look_again(self) -> None:
        """Somebody holds less now."""
        self._look_at = 0.0

    def share_of(self, owners: int) -> int:
        """What one may hold, where so many hold something."""
        return (self._bound or 0) // min(owners + 1, LEAST_SHARE)


class ShareRuling:
    """Who may have more of the reserve, in one batch."""

    __slots__ = ("_left", "_log", "_taken")

    def __init__(self, log: NeededLog, left: int) -> None:
        self._log = log
        self._left = left
        self._taken: dict[str, int] = {}

    def admits(self, entry: UnwrittenMessage | UnwrittenRow) -> bool:
        """May it be written? As much as its publisher leaves, with what it has."""
        publisher, size = entry.publisher, entry.size
        if publisher:
            taken = self._taken.get(publisher, 0) + size
            if self._log.published.get(publisher, 0) + taken > self._left - size:
                return False
            self._taken[publisher] = taken
        self._left -= size
        return True


class Lines:
    """What has to wait until the log has room, by publisher: others may go on meanwhile."""

    __slots__ = ("_lines", "bytes")

    def __init__(self) -> None:
        self._lines: dict[str, Unwritten] = {}  # none of them empty
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, publisher: str) -> bool:
        return publisher in self._lines

    def __iter__(self) -> Iterator[Unwritten]:
        return iter(self._lines.values())

    @property
    def publishers(self) -> set[str]:
        return set(self._lines)

    def bytes_of(self, publisher: str) -> int:
        line = self._lines.get(publisher)
        return 0 if line is None else line.bytes

    @property
    def first(self) -> int:
        """The number of the first that waits in any of them."""
        return min([line.entries[0].number for line in self._lines.values()], default=MAX_POSITION)

    def has_passed(self, publisher: str | None, number: int) -> bool:
        """Waits nothing of this publisher up to this number; None: of any?"""
        if publisher is not None:
            line = self._lines.get(publisher)
            return line is None or line.done >= number
        return all(line.done >= number for line in self._lines.values())

    def sort(self, own: Unwritten, admission: ShareRuling) -> None:
        """Have those wait that are not admitted, and whatever their publishers have behind it."""
        entries = own.entries
        last: UnwrittenMessage | UnwrittenRow | None = None
        waits = False
        for _ in range(len(entries)):
            entry = entries.popleft()
            # A publication is written whole, with what its packet identifier means.
            if last is None or not 0 < last.publication == entry.publication:
                waits = entry.publisher in self._lines or not admission.admits(entry)
            last = entry
            if waits:
                own.bytes -= entry.size
                self.bytes += entry.size
                line = self._lines.get(entry.publisher)
                if line is None:
                    line = self._lines[entry.publisher] = Unwritten()
                line.add(entry)
            else:
                entries.append(entry)

    def take(
        self, most_bytes: int, room_bytes: float, admission: ShareRuling | None
    ) -> list[UnwrittenMessage | UnwrittenRow]:
        """Of each line in turn. `admission`: of those that are admitted alone."""
        taken: list[UnwrittenMessage | UnwrittenRow] = []
        for publisher, line in list(self._lines.items()):
            while (
                line.entries and most_bytes > 0 and (admission is None or admission.admits(line.entries[0]))
            ):
                some = line.take(0, room_bytes)  # a publication
                if not some:
                    break
                size = sum([each.size for each in some])
                most_bytes -= size
                room_bytes -= size
                self.bytes -= size
                taken += some
            if not line.entries:
                del self._lines[publisher]
        return taken

    def drop(self, everywhere: bool) -> None:
        """Those that nobody needs any more: the first of each line, or wherever they are."""
        for publisher, line in list(self._lines.items()):
            before = line.bytes
            if everywhere:
                line.drop_all()
            else:
                line.drop_first()
            self.bytes += line.bytes - before
            if not line.entries:
                del self._lines[publisher]
