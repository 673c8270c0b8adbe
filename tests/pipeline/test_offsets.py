"""Offsets: which positions a batch takes of which journal, and what is refused of a checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from hedgerow.errors import HedgerowError, StoreError
from hedgerow.journal import JournalReader, Writer, retain
from hedgerow.pipeline import offsets
from hedgerow.pipeline.offsets import Positions, Range
from hedgerow.pipeline.options import ReadOptions

JOURNALS = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.integers(0, 500), st.integers(0, 500)))


def write(directory: Path, count: int, segment_bytes: int = 2**26) -> JournalReader:
    with Writer(directory, "broker", segment_bytes=segment_bytes) as writer:
        for number in range(count):
            writer.append_run("a", [b"%d" % number], transport="mqtt", received_at=1000.0 + number)
            writer.flush()
    return JournalReader(directory)


def options_for(*journals: Path | str, **others: object) -> ReadOptions:
    return ReadOptions(tuple(map(str, journals)), **others)  # type: ignore[arg-type]


# Admission


@given(JOURNALS, st.integers(1, 2_000))
def test_no_journal_starves_and_the_limit_holds(journals: dict[str, tuple[int, int]], limit: int) -> None:
    taken = {name: start for name, (start, _) in journals.items()}
    ends = {name: start + rows for name, (start, rows) in journals.items()}
    admitted = offsets.admit(taken, ends, {}, limit)
    waiting = [name for name in taken if ends[name] > taken[name]]
    rows = {name: admitted[name] - taken[name] for name in taken}
    assert all(taken[name] <= admitted[name] <= ends[name] for name in taken)
    assert sum(rows.values()) <= max(limit, len(waiting))
    assert sum(rows.values()) >= min(limit, sum(ends[name] - taken[name] for name in waiting))
    share = limit // max(1, len(waiting))
    assert all(rows[name] >= min(ends[name] - taken[name], max(1, share)) for name in waiting)


@given(JOURNALS, st.integers(1, 100))
def test_batches_take_everything_in_the_end(journals: dict[str, tuple[int, int]], limit: int) -> None:
    taken = {name: start for name, (start, _) in journals.items()}
    ends = {name: start + rows for name, (start, rows) in journals.items()}
    for _ in range(sum(rows for _, rows in journals.values()) + 1):
        taken = offsets.admit(taken, ends, {}, limit)
    assert taken == ends


def test_without_a_limit_all_is_taken() -> None:
    assert offsets.admit({"a": 0, "b": 7}, {"a": 1000, "b": 7}, {}, None) == {"a": 1000, "b": 7}


def test_what_retention_has_removed_is_no_row() -> None:
    assert offsets.admit({"a": 0}, {"a": 1_000_010}, {"a": 1_000_000}, 5) == {"a": 1_000_005}


def test_a_journal_that_is_gone_stays_where_it_was() -> None:
    assert offsets.admit({"a": 10}, {}, {}, 5) == {"a": 10}


# Parts


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 300))
def test_parts_are_the_whole_and_of_one_size(start: int, rows: int, most: int) -> None:
    parts = offsets.split(Range("j", "/j", start, start + rows), most)
    covered = [position for part in parts for position in range(part.start, part.end)]
    assert covered == list(range(start, start + rows))
    sizes = [part.end - part.start for part in parts]
    assert not sizes or (max(sizes) <= most and min(sizes) >= max(sizes) - 1)


@given(st.lists(st.integers(1, 300)), st.integers(1, 300))
def test_small_parts_are_read_together(sizes: list[int], rows: int) -> None:
    parts = [Range(str(number), "/j", 0, size) for number, size in enumerate(sizes)]
    gathered = offsets.gather(parts, rows)
    assert [part for group in gathered for part in group] == parts
    assert all(len(group) == 1 or sum(part.end for part in group) <= rows for group in gathered)
    assert len(gathered) <= len(parts)


@pytest.mark.parametrize(
    ("rows", "cores", "each"), [(10, 2, 50_000), (400_000, 2, 200_000), (10_000_000, 2, 500_000)]
)
def test_every_core_has_a_part(rows: int, cores: int, each: int) -> None:
    assert offsets.rows_per_part(rows, cores) == each


# As JSON


@given(st.dictionaries(st.text(), st.integers(0, 2**63 - 1)))
def test_an_offset_is_read_as_it_was_written(positions: Positions) -> None:
    assert offsets.decode(offsets.encode(positions)) == positions


@pytest.mark.parametrize(
    "offset",
    [
        None,
        {},
        {"version": 2, "journals": {}},
        {"version": 1},
        {"version": 1, "journals": {"a": -1}},
        {"a": 1},
    ],
)
def test_another_offset_is_refused(offset: object) -> None:
    with pytest.raises(HedgerowError, match="a checkpoint of its own"):
        offsets.decode(offset)


# Journals


def test_globs_find_journals_and_pass_over_the_rest(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", 1), write(tmp_path / "two", 1)
    (tmp_path / "three").mkdir()
    (tmp_path / "file").touch()
    found = offsets.find((str(tmp_path / "*"), str(tmp_path / "one")))
    assert {journal: reader.directory for journal, reader in found.items()} == {
        one.journal_id: tmp_path / "one",
        two.journal_id: tmp_path / "two",
    }


def test_a_directory_whose_name_looks_like_a_glob_is_found(tmp_path: Path) -> None:
    reader = write(tmp_path / "one[1]", 1)
    assert list(offsets.find((str(tmp_path / "one[1]"),))) == [reader.journal_id]


def test_a_directory_that_is_named_must_hold_a_journal(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no journal"):
        offsets.find((str(tmp_path),))


def test_a_journal_of_another_format_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "journal-99-0123").touch()
    with pytest.raises(StoreError, match="format 99"):
        offsets.find((str(tmp_path / "*"),))


def test_a_copy_beside_its_journal_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "one", 1)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with pytest.raises(HedgerowError, match="the same journal"):
        offsets.find((str(tmp_path / "*"),))


def test_a_link_to_a_journal_is_no_copy(tmp_path: Path) -> None:
    write(tmp_path / "one", 1)
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert len(offsets.find((str(tmp_path / "*"),))) == 1


# Where a query begins


@pytest.mark.parametrize(
    ("others", "begins", "joins"),
    [
        ({}, 0, 0),
        ({"starting_position": "latest"}, 10, 0),
        ({"starting_time": 1003.5}, 4, 4),
        ({"starting_time": 5000.0}, 10, 10),
    ],
)
def test_it_begins_where_it_is_told(
    tmp_path: Path, others: dict[str, object], begins: int, joins: int
) -> None:
    reader = write(tmp_path / "one", 10)
    options = options_for(tmp_path / "one", **others)
    assert offsets.starting_positions({reader.journal_id: reader}, options) == {reader.journal_id: begins}
    assert offsets.joining_position(reader, options) == joins


@pytest.mark.parametrize("name", [lambda reader: reader.journal_id, lambda reader: str(reader.directory)])
def test_positions_are_given_by_id_or_by_directory(
    tmp_path: Path, name: Callable[[JournalReader], str]
) -> None:
    one, two = write(tmp_path / "one", 10), write(tmp_path / "two", 10)
    found = {one.journal_id: one, two.journal_id: two}
    options = options_for(tmp_path / "*", starting_position={name(one): 6})
    assert offsets.starting_positions(found, options) == {one.journal_id: 6, two.journal_id: 0}


def test_a_starting_position_that_there_is_not_is_refused(tmp_path: Path) -> None:
    reader = write(tmp_path / "one", 10)
    found = {reader.journal_id: reader}
    with pytest.raises(HedgerowError, match="ends at 10"):
        offsets.starting_positions(found, options_for("/j", starting_position={reader.journal_id: 11}))
    with pytest.raises(HedgerowError, match="no such journal"):
        offsets.starting_positions(found, options_for("/j", starting_position={"/elsewhere": 1}))


# What a checkpoint has taken


def test_a_checkpoint_that_fits_is_accepted(tmp_path: Path) -> None:
    reader = write(tmp_path / "one", 10)
    offsets.check({reader.journal_id: 10}, {reader.journal_id: reader}, options_for(tmp_path / "one"))


def test_a_missing_journal_is_refused_unless_that_is_meant(tmp_path: Path) -> None:
    reader = write(tmp_path / "one", 10)
    found = {reader.journal_id: reader}
    with pytest.raises(HedgerowError, match="missingJournals") as caught:
        offsets.check({"0123": 5}, found, options_for(tmp_path / "one"))
    assert reader.journal_id in str(caught.value)
    offsets.check({"0123": 5}, found, options_for(tmp_path / "one", ignores_missing=True))


def test_a_journal_that_was_restored_from_an_older_copy_is_refused(tmp_path: Path) -> None:
    reader = write(tmp_path / "one", 10)
    with pytest.raises(HedgerowError, match="older copy"):
        offsets.check({reader.journal_id: 11}, {reader.journal_id: reader}, options_for(tmp_path / "one"))


def test_a_journal_begins_at_what_retention_has_left(tmp_path: Path) -> None:
    reader = write(tmp_path / "one", 10, segment_bytes=1)
    retain(tmp_path / "one", max_bytes=1)
    assert offsets.starting_positions({reader.journal_id: reader}, options_for("/j")) == {
        reader.journal_id: 9
    }
