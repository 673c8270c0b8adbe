"""What goes into the store comes out of it after a restart, and nothing else does."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from inspect import getmembers, isdatadescriptor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.broker.changes import Changes, SessionRecord, Snapshot, SubscriptionRecord
from hedgerow.broker.stored import AGAIN_BIT, RETAIN_BIT, Chunk
from hedgerow.message import Message, MessageId, Properties
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Subscription, Will
from hedgerow.node.store import FILE_NAME, Store
from tests.node.logged_messages import messages


def store_changes(directory: Path, *batches: Changes) -> None:
    with closing(Store.open(directory)) as store:
        for changes in batches:
            store.write(changes)
            store.commit()


def load(directory: Path) -> Snapshot:
    with closing(Store.open(directory)) as store:
        return store.load()


def as_state(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot under the keys of `Changes`, for comparison; deliveries and chunks have no equality."""
    return {
        "sessions": {session.key: session for session in snapshot.sessions},
        "subscriptions": {
            (key, record.subscription.topic_filter): record for key, record in snapshot.subscriptions
        },
        "chunks": {(session_key, chunk.number): fields(chunk) for session_key, chunk in snapshot.chunks},
        "deliveries": {
            (session_key, delivery.position): fields(delivery)
            for session_key, delivery in snapshot.deliveries
        },
        "received": dict.fromkeys(snapshot.received, True),
        "retained": {message.topic: message for message in snapshot.retained},
        "kept": snapshot.kept,
    }


def fields(each: Delivery | Chunk) -> dict[str, object]:
    """But for when a delivery was queued, which is when its message was written."""
    attributes = [name for name, kind in getmembers(type(each), isdatadescriptor) if name[0] != "_"]
    return {name: getattr(each, name) for name in attributes if name != "queued_at"}


