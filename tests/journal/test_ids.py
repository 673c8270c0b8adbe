from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.journal.io.ids import Ids, load_ids, store_ids
from hedgerow.message import MessageId

runs = st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 4_500)), max_size=6)


@given(runs)
def test_a_run_is_looked_up_as_its_messages_are(sequences: list[tuple[int, int]]) -> None:
    ids = Ids()
    known: set[int] = set()
    for first, count in sequences:
        new = [offset for offset in range(count) if first + offset not in known]
        spans = ids.take_new(MessageId("a", 1, first), count)
        assert [offset for begin, length in spans for offset in range(begin, begin + length)] == new
        known.update(range(first, first + count))
    assert all(
        ids.seen(MessageId("a", 1, sequence)) == (sequence in known) for sequence in range(0, 10_000, 7)
    )


@settings(max_examples=30)
@given(runs)
def test_stored_and_loaded(sequences: list[tuple[int, int]]) -> None:
    ids = Ids()
    for number, (first, count) in enumerate(sequences):
        ids.take_new(MessageId(f"node-{number % 2}", number, first), count)
    with tempfile.TemporaryDirectory() as directory:
        store_ids(Path(directory), 17, ids.pages())
        loaded = load_ids(Path(directory))
    assert loaded == (17, ids.pages())
    again = Ids()
    again.restore(loaded[1])
    for number, (first, count) in enumerate(sequences):
        assert again.take_new(MessageId(f"node-{number % 2}", number, first), count) == []


def test_memory_is_bounded() -> None:
    ids = Ids(max_bytes=20_000)
    for sequence in range(0, 1_000_000, 1_000):
        ids.take_new(MessageId("a", 1, sequence), 1_000)
    assert len(ids.pages()) < 32
    assert ids.forgotten > 900_000
    assert ids.seen(MessageId("a", 1, 999_999))
