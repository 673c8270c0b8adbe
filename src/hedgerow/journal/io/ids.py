"""Which messages are in the journal, by their ids, also after a restart.

A `DuplicateLog` answers, within bounded memory. Its pages are stored in the file `ids` whenever a segment
begins and at the end, with the position up to which they speak; the ids of what came after it are read from
the segments. The file is written after all that it speaks of is durable: otherwise a message that a crash
took away, and that its publisher sends again, would be dropped as a duplicate. It outlives the segments
that retention removes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from hedgerow.duplicates import DEFAULT_BYTES, DuplicateLog, PageKey, SequencePage
from hedgerow.log.checksum import crc32
from hedgerow.log.files import replace_file
from hedgerow.message import MessageId

Pages = list[tuple[PageKey, bytes]]

_HEAD = Struct("<8sQI")
_PAGE = Struct("<HqQH")
_MAGIC = b"hedgeids"


class Ids:
    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._log = DuplicateLog(max_bytes)
        self._log.on_forget = self._forget
        self._pages: dict[PageKey, SequencePage] = {}  # in the order of use
        self._latest: SequencePage | None = None

    @property
    def forgotten(self) -> int:
        """Ids that had to make room for others; if they come again, they are new."""
        return self._log.forgotten

    def seen(self, message_id: MessageId) -> bool:
        """Was it here before? From now on it was."""
        seen = self._log.seen(message_id)
        if self._log.latest is not self._latest:
            self._note_latest()
        return seen

    def take_new(self, first: MessageId, count: int) -> list[tuple[int, int]]:
        """Of so many ids in a row those that were not here, as (offset, count). From now on all were."""
        new: list[tuple[int, int]] = []
        offset = 0
        while offset < count:
            message_id = first._replace(sequence=first.sequence + offset)
            is_new = not self.seen(message_id)
            _append(new, offset, 1 if is_new else 0)
            offset += 1
            page = self._log.page_of(message_id)
            if page is None or offset == count:
                continue
            # The rest of the page at once: a step for each message would cost more than all else.
            begin = (message_id.sequence + 1) % (8 * len(page.bits))
            rest = min(count - offset, 8 * len(page.bits) - begin) if begin else 0
            mask = ((1 << rest) - 1) << begin
            bits = int.from_bytes(page.bits, "little")
            if rest and not bits & mask:
                page.bits[:] = (bits | mask).to_bytes(len(page.bits), "little")
                _append(new, offset, rest)
                offset += rest
        return new

    def pages(self) -> Pages:
        """To be stored."""
        return [(key, bytes(page.bits)) for key, page in self._pages.items()]

    def restore(self, pages: Pages) -> None:
        for key, bits in pages:
            self._log.restore(key, bits)
            self._note_latest()

    def _note_latest(self) -> None:
        page = self._latest = self._log.latest
        if page is not None:
            key = page.key
            self._pages.pop(key, None)
            self._pages[key] = page

    def _forget(self, key: PageKey) -> None:
        self._pages.pop(key, None)


def _append(spans: list[tuple[int, int]], offset: int, count: int) -> None:
    if not count:
        return
    if spans and sum(spans[-1]) == offset:
        spans[-1] = spans[-1][0], spans[-1][1] + count
    else:
        spans.append((offset, count))


def store_ids(directory: Path, position: int, pages: Pages) -> None:
    """`pages` speak of all messages below `position`, and of no other."""
    body = b"".join(_encode_pages(pages))
    head = _HEAD.pack(_MAGIC, position, len(pages))
    replace_file(directory / "ids", head + body + crc32(head + body).to_bytes(4, "little"))


def _encode_pages(pages: Pages) -> Iterator[bytes]:
    for (origin, epoch, number), bits in pages:
        name = origin.encode()
        yield _PAGE.pack(len(name), epoch, number, len(bits)) + name + bits


def load_ids(directory: Path) -> tuple[int, Pages] | None:
    """(position, pages) as they were stored. None: there are none, or they are damaged."""
    try:
        data = (directory / "ids").read_bytes()
    except FileNotFoundError:
        return None
    checked = data[:-4]
    if len(checked) < _HEAD.size or crc32(checked) != int.from_bytes(data[-4:], "little"):
        return None
    magic, position, count = _HEAD.unpack_from(checked)
    if magic != _MAGIC:
        return None
    pages: Pages = []
    at = _HEAD.size
    for _ in range(count):
        name_bytes, epoch, number, bits_bytes = _PAGE.unpack_from(checked, at)
        at += _PAGE.size
        origin = checked[at : at + name_bytes].decode()
        at += name_bytes
        pages.append(((origin, epoch, number), checked[at : at + bits_bytes]))
        at += bits_bytes
    return position, pages