def rows(directory: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()


def session(key: int = 1, client_id: str = "barn") -> SessionRecord:
    return SessionRecord(key, client_id, None, MQTT_5, 3600.0, None)


def message(key: int) -> Message:
    return Message(f"field/{key}", b"%d" % key, 1, id=MessageId("node", 1, key))


def chunk(*positions: int, number: int = 1, flags: int = 1, identifiers: tuple[int, ...] = ()) -> Chunk:
    made = Chunk(number, positions[0] if positions else 1, flags, identifiers)
    for position in positions:
        made.add(position, 1, 10, float(position))
    return made


def test_everything_comes_back(tmp_path: Path) -> None:
    will = Will("barn/state", b"gone", 2, True, {"will_delay_interval": 30, "content_type": "text/plain"})
    properties: Properties = {
        "payload_format_indicator": 1,
        "message_expiry_interval": 60,
        "content_type": "text/plain",
        "response_topic": "answers/7",
        "correlation_data": b"\0\xff",
        "user_property": (("unit", "°C"), ("unit", "K")),
    }
    rich = Message("field/1", b"\0" * 100, 2, True, properties, MessageId("näher", 7, 2**62), 1.7e9 + 0.25)
    rich.published_at = 1.7e9 + 1e-6
    plain = Message("field/2", b"")
    changes = Changes(
        sessions={
            1: SessionRecord(1, "barn", "anna", MQTT_5, float("inf"), None, will),
            2: SessionRecord(2, "käse", None, MQTT_3_1_1, 0.5, 1.7e9, Will("", b"")),
            3: session(3, ""),
            4: SessionRecord(4, "south.north", None, MQTT_5, 60.0, None, None, "far bridge"),
            5: SessionRecord(5, "north.south", None, MQTT_5, 60.0, None, None, "bridge"),
        },
        subscriptions={
            (1, "$share/g/field/+"): SubscriptionRecord(
                Subscription("$share/g/field/+", 2, False, True, 1), 9
            ),
            (2, "#"): SubscriptionRecord(Subscription("#", 0, True, False, 2)),
        },
        messages=[rich, plain],
        first_position=11,
        at=1.7e9 + 0.5,
        chunks={
            (1, 3): chunk(12, number=3, flags=2 | RETAIN_BIT, identifiers=(9, 268_435_455)),
            (2, 1): chunk(11, 12, flags=2 | AGAIN_BIT),
        },
        deliveries={
            (2, 12): Delivery(plain, 2, False, (), 12),
            (1, 12): Delivery(plain, 2, True, (9, 268_435_455), 12, 65_535, Stage.SENT),
            (2, 11): Delivery(rich, 2, False, (9,), 11, 1, Stage.RELEASED),
        },
        received={(1, 1): True, (2, 65_535): True},
        retained={"field/1": rich, "field/2": plain},
        kept={("bridges", "north"): "connection north\n", ("bridges", "süd"): ""},
    )
    changes.chunks[2, 1].sent = 11
    store_changes(tmp_path, changes)
    snapshot = load(tmp_path)
    assert as_state(snapshot) == {
        "sessions": changes.sessions,
        "subscriptions": changes.subscriptions,
        "chunks": {key: fields(each) for key, each in changes.chunks.items()},
        "deliveries": {key: fields(delivery) for key, delivery in changes.deliveries.items() if delivery},
        "received": changes.received,
        "retained": changes.retained,
        "kept": changes.kept,
    }
    assert [delivery.position for _, delivery in snapshot.deliveries] == [11, 12, 12]
    assert {delivery.queued_at for _, delivery in snapshot.deliveries} == {changes.at}
    assert snapshot.next_position == 13
    assert [first for first, _ in snapshot.segments] == [11]


def test_none_takes_away(tmp_path: Path) -> None:
    record = SubscriptionRecord(Subscription("#"))
    first, second = message(5), message(6)
    store_changes(
        tmp_path,
        Changes(
            sessions={1: session()},
            subscriptions={(1, "a"): SubscriptionRecord(Subscription("a")), (1, "#"): record},
            messages=[first, second],
            first_position=5,
            chunks={(1, 1): chunk(5), (1, 2): chunk(6, number=2)},
            deliveries={(1, each): Delivery(message(each), 2, False, (), each) for each in (5, 6)},
            received={(1, 7): True, (1, 8): True},
            retained={"field/5": first, "field/6": second},
            kept={("p", "north"): "connection north", ("p", "south"): "connection south"},
        ),
        Changes(
            subscriptions={(1, "a"): None},
            chunks={(1, 1): chunk()},
            deliveries={(1, 5): None},
            received={(1, 7): False},
            retained={"field/5": None},
            kept={("p", "north"): None, ("p", "south"): "another text", ("p", "never"): None},
        ),
    )
    state = as_state(load(tmp_path))
    assert state["subscriptions"] == {(1, "#"): record}
    assert list(state["chunks"]) == [(1, 2)]
    assert list(state["deliveries"]) == [(1, 6)]
    assert state["received"] == {(1, 8): True}
    assert state["retained"] == {"field/6": second}
    assert state["kept"] == {("p", "south"): "another text"}


def test_a_session_takes_everything_of_its_own_with_it(tmp_path: Path) -> None:
    def all_of(key: int, *messages: Message) -> Changes:
        return Changes(
            sessions={key: session(key, f"client-{key}")},
            subscriptions={(key, "#"): SubscriptionRecord(Subscription("#"))},
            messages=list(messages),
            first_position=5,
            chunks={(key, 1): chunk(5)},
            deliveries={(key, 5): Delivery(message(5), 2, False, (), 5)},
            received={(key, 1): True},
        )

    # Put and removed in one batch too: the removal wins, as it does last in the broker.
    third = all_of(3)
    third.sessions[3] = None
    store_changes(tmp_path, all_of(1, message(5)), all_of(2), Changes(sessions={1: None}), third)
    for table in "sessions", "subscriptions", "chunks", "deliveries", "received":
        assert [row[0] for row in rows(tmp_path, table)] == [2], table
    assert [delivery.message for _, delivery in load(tmp_path).deliveries] == [message(5)]


def segments(directory: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (directory / "log").iterdir())


def test_segments_that_nobody_needs_are_removed(tmp_path: Path) -> None:
    def batch(first: int, **others: Any) -> Changes:
        return Changes(
            messages=[message(first), message(first + 1)], first_position=first, begins_segment=True, **others
        )

    sessions = {1: session(1), 2: session(2, "shed")}
    with closing(Store.open(tmp_path)) as store:
        for changes in (
            batch(1, sessions=dict(sessions)),
            batch(3, chunks={(1, 1): chunk(1, 2, 4)}),
            batch(5, chunks={(2, 1): chunk(5)}),
            batch(7),
        ):
            store.write(changes)
            store.commit()
        assert segments(tmp_path) == [1, 3, 5, 7]
        store.write(Changes(chunks={(1, 1): chunk(4)}, removed=[(1, 3)]), settles=True)
        assert segments(tmp_path) == [1, 3, 5, 7]
        store.commit()
        assert segments(tmp_path) == [3, 5, 7]
        store.write(Changes(sessions={2: None}))
        store.commit()
    snapshot = load(tmp_path)
    assert segments(tmp_path) == [3]
    assert [first for first, _ in snapshot.segments] == [3]
    assert snapshot.next_position == 9
    with closing(Store.open(tmp_path)) as store:
        store.write(Changes(messages=[message(9)], first_position=9, chunks={(1, 1): chunk(4, 9)}))
        store.commit()
    assert segments(tmp_path) == [3, 9]


def test_positions_are_given_once_even_if_the_log_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_changes(
        tmp_path,
        Changes(
            sessions={1: session()},
            messages=[message(1), message(2)],
            first_position=1,
            chunks={(1, 1): chunk(1, 2)},
            deliveries={(1, 2): Delivery(message(2), 2, False, (), 2)},
        ),
        Changes(
            messages=[message(3), message(4)],
            first_position=3,
            begins_segment=True,
            chunks={(1, 2): chunk(3, 4, number=2)},
        ),
    )
    for path in sorted((tmp_path / "log").iterdir())[1:]:
        path.unlink()
    for _ in range(2):
        snapshot = load(tmp_path)
        assert snapshot.next_position == 5
        assert [chunk.number for _, chunk in snapshot.chunks] == [1]
        assert [delivery.position for _, delivery in snapshot.deliveries] == [2]
    assert caplog.text.count("2 waiting messages are missing") == 1
    caplog.clear()
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    snapshot = load(tmp_path)
    assert snapshot == Snapshot(sessions=[session()], next_position=5)
    assert "2 waiting messages are missing" in caplog.text
    assert not rows(tmp_path, "chunks")
    assert not rows(tmp_path, "deliveries")


def test_what_belongs_to_no_session_is_removed_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_changes(
        tmp_path,
        Changes(
            sessions={1: session()},
            subscriptions={(9, "#"): SubscriptionRecord(Subscription("#"))},
            messages=[message(1)],
            first_position=1,
            chunks={(9, 1): chunk(1)},
            deliveries={(9, 1): Delivery(message(1), 2, False, (), 1)},
            received={(9, 1): True},
        ),
    )
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path) == Snapshot(sessions=[session()], next_position=2)
    assert "1 subscriptions, 1 received identifiers, 1 chunks, 1 deliveries" in caplog.text
    assert not any(rows(tmp_path, table) for table in ("subscriptions", "chunks", "deliveries", "received"))
    assert not segments(tmp_path)
    caplog.clear()
    load(tmp_path)
    assert not caplog.records


