"""Ids of ours as numbers of the document's wire, and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.broker.broker import Broker
from hedgerow.broker.ids import is_own_origin
from hedgerow.duplicates import giver_of
from hedgerow.federation.document.numbers import (
    OF_OURS,
    PublicationId,
    fabric_id,
    number_of,
    publication_id,
)
from hedgerow.message import MAX_NUMBER, MessageId
from hedgerow.mqtt.ids import parse_id

numbers = st.integers(0, 2**32 - 1)


def test_a_decimal_name_is_its_number() -> None:
    assert number_of("0") == 0
    assert number_of("4294967295") == 2**32 - 1
    assert number_of("4294967296") >= OF_OURS
    assert number_of("barn") >= OF_OURS
    assert number_of("barn") != number_of("house")
    assert number_of("barn") < 2**32


@given(numbers, numbers, st.text(min_size=1), st.binary())
def test_what_came_from_others_leaves_with_its_own_numbers(
    origin: int, sequence: int, topic: str, payload: bytes
) -> None:
    topic = topic.encode(errors="replace").decode()
    found = fabric_id(topic, PublicationId(origin, sequence), payload)
    assert found.sequence <= MAX_NUMBER
    assert parse_id(str(found)) == found
    assert publication_id(found) == (origin, sequence)


@given(st.text("abc~#!", min_size=1, max_size=20), st.integers(0, 2**40), st.integers(0, MAX_NUMBER))
def test_each_id_of_ours_has_numbers_that_say_so(origin: str, epoch: int, sequence: int) -> None:
    message_id = MessageId(origin, epoch, sequence)
    found = publication_id(message_id)
    assert found == publication_id(message_id)
    assert found.is_of_ours or origin.startswith("!document:gateway~#")
    assert found.sequence < 2**32


def test_the_same_numbers_with_another_payload_or_topic_are_another_message() -> None:
    """Sequences begin anew with each restart and each topic."""
    number = PublicationId(4, 0)
    found = {fabric_id("t", number, b"a"), fabric_id("t", number, b"b"), fabric_id("u", number, b"a")}
    assert len(found) == 3


def test_ids_whose_short_digests_are_the_same_are_others() -> None:
    """Whoever may speak here finds two payloads with the same 31 bits in a second or two."""
    numbers = PublicationId(7, 1)
    found: dict[int, MessageId] = {}
    for number in range(300_000):
        each = fabric_id("t", numbers, b"%d" % number)
        same = found.setdefault(each.sequence, each)
        if same != each:
            break
    else:
        raise AssertionError("no two with the same sequence: it has a digest of 31 bits")
    assert same.epoch != each.epoch
    assert publication_id(same) == publication_id(each) == numbers


def test_lives_that_have_the_same_origin_there_count_from_different_numbers() -> None:
    """Both count from 1 here: otherwise each publication of one would be taken for one of the other."""
    found: dict[int, int] = {}
    for epoch in range(300_000):
        origin, sequence = publication_id(MessageId("barn", epoch, 1))
        other = found.setdefault(origin, sequence)
        if other != sequence:
            break
    else:
        raise AssertionError("no two with the same origin: it has 31 bits")
    assert abs(other - sequence) % 2**32 > 1_000_000


def test_no_two_publications_of_a_life_have_the_same_numbers() -> None:
    ids = {publication_id(MessageId("barn", 1, sequence)) for sequence in range(2**32 - 500, 2**32 + 500)}
    assert len(ids) == 1_000
    assert len({each.origin for each in ids}) == 1


def test_no_node_is_taken_for_the_origin() -> None:
    """Or a message would pass for one that began here."""
    origin = fabric_id("t", PublicationId(7, 1), b"").origin
    for name in ("7", "00000007", "document"):
        assert not is_own_origin(Broker(name, 1, 0.0), origin)
    assert giver_of(origin) == "!document:gateway"
