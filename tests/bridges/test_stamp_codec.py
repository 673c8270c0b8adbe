"""What carriers write to each other: read as it was written, and nothing else is."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.bridges.stamp_codec import (
    MAX_STAMPS,
    Presence,
    decode_ids,
    decode_presence,
    decode_question,
    decode_stamps,
    encode_ids,
    encode_presence,
    encode_question,
    encode_stamps,
)
from hedgerow.message import MessageId

IDS = st.builds(
    MessageId,
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 2),
)


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.tuples(IDS, st.binary(min_size=8, max_size=8)), max_size=20),
    st.booleans(),
)
def test_stamps_read_as_they_were_written(
    life: int, written: list[tuple[MessageId, bytes]], goes_before: bool
) -> None:
    payloads = encode_stamps(life, written, goes_before)
    assert [decode_stamps(each) for each in payloads] == ([(life, written, goes_before)] if written else [])


def test_many_stamps_take_several_publications() -> None:
    written = [(MessageId("o" * 255, 1, 2 * number), b"12345678") for number in range(2 * MAX_STAMPS + 1)]
    payloads = encode_stamps(1, written)
    assert len(payloads) == 3
    assert [stamp for each in payloads for stamp in decode_stamps(each)[1]] == written


@given(st.lists(IDS, max_size=20), st.integers(0, 100))
def test_ids_read_as_they_were_written(some: list[MessageId], row: int) -> None:
    written = some + [MessageId("o", 7, number) for number in range(row)]
    assert [each for payload in encode_ids(written) for each in decode_ids(payload)] == written


def test_ids_in_a_row_share_a_group() -> None:
    [one] = encode_ids([MessageId("o", 1, 1)])
    [many] = encode_ids([MessageId("o", 1, number) for number in range(1, MAX_STAMPS + 1)])
    assert len(many) == len(one)


def test_an_id_that_cannot_be_written_is_left_out() -> None:
    strange = [MessageId("o" * 256, 1, 1), MessageId("o", 2**64, 1), MessageId("o", 1, 2**64)]
    assert encode_stamps(1, [(each, b"12345678") for each in strange]) == []
    assert encode_ids(strange) == []


def test_no_reader_takes_a_long_origin_or_too_many_ids() -> None:
    """Ten thousand ids are remembered: with origins of 64 KiB they would take all memory."""
    for origin, count in (("o" * 256, 1), ("o", MAX_STAMPS + 1), ("", 1), ("o", 0)):
        name = origin.encode()
        with pytest.raises(ValueError, match="does not fit"):
            decode_ids(b"\x01" + pack("!H", len(name)) + name + pack("!QQH", 1, 1, count))


def test_a_presence_reads_as_it_was_written() -> None:
    presence = Presence(2**48 - 1, 7, False, ("a/#", "b/+/c"))
    assert decode_presence(encode_presence(presence)) == presence
    many = Presence(2**48 - 1, 7, False, tuple(f"a/{number}" for number in range(65)))
    assert decode_presence(encode_presence(many)).filters == ("#",)


@pytest.mark.parametrize("read", [decode_presence, decode_stamps, decode_question, decode_ids])
def test_no_reader_takes_a_part_or_raises_anything_else(read: object) -> None:
    assert callable(read)
    whole = {
        decode_presence: encode_presence(Presence(1, 1, True, ("a", "b"))),
        decode_stamps: encode_stamps(1, [(MessageId("o", 1, n), b"12345678") for n in (1, 2, 5)])[0],
        decode_question: encode_question(1, [(b"12345678", b"87654321")] * 2),
        decode_ids: encode_ids([MessageId("o", 1, n) for n in (1, 2, 5)])[0],
    }[read]
    read(whole)
    for length in range(len(whole)):
        try:
            parts = read(whole[:length])
        except ValueError:
            continue
        assert parts != read(whole)  # fewer groups or questions, each of them whole
    with pytest.raises(ValueError, match="does not fit"):
        read(b"\x02" + whole[1:])


@pytest.mark.parametrize("message_id", [MessageId("x", 1, 2**63), MessageId("x", 2**63, 1)])
def test_no_stamp_gives_an_id_that_the_store_could_not_write(message_id: MessageId) -> None:
    origin, epoch, sequence = message_id
    usable = encode_stamps(5, [(MessageId(origin, 7, 9), b"f" * 8)])[0]
    payload = usable.replace(pack("!QQ", 7, 9), pack("!QQ", epoch, sequence))
    assert payload != usable
    assert len(decode_stamps(usable)[1]) == 1
    with pytest.raises(ValueError, match="does not fit"):
        decode_stamps(payload)
