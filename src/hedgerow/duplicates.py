"""The duplicate log: which messages have been here, by their fabric-wide id.

`seen` remembers an id and answers whether it was there already. A link that was away may bring its queue
hours after the same messages came by another way, so the log remembers as long as its memory lasts, not for
a time: the sequences of one life of a node (origin and epoch) are dense, so each is one bit, and 16 MiB hold
about fifty million of them.

The bits are in pages of 2,048. Beyond `max_bytes`, which counts what Python takes beside the bits, the page
unused for longest is forgotten first, and no life has more than a quarter of it: one busy origin does not
push out the others. An id that was forgotten is new when it comes again: twice is better than never. A page
that was used within `least_age_s` is kept nevertheless, until the log takes `MOST_GROWTH` times its size.

Whoever gives ids under an alias (`broker/ids.py`) can make up as many origins as it likes. So the lives of
one giver have no more than a quarter either, together; of these the one that grows gives its own pages, once
it has more than its share.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence

from hedgerow.message import MessageId
from hedgerow.origins import OF_TOPIC

DEFAULT_BYTES = 16 * 1024 * 1024
MAX_LIVES = 16_384  # A stranger may invent an origin for every message.
MOST_GROWTH = 4  # Whoever sends fast could have the log grow for ever.
MOST_OF_ONE = 4  # One life, or one giver, has no more than this part of the log.
MAX_SEQUENCE = 2**64 - 1  # No node counts further, and a number of a thousand digits is a way to fill memory.
PAGE_BYTES = 640  # as tracemalloc counts: 256 of bits, and the objects and table entries that lead to them
LIFE_BYTES = 400  # of a life without its pages and its name

PageKey = tuple[str, int, int]
"""Origin, epoch, and which page of that life."""

_OF_TOPICS = f"!{OF_TOPIC}:"
_PAGE_SHIFT = 11
_PAGE_MASK = (1 << _PAGE_SHIFT) - 1
_BITS_BYTES = (1 << _PAGE_SHIFT) // 8
_BYTE_MASK = _BITS_BYTES - 1


class SequencePage:
    """2,048 sequences of one life."""

    __slots__ = ("bits", "life", "number", "used_at")

    def __init__(self, life: Life, number: int) -> None:
        self.bits = bytearray(_BITS_BYTES)
        self.life = life
        self.number = number
        self.used_at = 0.0
        """When the first of the last row of ids came that are on this page, or the last of the row before."""

    @property
    def key(self) -> PageKey:
        return (*self.life.key, self.number)


class Life:
    """What is known of one (origin, epoch). Who gets many messages of one life asks it without the log.

    It answers rightly even when `is_forgotten`, but by asking the log anew each time.
    """

    __slots__ = ("_log", "giver", "is_forgotten", "key", "pages")

    def __init__(self, log: DuplicateLog, key: tuple[str, int], giver: Giver | None) -> None:
        self.key = key
        self.giver = giver
        """Origin and epoch."""
        self.is_forgotten = False
        """The log no longer holds it: ask for it again."""
        self.pages: dict[int, SequencePage] = {}
        self._log = log

    def seen(self, sequence: int) -> bool:
        """Was it here before? From now on it was. A number that no node gives always was."""
        page = self.pages.get(sequence >> _PAGE_SHIFT)
        log = self._log
        if page is None:
            if not 0 <= sequence <= MAX_SEQUENCE:
                return True
            if self.is_forgotten:
                return log.life(*self.key).seen(sequence)
            page = log.add_page(self, sequence >> _PAGE_SHIFT)
        elif page is not log.latest:
            log.use(page)
        bits = page.bits
        index = sequence >> 3 & _BYTE_MASK
        byte = bits[index]
        bit = 1 << (sequence & 7)
        if byte & bit:
            return True
        bits[index] = byte | bit
        return False

    def note_run(self, first: int, count: int) -> bool:
        """Note so many in a row at once, if all are new. False: each has to be looked at, and none is
        noted."""
        last = first + count - 1
        number = first >> _PAGE_SHIFT
        page = self.pages.get(number)
        if page is not None and page is self._log.latest and last >> _PAGE_SHIFT == number:
            return _note(page, first, count)
        if self.is_forgotten or first < 0 or last > MAX_SEQUENCE:
            return False
        parts = _by_page(first, count)
        if any(_are_held(self.pages.get(begin >> _PAGE_SHIFT), begin, size) for begin, size in parts):
            return False
        for begin, size in parts:
            if self.is_forgotten:  # A page of it was too much, in a log that is full.
                return self._log.life(*self.key).note_run(begin, first + count - begin)
            page = self.pages.get(begin >> _PAGE_SHIFT)
            if page is None:
                page = self._log.add_page(self, begin >> _PAGE_SHIFT)
            else:
                self._log.use(page)
            _note(page, begin, size)
        return True

    def note_all(self, sequences: Sequence[int]) -> None:
        """From now on these were here."""
        first, count = sequences[0], len(sequences)
        if list(sequences) == list(range(first, first + count)) and self.note_run(first, count):
            return
        for sequence in sequences:
            self.seen(sequence)


def _by_page(first: int, count: int) -> list[tuple[int, int]]:
    """Sequences in a row as such rows that each are on one page: where it begins, and its length."""
    end = first + count
    parts = []
    while first < end:
        size = min(end, ((first >> _PAGE_SHIFT) + 1) << _PAGE_SHIFT) - first
        parts.append((first, size))
        first += size
    return parts


def _are_held(page: SequencePage | None, first: int, count: int) -> bool:
    """Has the page any of them?"""
    if page is None:
        return False
    begin = first & _PAGE_MASK
    held = int.from_bytes(page.bits[begin >> 3 : begin + count + 7 >> 3], "little")
    return held >> (begin & 7) & (1 << count) - 1 != 0


def _note(page: SequencePage, first: int, count: int) -> bool:
    """False: it has some of them, and none is noted."""
    begin = first & _PAGE_MASK
    begin_byte, end_byte = begin >> 3, begin + count + 7 >> 3
    bits = page.bits
    held = int.from_bytes(bits[begin_byte:end_byte], "little")
    new = (1 << count) - 1 << (begin & 7)
    if held & new:
        return False
    bits[begin_byte:end_byte] = (held | new).to_bytes(end_byte - begin_byte, "little")
    return True


class Giver:
    """The lives under the aliases of one user or link."""

    __slots__ = ("bytes", "lives", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes = 0
        self.lives: OrderedDict[Life, None] = OrderedDict()  # in the order of use


def giver_of(origin: str) -> str | None:
    """Who could make up more of such origins; None: nobody, it is the name of a node."""
    name, is_alias, _ = origin.partition("~")
    if not is_alias:
        return None
    return _OF_TOPICS if name.startswith(_OF_TOPICS) else name  # There is one for each pair of topics.


class DuplicateLog:
    """`forgotten` counts the ids, `forgotten_lives` the lives that had to make room for others."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES, max_lives: int = MAX_LIVES) -> None:
        if max_bytes < 4 * (LIFE_BYTES + PAGE_BYTES):
            raise ValueError(f"a duplicate log needs at least {4 * (LIFE_BYTES + PAGE_BYTES)} bytes")
        self.forgotten = 0
        self.forgotten_lives = 0
        self.bytes = 0
        self.latest: SequencePage | None = None  # the page used last: most messages come in rows of one life
        self.on_forget: Callable[[PageKey], None] = lambda key: None
        self.clock: Callable[[], float] = lambda: 0.0
        """Asked only where there is a least age."""
        self._least_age_s = 0.0
        self._is_restoring = False
        self._max_bytes = max_bytes
        self._max_lives = max_lives
        self._max_pages_of_a_life = max(1, max_bytes // MOST_OF_ONE // PAGE_BYTES)
        self._givers: dict[str, Giver] = {}
        # Both in the order of use.
        self._lives: OrderedDict[tuple[str, int], Life] = OrderedDict()
        self._pages: OrderedDict[SequencePage, None] = OrderedDict()

    def set_bounds(self, max_bytes: int, least_age_s: float) -> None:
        """Of a log that may be full already."""
        self._max_bytes, self._least_age_s = max_bytes, least_age_s
        self._max_lives = max(MAX_LIVES, max_bytes // (LIFE_BYTES + PAGE_BYTES))
        self._max_pages_of_a_life = max(1, max_bytes // MOST_OF_ONE // PAGE_BYTES)
        self._make_room()

    @property
    def life_count(self) -> int:
        return len(self._lives)

    def seen(self, message_id: MessageId) -> bool:
        """Was it here before? From now on it was."""
        origin, epoch, sequence = message_id
        life = self._lives.get((origin, epoch))
        if life is None:
            life = self.life(origin, epoch)
        return life.seen(sequence)

    def page_of(self, message_id: MessageId) -> SequencePage | None:
        """Where the log keeps it, with its neighbours: to be stored. None: it does not."""
        origin, epoch, sequence = message_id
        life = self._lives.get((origin, epoch))
        return life.pages.get(sequence >> _PAGE_SHIFT) if life is not None else None

    def restore(self, key: PageKey, bits: bytes) -> None:
        """A page that was stored. The log may have been larger then, and may be again: room is made later."""
        origin, epoch, number = key
        life = self.life(origin, epoch)
        if number not in life.pages and len(bits) == _BITS_BYTES:
            self._is_restoring = True
            self.add_page(life, number).bits[:] = bits
            self._is_restoring = False

    def copy(self) -> DuplicateLog:
        """Another one that remembers the same, to go on by itself."""
        log = DuplicateLog(self._max_bytes, self._max_lives)
        for page in self._pages:
            log.restore(page.key, bytes(page.bits))
        return log

    def life(self, origin: str, epoch: int) -> Life:
        key = origin, epoch
        life = self._lives.get(key)
        if life is None:
            life = self._lives[key] = Life(self, key, self._find_giver(origin))
            self._count(life, _life_bytes(life))
            if len(self._lives) > self._max_lives:
                self._forget_life(next(iter(self._lives.values())))
            self._make_room()
        return life

    def add_page(self, life: Life, number: int) -> SequencePage:
        page = life.pages[number] = SequencePage(life, number)
        self._note_use(page)
        self._pages[page] = None
        self._count(life, PAGE_BYTES)
        self._lives.move_to_end(life.key)
        self.latest = page
        oldest = next(iter(life.pages.values()))
        if len(life.pages) > self._max_pages_of_a_life and not self._is_young(oldest):
            self._forget_page(oldest)
        self._make_room()
        return page

    def use(self, page: SequencePage) -> None:
        """It is another page than the last time: now it is the one to be forgotten last."""
        self._note_use(page)
        self.latest = page
        self._pages.move_to_end(page)
        self._lives.move_to_end(page.life.key)
        if page.life.giver is not None:
            page.life.giver.lives.move_to_end(page.life)

    def _note_use(self, page: SequencePage) -> None:
        if self._least_age_s:
            page.used_at = self.clock()
            if self.latest is not None:
                self.latest.used_at = page.used_at

    def _is_young(self, page: SequencePage) -> bool:
        if self._is_restoring:
            return True
        if not self._least_age_s or self.bytes > self._max_bytes * MOST_GROWTH:
            return False
        return page.used_at + self._least_age_s > self.clock()

    def _find_giver(self, origin: str) -> Giver | None:
        name = giver_of(origin)
        if name is None:
            return None
        giver = self._givers.get(name)
        if giver is None:
            giver = self._givers[name] = Giver(name)
        return giver

    def _count(self, life: Life, size: int) -> None:
        """It takes so much more, and was used last. Its giver makes room for it."""
        self.bytes += size
        giver = life.giver
        if giver is None:
            return
        giver.bytes += size
        giver.lives[life] = None
        giver.lives.move_to_end(life)
        while len(giver.lives) > self._max_lives // MOST_OF_ONE:
            self._forget_life(next(iter(giver.lives)))
        while len(giver.lives) > 1 and giver.bytes > self._max_bytes // MOST_OF_ONE:
            # By pages: a life that is in use has old ones, too. One that grows beyond what each of them may
            # have gives its own, so that whoever sends much does not have those forgotten that send little.
            is_large = len(life.pages) > 1 and len(life.pages) * PAGE_BYTES * len(giver.lives) > giver.bytes
            oldest = life if is_large else next(iter(giver.lives))
            if not oldest.pages:
                self._forget_life(oldest)
            elif self._is_young(page := next(iter(oldest.pages.values()))):
                return
            else:
                self._forget_page(page)

    def _make_room(self) -> None:
        """What was added last is last in the order, and stays."""
        while self.bytes > self._max_bytes and len(self._pages) > 1:
            oldest = next(iter(self._pages))
            if self._is_young(oldest):
                return
            self._forget_page(oldest)
        while self.bytes > self._max_bytes and len(self._lives) > 1 and not self._is_restoring:
            self._forget_life(next(iter(self._lives.values())))

    def _forget_page(self, page: SequencePage) -> None:
        life = page.life
        del self._pages[page], life.pages[page.number]
        self.on_forget(page.key)
        self._discount(life, PAGE_BYTES)
        self.forgotten += int.from_bytes(page.bits).bit_count()
        if not life.pages:
            self._forget_life(life)

    def _forget_life(self, life: Life) -> None:
        life.is_forgotten = True
        del self._lives[life.key]
        self._discount(life, _life_bytes(life) + PAGE_BYTES * len(life.pages))
        self.forgotten_lives += 1
        for page in life.pages.values():
            del self._pages[page]
            self.on_forget(page.key)
            self.forgotten += int.from_bytes(page.bits).bit_count()
        life.pages.clear()
        giver = life.giver
        if giver is not None:
            del giver.lives[life]
            if not giver.lives:
                del self._givers[giver.name]

    def _discount(self, life: Life, size: int) -> None:
        self.bytes -= size
        if life.giver is not None:
            life.giver.bytes -= size


def _life_bytes(life: Life) -> int:
    origin, epoch = life.key
    return LIFE_BYTES + sys.getsizeof(origin) + sys.getsizeof(epoch)