@settings(max_examples=30)
@given(st.lists(messages, max_size=20))
def test_messages_come_back_as_they_were(stored: list[Message]) -> None:
    changes = Changes(sessions={1: session()}, messages=stored, first_position=1)
    for position, each in enumerate(stored, 1):
        changes.deliveries[1, position] = Delivery(each, 2, False, (), position)
        changes.retained[each.topic] = each
    changes.chunks[1, 1] = chunk(*range(1, len(stored) + 1))
    with tempfile.TemporaryDirectory() as directory:
        store_changes(Path(directory), changes)
        snapshot = load(Path(directory))
    assert [delivery.message for _, delivery in snapshot.deliveries] == stored
    assert as_state(snapshot)["retained"] == changes.retained


small = st.integers(1, 4)
batches = st.builds(
    Changes,
    sessions=st.dictionaries(small, st.booleans()),
    subscriptions=st.dictionaries(st.tuples(small, st.sampled_from(["a", "b/#"])), st.booleans()),
    chunks=st.dictionaries(st.tuples(small, small), st.booleans()),
    deliveries=st.dictionaries(st.tuples(small, st.integers(1, 9)), st.booleans()),
    received=st.dictionaries(st.tuples(small, st.integers(1, 3)), st.booleans()),
    retained=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.booleans()),
    kept=st.dictionaries(st.sampled_from([("p", "north"), ("q", "south")]), st.booleans()),
)
MAKE: dict[str, Callable[[Any], Any]] = {
    "sessions": session,
    "subscriptions": lambda key: SubscriptionRecord(Subscription(key[1])),
    "chunks": lambda key: chunk(*range(1, 10), number=key[1]),
    "deliveries": lambda key: Delivery(message(key[1]), 2, False, (), key[1]),
    "received": lambda key: True,
    "retained": lambda topic: Message(topic, b"kept"),
    "kept": lambda key: f"connection {key[1]}\n",
}


