"""The journals that experiments leave: of each run, what was published and what arrived where.

`leave` writes one journal a run, `DIR/journals/RUN`, in the order of time, and the experiment's rows beside
them (`DIR/rows.json`). What a row of a journal is, its topic says:

    $lab/run        the first row: the experiment, the name of the run and its settings, as JSON
    $lab/due        client is a subscriber, the payload a topic; the subscriber is to get all that is
                    published there from received_at on, or where that is null, from the beginning
    $lab/happened   the payload is what happened at received_at, such as a broker that was killed
    any other       with an id, a publication: client is its publisher, the id (publisher, 0, number), the
                    payload its number; without, a delivery: client is its subscriber

A journal holds one row for an id, and a publication arrives at many subscribers, or twice at one: deliveries
have the id as the user property `hedgerow-id`, as messages between brokers have it. Further user properties:
`dup` where MQTT's DUP was set, `warm-up` where a publication counts for no delay, `group` of a subscriber.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hedgerow.journal import BufferFullError, Writer
from hedgerow.message import Message, MessageId, Properties
from hedgerow_workshop.lab.harness.record import MQTT, Arrival, Hearing, RunRecord, Stream
from hedgerow_workshop.lab.harness.rows import Row

JOURNALS = "journals"
"""The directory of an experiment's journals, one a run."""
ROWS = "rows.json"
"""The file beside it with the experiment's own rows."""

OWN_TOPICS = "$lab/"
RUN, DUE, HAPPENED = (f"{OWN_TOPICS}{name}" for name in ("run", "due", "happened"))

# User properties.
ID, DUP, WARM_UP, GROUP = "hedgerow-id", "dup", "warm-up", "group"

LAB = "lab"
"""The transport of rows that are no messages."""


def leave(
    directory: Path, experiment: str, runs: Sequence[RunRecord], rows: Sequence[Row], notes: Sequence[str]
) -> None:
    """Journals and rows, in place of those that an earlier experiment left there."""
    for name in _left_before(directory / ROWS):
        shutil.rmtree(directory / JOURNALS / name, ignore_errors=True)
    for run in runs:
        write_journal(run, experiment, directory / JOURNALS / run.file_name)
    document = {
        "experiment": experiment,
        "runs": [run.file_name for run in runs],
        "rows": [asdict(row) for row in rows],
        "notes": list(notes),
    }
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    (directory / ROWS).write_text(text, encoding="utf-8")


def _left_before(rows: Path) -> list[str]:
    """The directory is the user's, and may hold journals of others: only what is named here is ours. A name
    that leads elsewhere is none."""
    try:
        names = json.loads(rows.read_text(encoding="utf-8"))["runs"]
        return [name for name in names if name not in ("", "..") and name == Path(name).name]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write_journal(run: RunRecord, experiment: str, directory: Path) -> None:
    """It gets its name when it is whole, in place of one that has it."""
    shift_s = time.time() - time.monotonic() if run.is_monotonic else 0.0
    part = directory.with_name(f".{directory.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with Writer(part, "") as writer:
        for broker, transport, client, at, message in _rows(run, experiment, shift_s):
            # A lab's journal is of many brokers, each row of one.
            writer.broker = broker
            try:
                writer.append(message, transport=transport, received_at=at, client=client)
            except BufferFullError:
                writer.flush()
                writer.append(message, transport=transport, received_at=at, client=client)
    shutil.rmtree(directory, ignore_errors=True)
    part.rename(directory)


_Item = tuple[str, str, str | None, float, Message]
_NEVER = float("inf")  # A time that no calendar has: the journal's column is null.


def _rows(run: RunRecord, experiment: str, shift_s: float) -> Iterator[_Item]:
    """(broker, transport, client, received at, message)."""
    streams, hearings = run.streams(), list(run.hearings())
    about = {"experiment": experiment, "run": run.file_name, "settings": run.settings()}
    first_at = min((at for stream in streams for at in stream.sent.values()), default=_NEVER)
    yield "", LAB, None, first_at + shift_s, Message(RUN, json.dumps(about, ensure_ascii=False).encode())
    # Of several publishers on one topic, once.
    due = {(hearing.subscriber, hearing.stream.topic): hearing for hearing in hearings if hearing.is_due}
    for hearing in due.values():
        at = _NEVER if hearing.since is None else hearing.since + shift_s
        yield hearing.broker, LAB, hearing.subscriber, at, _due(hearing)
    items: list[tuple[float, str | tuple[Stream, int] | tuple[Hearing, Arrival]]] = [*run.moments()]
    items += [(at, (stream, number)) for stream in streams for number, at in stream.sent.items()]
    items += [(each.at, (hearing, each)) for hearing in hearings for each in hearing.arrivals]
    items.sort(key=lambda item: item[0])
    for at, item in items:
        match item:
            case str(what):
                yield "", LAB, None, at + shift_s, Message(HAPPENED, what.encode())
            case (Stream() as stream, int(number)):
                message = _publication(stream, number, shift_s)
                yield stream.broker, stream.transport, stream.publisher, at + shift_s, message
            case (Hearing() as hearing, Arrival() as arrival):
                message = _delivery(hearing, arrival, shift_s)
                yield hearing.broker, MQTT, hearing.subscriber, at + shift_s, message


def _due(hearing: Hearing) -> Message:
    return Message(DUE, hearing.stream.topic.encode(), properties=_properties({GROUP: hearing.group}))


def _publication(stream: Stream, number: int, shift_s: float) -> Message:
    return Message(
        stream.topic,
        b"%d" % number,
        stream.qos,
        properties=_properties({WARM_UP: "1" if number < stream.warm_up else ""}),
        id=MessageId(stream.publisher, 0, number),
        published_at=stream.sent[number] + shift_s,
    )


def _delivery(hearing: Hearing, arrival: Arrival, shift_s: float) -> Message:
    stream = hearing.stream
    published_at = stream.sent.get(arrival.number)
    return Message(
        stream.topic,
        b"%d" % arrival.number,
        hearing.qos,
        properties=_properties(
            {
                ID: str(MessageId(stream.publisher, 0, arrival.number)),
                DUP: "1" if arrival.is_repeated else "",
                WARM_UP: "1" if arrival.number < stream.warm_up else "",
            }
        ),
        published_at=None if published_at is None else published_at + shift_s,
    )


def _properties(named: Mapping[str, str]) -> Properties:
    pairs = tuple((name, value) for name, value in named.items() if value)
    return {"user_property": pairs} if pairs else {}
