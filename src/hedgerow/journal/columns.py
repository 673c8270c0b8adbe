"""Frames into Arrow: the columns of a journal, made for many frames at once, with no step for a row.

The parts of the frames are joined, and what is one entry a run is repeated for its rows. Strings are looked
up in the joined tables of all the frames. numpy and pyarrow are imported when the first batch is made: a
node that writes a journal needs neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import accumulate
from typing import Any, NamedTuple

from hedgerow.errors import HedgerowError
from hedgerow.extras import install_command
from hedgerow.log.frame import NO_TIME, RUN_FIELDS, LogFrame
from hedgerow.topics import matches

COLUMNS = (
    "position", "origin", "epoch", "sequence", "broker", "transport", "client", "topic", "payload", "qos",
    "retain", "properties", "published_at", "received_at",
)  # fmt: skip
_STRINGS = {"origin", "broker", "transport", "client", "topic", "properties"}
_TIMES = {"published_at", "received_at"}
# Of strings in a batch. A frame has a string once and names it often: with a client id of 60 KB, 50,000
# messages of one byte are 3 GB, more than a column of Arrow holds.
TEXT_BYTES = 64 * 1024 * 1024
_MAX_REMEMBERED = 65_536  # topics whose match with a filter is known


class Piece(NamedTuple):
    """A frame that was read. `payloads` are empty where they are not asked for."""

    frame: LogFrame
    meta: memoryview
    payloads: memoryview


def need(name: str) -> Any:
    """numpy or pyarrow."""
    try:
        return import_module(name)
    except ImportError as error:
        message = f"reading a journal needs {name}; type: {install_command('spark')}"
        raise HedgerowError(message) from error


def schema(columns: Sequence[str] = COLUMNS) -> Any:
    """The `pyarrow.Schema` of the batches."""
    pa = need("pyarrow")
    types: dict[str, Any] = dict.fromkeys(_STRINGS, pa.string())
    types |= {"position": pa.int64(), "epoch": pa.int64(), "sequence": pa.int64(), "payload": pa.binary()}
    types |= {"qos": pa.int32(), "retain": pa.bool_()}
    types |= dict.fromkeys(("published_at", "received_at"), pa.timestamp("us", "UTC"))
    return pa.schema([pa.field(name, types[name], nullable=name != "position") for name in columns])


def record_batches(
    pieces: Sequence[Piece],
    columns: Sequence[str],
    topic_filters: tuple[str, ...] = (),
    begin: int = 0,
    stop: int | None = None,
    text_bytes: int = TEXT_BYTES,
) -> Iterator[Any]:
    """`pyarrow.RecordBatch`es, most often one, of the rows of the pieces from row `begin` to before `stop`
    whose topic matches one of the filters, if there are some."""
    pa = need("pyarrow")
    table = _Table(pieces)
    wanted = schema(columns)
    for first, last in table.parts(columns, begin, table.rows if stop is None else stop, text_bytes):
        chosen = table.matching(topic_filters)[first:last] if topic_filters else None
        if chosen is not None and not chosen.any():
            continue
        arrays = [table.column(name, first, last) for name in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=wanted)
        yield batch if chosen is None or chosen.all() else batch.filter(pa.array(chosen))


class _Table:
    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._np = np = need("numpy")
        self._pa = need("pyarrow")
        self._pieces = pieces
        frames = [piece.frame for piece in pieces]
        parts = [piece.frame.string_parts(piece.meta) for piece in pieces]
        self._strings = self._string_table([part[0] for part in parts], [part[1] for part in parts])
        self._frame_rows = np.array([frame.rows for frame in frames])
        self._first_positions = np.array([frame.first_position for frame in frames])
        # String k of a frame is string k + shift of the table.
        shifts = [0, *accumulate(frame.strings for frame in frames)][:-1]
        self._shifts = np.repeat(np.array(shifts), [frame.runs for frame in frames])
        self._run_rows = self._field("rows").astype(np.int64)
        self.rows = int(self._frame_rows.sum())
        self._is_single = len(self._run_rows) == self.rows

    def parts(
        self, columns: Sequence[str], begin: int, stop: int, text_bytes: int
    ) -> Iterator[tuple[int, int]]:
        """The rows from `begin` to before `stop`, cut where their strings come to `text_bytes`."""
        np = self._np
        names = [name for name in columns if name in _STRINGS]
        if len(names) * int(self._string_sizes.max(initial=0)) * (stop - begin) > text_bytes:
            sizes = sum((self._string_sizes[self._string_numbers(name)] for name in names), np.int64(0))
            ends = np.cumsum(self._repeat(sizes)[begin:stop])
            while ends.size and ends[-1] > text_bytes:
                rows = max(1, int(np.searchsorted(ends, text_bytes, "right")))
                yield begin, begin + rows
                begin += rows
                ends = ends[rows:] - ends[rows - 1]
        if begin < stop:
            yield begin, stop

    def column(self, name: str, begin: int, stop: int) -> Any:
        if name in _STRINGS:
            return self._strings.take(self._pa.array(self._repeat(self._string_numbers(name))[begin:stop]))
        whole = self._times(name) if name in _TIMES else getattr(self, f"_{name}")()
        return whole.slice(begin, stop - begin)

    def matching(self, topic_filters: tuple[str, ...]) -> Any:
        """For each row, whether its topic matches; a topic is looked at once, not once a row."""
        numbers, inverse = self._np.unique(self._string_numbers("topic"), return_inverse=True)
        topics = self._strings.take(self._pa.array(numbers)).to_pylist()
        matching = self._np.array([_matches_one(topic_filters, topic) for topic in topics], dtype=bool)
        return self._repeat(matching[inverse])

    def _string_table(self, lengths: list[memoryview], strings: list[memoryview]) -> Any:
        """All strings of all frames; the first is null."""
        np, pa = self._np, self._pa
        sizes = np.frombuffer(b"".join(lengths), "<u4")
        self._string_sizes = np.concatenate(([0], sizes)).astype(np.int64)
        offsets = np.zeros(len(sizes) + 2, np.int32)
        np.cumsum(sizes, out=offsets[2:])
        valid = np.ones(len(sizes) + 1, bool)
        valid[0] = False
        buffers = [np.packbits(valid, bitorder="little"), offsets, b"".join(strings)]
        return pa.Array.from_buffers(pa.string(), len(valid), [pa.py_buffer(part) for part in buffers])

    def _field(self, name: str) -> Any:
        """One entry a run."""
        parts = [piece.frame.field(piece.meta, name) for piece in self._pieces]
        return self._np.frombuffer(b"".join(parts), f"<{RUN_FIELDS[name]}")

    def _string_numbers(self, name: str) -> Any:
        numbers = self._field(name).astype(self._np.int64)
        return self._np.where(numbers, numbers + self._shifts, 0)

    def _repeat(self, values: Any) -> Any:
        """What is one entry a run, for each row."""
        return values if self._is_single else self._np.repeat(values, self._run_rows)

    def _count_up(self, firsts: Any, rows: Any) -> Any:
        """firsts[0], firsts[0] + 1, … as often as rows[0] says, and so on."""
        np = self._np
        begins = np.cumsum(rows) - rows
        return np.repeat(firsts - begins, rows) + np.arange(rows.sum())

    def _position(self) -> Any:
        return self._pa.array(self._count_up(self._first_positions, self._frame_rows))

    def _sequence(self) -> Any:
        sequences = self._field("sequence")
        if not self._is_single:
            sequences = self._count_up(sequences, self._run_rows)
        return self._pa.array(sequences, mask=self._repeat(self._field("origin") == 0))

    def _epoch(self) -> Any:
        epochs = self._repeat(self._field("epoch"))
        return self._pa.array(epochs, mask=self._repeat(self._field("origin") == 0))

    def _qos(self) -> Any:
        return self._pa.array((self._repeat(self._field("flags")) & 3).astype(self._np.int32))

    def _retain(self) -> Any:
        return self._pa.array(self._repeat(self._field("flags")) & 4 != 0)

    def _times(self, name: str) -> Any:
        times = self._repeat(self._field(name))
        return self._pa.array(times, mask=times == NO_TIME).cast(self._pa.timestamp("us", "UTC"))

    def _payload(self) -> Any:
        np, pa = self._np, self._pa
        sizes = np.frombuffer(b"".join([piece.frame.lengths(piece.meta) for piece in self._pieces]), "<u4")
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        data = self._without_heads(b"".join([piece.payloads for piece in self._pieces]), sizes)
        return pa.Array.from_buffers(
            pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )

    def _without_heads(self, data: bytes, sizes: Any) -> Any:
        """The payloads, one after the other. All those of a run that has heads are of one size."""
        np = self._np
        heads = self._field("head").astype(np.int64)
        if not data or not heads.any():
            return data
        stored = np.frombuffer(data, np.uint8)
        firsts = np.cumsum(self._run_rows) - self._run_rows
        row_ends = np.cumsum(sizes + self._repeat(heads))
        parts = []
        at = 0
        for run in np.flatnonzero(heads).tolist():
            rows, head, first = int(self._run_rows[run]), int(heads[run]), int(firsts[run])
            end = int(row_ends[first + rows - 1])
            begin = end - rows * (head + int(sizes[first]))
            parts.append(stored[at:begin])
            parts.append(stored[begin:end].reshape(rows, -1)[:, head:].reshape(-1))
            at = end
        parts.append(stored[at:])
        return np.concatenate(parts)


@lru_cache(_MAX_REMEMBERED)
def _matches_one(topic_filters: tuple[str, ...], topic: str) -> bool:
    return any(matches(topic_filter, topic) for topic_filter in topic_filters)
