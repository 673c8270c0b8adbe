"""Pages hold what the journal has, from any position; beginnings are found by time and by number."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from hedgerow.journal import Writer
from hedgerow.journal.io.pages import find_position, read_page
from hedgerow.journal.replay.names import LAST, POSITION, TIME, Start
from hedgerow.journal.replay.pages import Place
from hedgerow.log.files import segments
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Publish
from tests.journal.plain import Row, read_plain

FRAMES = 12
SEGMENT_BYTES = 800


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames of all kinds in several segments; message number n was received at 100 + n."""
    directory = tmp_path_factory.mktemp("journal")
    with Writer(directory, "node", segment_bytes=SEGMENT_BYTES, gather_s=0) as writer:
        for number in range(FRAMES):
            at = 100.0 + writer.next_position
            first = MessageId("node", 1, writer.next_position)
            message = Message("single", b"alone", 1, properties={"correlation_data": b"\xff"}, id=first)
            writer.append(message, transport="mqtt", received_at=at)
            payloads = [b"%d" % each for each in range(number % 4 + 1)]
            first = MessageId("node", 1, writer.next_position)
            writer.append_run(f"run/{number % 3}", payloads, transport="mqtt", received_at=at, first_id=first)
            packets = b"".join(encode(Publish("p", b"%03d" % each), MQTT_3_1_1) for each in range(10))
            writer.append_packets(
                "p", packets, 8, 5, transport="mqtt", received_at=at,
                first_id=MessageId("node", 1, writer.next_position),
            )  # fmt: skip
            writer.flush()
    assert len(segments(directory)) > 2
    return directory


def messages_from(directory: Path, position: int, end: int) -> list[tuple[int, Message]]:
    found: list[tuple[int, Message]] = []
    while position < end:
        page = read_page(directory, position, end)
        assert page.start == position
        assert not page.lost
        place = Place(page, position)
        while (runs := place.runs) is not None:
            run, head = place.run, runs.column("head")[place.run]
            size = runs.size(run, place.row, 1)
            (payload,) = runs.cut(place.offset, head, place.row, 1)
            found.append((place.position, runs.message(run, place.shift, payload)))
            place.advance(1, size)
        position = place.position
    return found


def test_a_page_is_read_from_any_position(journal: Path) -> None:
    rows = read_plain(journal)
    for start in chain(range(0, len(rows), 5), (len(rows) - 1,)):
        found = messages_from(journal, start, len(rows))
        assert [_as_row(position, message) for position, message in found] == [
            (row.position, row.id, row.topic, row.payload, row.flags) for row in rows[start:]
        ]


def test_properties_come_back(journal: Path) -> None:
    _, first = messages_from(journal, 0, 1)[0]
    assert first.properties == {"correlation_data": b"\xff"}


@pytest.mark.parametrize("at", [0.0, 100.0, 100.5, 133.0, 180.0, 220.0, 1e6])
def test_a_beginning_is_found_by_time(journal: Path, at: float) -> None:
    rows = read_plain(journal)
    expected = next((row.position for row in rows if row.received_at >= at * 1e6), len(rows))
    assert find_position(journal, Start(TIME, at), ("#",), len(rows)) == expected


@pytest.mark.parametrize("topic_filter", ["#", "p", "run/+", "single", "none"])
@pytest.mark.parametrize("count", [0, 1, 3, 7, 25, 10_000])
def test_the_last_ones_are_found(journal: Path, topic_filter: str, count: int) -> None:
    rows = read_plain(journal)
    matching = [row for row in rows if _matches(row, topic_filter)]
    begin = find_position(journal, Start(LAST, count), (topic_filter,), len(rows))
    assert [row for row in matching if row.position >= begin] == (matching[-count:] if count else [])


def test_a_position_is_within_the_journal(journal: Path) -> None:
    end = len(read_plain(journal))
    for wanted, expected in ((0, 0), (7, 7), (end + 5, end)):
        assert find_position(journal, Start(POSITION, wanted), ("#",), end) == expected
    first, second = segments(journal)[0].path, segments(journal)[1].first_position
    first.rename(journal / "away")
    try:
        assert find_position(journal, Start(POSITION, 0), ("#",), end) == second
        page = read_page(journal, 0, end)
        assert (page.lost, page.frames[0].frame.first_position) == (second, second)
    finally:
        (journal / "away").rename(first)


def _as_row(position: int, message: Message) -> tuple[object, ...]:
    return position, message.id, message.topic, message.payload, message.qos | message.retain << 2


def _matches(row: Row, topic_filter: str) -> bool:
    return (
        topic_filter == "#"
        or row.topic == topic_filter
        or (topic_filter == "run/+" and str(row.topic).startswith("run/"))
    )
