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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from hedgerow.journal import BufferFullError, Writer
from hedgerow.message import Message, MessageId, Properties
from hedgerow_workshop.lab.experiments import Row

JOURNALS = "journals"
"""The directory of an experiment's journals, one a run."""
ROWS = "rows.json"
"""The file beside it with the experiment's own rows."""

OWN_TOPICS = "$lab/"
RUN, DUE, HAPPENED = (f"{OWN_TOPICS}{name}" for name in ("run", "due", "happened"))

# User properties.
ID, DUP, WARM_UP, GROUP = "hedgerow-id", "dup", "warm-up", "group"

MQTT = "mqtt"


class Published(NamedTuple):
    publisher: str
    """With its number, what names the publication in this run."""
    number: int
    topic: str
    at: float
    qos: int = 0
    broker: str = ""
    transport: str = MQTT
    is_warm_up: bool = False


class Delivered(NamedTuple):
    subscriber: str
    publisher: str
    number: int
    topic: str
    at: float
    published_at: float | None
    """None: it is not known."""
    qos: int = 0
    broker: str = ""
    is_repeated: bool = False
    is_warm_up: bool = False


class Due(NamedTuple):
    subscriber: str
    topic: str
    since: float | None = None
    broker: str = ""
    group: str = ""


@dataclass(slots=True)
class RunJournal:
    """What is to be written of one run."""

    experiment: str
    name: str
    """As a file is named."""
    settings: Mapping[str, str] = field(default_factory=dict)
    due: Sequence[Due] = ()
    published: Sequence[Published] = ()
    delivered: Sequence[Delivered] = ()
    happened: Sequence[tuple[float, str]] = ()
    is_monotonic: bool = True
    """Its times are of the machine's monotonic clock; else of the calendar, as the journal's always are."""


def leave(
    directory: Path, experiment: str, runs: Sequence[RunJournal], rows: Sequence[Row], notes: Sequence[str]
) -> None:
    """Journals and rows, in place of those that an earlier experiment left there."""
    for name in _left_before(directory / ROWS):
        shutil.rmtree(directory / JOURNALS / name, ignore_errors=True)
    for run in runs:
        write_journal(run, directory / JOURNALS / run.name)
    document = {
        "experiment": experiment,
        "runs": [run.name for run in runs],
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


def write_journal(run: RunJournal, directory: Path) -> None:
    """It gets its name when it is whole, in place of one that has it."""
    shift_s = time.time() - time.monotonic() if run.is_monotonic else 0.0
    part = directory.with_name(f".{directory.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with Writer(part, "") as writer:
        for broker, transport, client, at, message in _rows(run, shift_s):
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


def _rows(run: RunJournal, shift_s: float) -> Iterator[_Item]:
    """(broker, transport, client, received at, message)."""
    about = {"experiment": run.experiment, "run": run.name, "settings": dict(run.settings)}
    first_at = min((each.at + shift_s for each in run.published), default=_NEVER)
    yield "", "lab", None, first_at, Message(RUN, json.dumps(about, ensure_ascii=False).encode())
    for due in run.due:
        at = _NEVER if due.since is None else due.since + shift_s
        message = Message(DUE, due.topic.encode(), properties=_properties({GROUP: due.group}))
        yield due.broker, "lab", due.subscriber, at, message
    items = [
        *((at + shift_s, Message(HAPPENED, what.encode())) for at, what in run.happened),
        *((each.at + shift_s, each) for each in run.published),
        *((each.at + shift_s, each) for each in run.delivered),
    ]
    items.sort(key=lambda item: item[0])
    for at, item in items:
        match item:
            case Message():
                yield "", "lab", None, at, item
            case Published():
                yield item.broker, item.transport, item.publisher, at, _publication(item, at)
            case Delivered():
                yield item.broker, MQTT, item.subscriber, at, _delivery(item, shift_s)


def _publication(published: Published, at: float) -> Message:
    return Message(
        published.topic,
        b"%d" % published.number,
        published.qos,
        properties=_properties({WARM_UP: "1" if published.is_warm_up else ""}),
        id=MessageId(published.publisher, 0, published.number),
        published_at=at,
    )


def _delivery(delivered: Delivered, shift_s: float) -> Message:
    return Message(
        delivered.topic,
        b"%d" % delivered.number,
        delivered.qos,
        properties=_properties(
            {
                ID: str(MessageId(delivered.publisher, 0, delivered.number)),
                DUP: "1" if delivered.is_repeated else "",
                WARM_UP: "1" if delivered.is_warm_up else "",
            }
        ),
        published_at=None if delivered.published_at is None else delivered.published_at + shift_s,
    )


def _properties(named: Mapping[str, str]) -> Properties:
    pairs = tuple((name, value) for name, value in named.items() if value)
    return {"user_property": pairs} if pairs else {}
