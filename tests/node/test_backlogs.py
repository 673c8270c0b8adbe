"""What waits for whom, as figures and in words."""

from __future__ import annotations

import pytest

from hedgerow.node.backlogs import (
    MAX_READERS,
    MIB,
    Backlogs,
    Growth,
    LogReader,
    Look,
    Room,
    Watch,
    decode,
    encode,
    owner_in_words,
    reader_in_words,
    room_in_words,
    size_in_words,
    time_in_words,
)

NOW = 1_790_000_000.0


def office_with(size: int) -> LogReader:
    return LogReader("office", "ann", False, False, 3_000, size, NOW - 7_200)


OFFICE = office_with(30 * MIB)
HOUSE = LogReader("hedgerow-federation-house", None, True, True, 10, 1_000, NOW - 60)


def look_at(*readers: LogReader) -> Look:
    look = Look()
    look.add(readers)
    return look


def test_growth_is_that_of_the_last_minute() -> None:
    growth = Growth()
    assert growth.rate is None
    growth.note(100, NOW)
    assert growth.rate is None
    growth.note(600, NOW + 5)
    assert growth.rate == 100
    for second in range(10, 600, 5):
        growth.note(600, NOW + second)
    assert growth.rate == 0


def test_room_is_shared_out_and_lasts_for_so_long() -> None:
    room = Room(25 * MIB, 100 * MIB)
    assert room.share() == 0.25
    assert room.share(50 * MIB) == 0.5
    assert room.full_in_s(MIB) == 75
    assert room.full_in_s(0) is room.full_in_s(None) is room.full_in_s(-5) is None
    assert Room(120 * MIB, 100 * MIB).full_in_s(1) == 0
    assert Room(25 * MIB, None).share() is Room(25 * MIB, None).full_in_s(MIB) is None


def test_a_look_counts_all_and_names_the_largest() -> None:
    look = look_at(OFFICE, HOUSE)
    look.add(
        [
            LogReader(f"client-{number}", None, True, True, 10, number, NOW - 60)
            for number in range(3 * MAX_READERS)
        ]
    )
    assert look.readers == 2 + 3 * MAX_READERS
    assert look.messages == 3_010 + 30 * MAX_READERS
    assert look.bytes == 30 * MIB + 1_000 + sum(range(3 * MAX_READERS))
    assert look.oldest_at == OFFICE.oldest_at
    assert [each.name for each in look.largest[:3]] == [
        "office", "hedgerow-federation-house", f"client-{3 * MAX_READERS - 1}",
    ]  # fmt: skip
    assert len(look.largest) == MAX_READERS


def test_each_reader_has_its_own_time_until_all_is_full() -> None:
    watch = Watch()
    watch.conclude(look_at(OFFICE, HOUSE), Room(30 * MIB, 100 * MIB), NOW)
    grown = office_with(40 * MIB)
    backlogs = watch.conclude(look_at(grown, HOUSE), Room(50 * MIB, 100 * MIB), NOW + 10)
    assert backlogs.full_in_s == 25
    office, house = backlogs.largest
    assert (office.reader, office.share, office.full_in_s) == (grown, 0.4, 50)
    assert house.full_in_s is None


def test_that_the_bound_is_near_is_told_once() -> None:
    watch = Watch()

    def crossed(mib: int, limit: int | None = 100 * MIB) -> bool | None:
        return watch.crossed(watch.conclude(look_at(OFFICE), Room(mib * MIB, limit), NOW))

    told = [crossed(mib) for mib in (50, 79, 80, 95, 101, 75, 69, 75, 50, 85)]
    assert told == [None, None, True, None, None, None, False, None, None, True]
    assert crossed(50, None) is None


def test_what_is_told_to_everybody_names_nobody() -> None:
    backlogs = Watch().conclude(look_at(OFFICE), Room(30 * MIB, 100 * MIB), NOW)
    assert backlogs.summary() == {
        "readers": 1, "messages": 3_000, "bytes": 30 * MIB, "limit": 100 * MIB, "oldest_at": NOW - 7_200,
        "full_in_s": None,
    }  # fmt: skip


def test_a_file_is_read_as_it_was_written() -> None:
    watch = Watch()
    watch.conclude(look_at(OFFICE, HOUSE), Room(20 * MIB, 100 * MIB), NOW)
    held = {"user:ada": 5 * MIB, "user:bea": 25 * MIB}
    backlogs = watch.conclude(look_at(OFFICE, HOUSE), Room(30 * MIB, 100 * MIB), NOW + 5, held)
    assert [owner_in_words(each) for each in backlogs.owners] == [
        "sessions of user:bea: 25 MiB, 25% of the room",
        "sessions of user:ada: 5 MiB, 5% of the room",
    ]
    assert decode(encode(backlogs)) == backlogs
    assert decode(encode(Backlogs(NOW, Room(0, None)))) == Backlogs(NOW, Room(0, None))


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b"\xff", b"{}", b'{"version": 2}', b'{"version": 1, "largest": [{}]}', b"[" * 9_999],
)
def test_another_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(data)


def test_words() -> None:
    assert [size_in_words(size) for size in (9, 1_536, 30 * MIB, 2_500 * MIB)] == [
        "9 B", "1.5 KiB", "30 MiB", "2.44 GiB",
    ]  # fmt: skip
    assert [time_in_words(seconds) for seconds in (1, 59, 90, 7_000, 100_000)] == [
        "1 second", "59 seconds", "2 minutes", "2 hours", "1 day",
    ]  # fmt: skip
    assert room_in_words(Room(30 * MIB, 100 * MIB)) == "30 MiB of 100 MiB (30%)"
    assert room_in_words(Room(30 * MIB, None)) == "30 MiB"
    watch = Watch()
    watch.conclude(look_at(office_with(0)), Room(0, 100 * MIB), NOW - 30)
    (office,) = watch.conclude(look_at(OFFICE), Room(30 * MIB, 100 * MIB), NOW).largest
    assert reader_in_words(office, NOW) == (
        "client office (away): 3,000 messages, 30 MiB, 30% of the room, the oldest for 2 hours, "
        "full in about 1 minute"
    )