def nothing(key: Any) -> None:
    """What takes away, but where it is something else."""


REMOVED: dict[str, Callable[[Any], Any]] = {
    "received": lambda key: False,
    "chunks": lambda key: chunk(number=key[1]),
}


@settings(max_examples=60)
@given(st.lists(batches, max_size=6))
def test_the_store_agrees_with_a_dictionary(wanted: list[Changes]) -> None:
    """Any batches of puts and removals leave what a few dictionaries would hold after them.

    Keys come back here after their removal, which is more than the broker asks, but never within
    the batch that removes their session.
    """
    model: dict[str, dict[Any, Any]] = {name: {} for name in MAKE}
    # The log as it is, which a chunk of the session 9 keeps there.
    done = [
        Changes(
            sessions={9: session(9)},
            messages=[message(position) for position in range(1, 10)],
            first_position=1,
            chunks={(9, 1): chunk(*range(1, 10))},
        )
    ]
    model["sessions"][9] = session(9)
    model["chunks"][9, 1] = chunk(*range(1, 10))
    for batch in wanted:
        changes = Changes()
        for name, make in MAKE.items():
            for key, present in getattr(batch, name).items():
                change: Callable[[Any], Any] = make if present else REMOVED.get(name, nothing)
                value = change(key)
                getattr(changes, name)[key] = value
                model[name][key] = value
        removed = {key for key, record in changes.sessions.items() if record is None}
        for name in "subscriptions", "chunks", "deliveries", "received":
            model[name] = {key: value for key, value in model[name].items() if key[0] not in removed}
        done.append(changes)
    there = {
        name: {key: value for key, value in model[name].items() if value and getattr(value, "count", 1)}
        for name in MAKE
    }
    for name in "subscriptions", "chunks", "deliveries", "received":
        there[name] = {key: value for key, value in there[name].items() if key[0] in there["sessions"]}
    for name in "chunks", "deliveries":
        there[name] = {key: fields(value) for key, value in there[name].items()}
    with tempfile.TemporaryDirectory() as directory:
        store_changes(Path(directory), *done)
        assert as_state(load(Path(directory))) == there
