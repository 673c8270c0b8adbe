"""`MessageId` as text, and what two messages do not share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.message import Message, MessageId

counters = st.integers(0, 2**63)


@given(st.text(min_size=1), counters, counters)
def test_message_id_is_read_back_from_its_text(origin: str, epoch: int, sequence: int) -> None:
    message_id = MessageId(origin, epoch, sequence)
    assert MessageId.parse(str(message_id)) == message_id


@given(st.text() | st.from_regex(r"[a/]*/[-+_ 0-9٠-٩]*/[-+_ 0-9٠-٩]*", fullmatch=True))
def test_text_is_the_id_that_writes_it_or_a_value_error(text: str) -> None:
    try:
        message_id = MessageId.parse(text)
    except ValueError:
        return
    assert str(message_id) == text
    assert message_id.origin
    assert message_id.epoch >= 0
    assert message_id.sequence >= 0


@pytest.mark.parametrize(
    "text",
    ["", "a", "a/1", "/1/2", "a/b/2", "a/1/", "a/-1/2", "a/1/-2", "a/01/2", "a/1/ 2", "a/1_0/2", "a/٣/1"],
)
def test_text_that_is_no_message_id(text: str) -> None:
    with pytest.raises(ValueError):
        MessageId.parse(text)


def test_message_ids_of_one_node_are_in_the_order_of_acceptance() -> None:
    ids = [MessageId("n", 2, 1), MessageId("n", 1, 9), MessageId("n", 1, 10)]
    assert sorted(ids) == [MessageId("n", 1, 9), MessageId("n", 1, 10), MessageId("n", 2, 1)]


def test_messages_do_not_share_their_properties() -> None:
    first, second = Message("a", b""), Message("a", b"")
    first.properties["content_type"] = "x"
    assert second.properties == {}
