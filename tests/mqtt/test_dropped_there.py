"""How many messages a broker says that it dropped, since it was first asked."""

from __future__ import annotations

import pytest

from hedgerow.mqtt.dropped_there import DroppedThere


def test_only_what_is_more_than_the_last_time_is_news() -> None:
    dropped = DroppedThere()
    assert [dropped.hear(b"%d" % count) for count in (7, 7, 10, 10, 12)] == [0, 0, 3, 0, 2]
    assert dropped.total == 5


def test_a_broker_that_was_started_again_counts_from_0() -> None:
    dropped = DroppedThere()
    assert [dropped.hear(payload) for payload in (b"100", b"0", b"4", b"1")] == [0, 0, 4, 1]


@pytest.mark.parametrize("payload", [b"", b"-1", b"1.5", b"many", b"\xd9\xa3", b"9" * 21])
def test_what_is_no_count_is_passed_over(payload: bytes) -> None:
    dropped = DroppedThere()
    dropped.hear(b"1")
    assert dropped.hear(payload) == 0
    assert dropped.hear(b"2") == 1
