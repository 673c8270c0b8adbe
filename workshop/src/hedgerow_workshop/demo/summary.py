"""The last lines of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hedgerow.errors import counted

if TYPE_CHECKING:
    from hedgerow_workshop.demo.story import InSpark, Story


def summary_lines(story: Story, is_whole: bool) -> Iterator[str]:
    """`is_whole`: nobody ended the story before its end."""
    ledger = story.ledger
    if not is_whole:
        yield "ended before the story was; so far:"
    yield (
        f"{ledger.published:,} messages published, {ledger.delivered:,} deliveries made, "
        f"{ledger.lost} lost, {ledger.doubled} doubled"
    )
    if explanation := ledger.explain():
        yield explanation
    if story.in_spark is not None:
        yield from _in_spark(story.in_spark)
    if story.measured:
        yield "times: " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in story.measured.items())
    if story.took:
        total = sum(story.took.values())
        parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in story.took.items())
        yield f"it took {total:.1f} s: {parts}"
    people = story.people
    yield (
        f"beside them, sensors sent {people.readings_sent:,} UDP datagrams, of which the farmer heard "
        f"{people.readings_heard:,}: nobody keeps those that come while a link is gone"
    )


def _in_spark(found: InSpark) -> Iterator[str]:
    reckoning = found.reckoning
    if found.failures:
        yield f"Spark failed and was started again: {counted(found.failures, 'time')}"
    if found.gave_up:
        yield f"Spark failed for good: {found.gave_up}"
    if reckoning is None and found.gave_up:
        yield "in Spark: nothing to compare"
        return
    if reckoning is None:
        yield "in Spark: not compared, since it was ended before"
        return
    if found.unread:
        there = reckoning.published - reckoning.lost
        yield (
            f"in Spark: {there:,} of {reckoning.published:,} messages so far, {reckoning.doubled:,} doubled; "
            f"it has not read the last {found.unread:,} rows of the journals in time: none is called lost"
        )
    else:
        yield f"in Spark: {reckoning}"
    if found.learned is None:
        yield "its jobs were not done with them in time"
    else:
        yield f"its jobs made of them {found.learned}"
