"""What is missing in bronze, and what is there again."""

from __future__ import annotations

import pytest

from hedgerow_workshop.tables import Reckoning, reckon


@pytest.mark.parametrize(
    ("rows", "reckoning"),
    [
        ([("north", 1), ("house", 1), ("north", 2)], Reckoning(2, 0, 0)),
        ([("north", 1), ("house", 1)], Reckoning(2, 1, 0)),
        ([("north", 1), ("north", 1), ("north", 1), ("house", 2)], Reckoning(2, 0, 2)),
        ([("north", 3), ("north", 3)], Reckoning(2, 2, 0)),
    ],
    ids=["in several journals", "in none", "in one again", "not published here"],
)
def test_each_message_is_to_be_there_and_once_in_each_journal(
    rows: list[tuple[str, int]], reckoning: Reckoning
) -> None:
    assert reckon({1, 2}, rows) == reckoning
    assert reckoning.is_even is (reckoning == (2, 0, 0))


def test_it_is_said_with_the_number_of_those_found() -> None:
    assert str(Reckoning(3_067, 1, 2)) == "3,066 of 3,067 messages, 1 lost, 2 doubled"
