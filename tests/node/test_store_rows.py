"""What goes into the store comes out of it after a restart, and nothing else does."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.broker.changes import Changes, SessionRecord, Snapshot, SubscriptionRecord
from hedgerow.message import Message, MessageId, Properties
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Subscription, Will
from hedgerow.node.store import FILE_NAME, Store


def store_changes(directory: Path, *batches: Changes) -> None:
    with closing(Store.open(directory)) as store:
        for changes in batches:
            store.write(changes)
            store.commit()


def load(directory: Path) -> Snapshot:
    with closing(Store.open(directory)) as store:
        return store.load()


def as_state(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot under the keys of `Changes`, for comparison; a Delivery has no equality of its own."""
    return {
        "sessions": {session.key: session for session in snapshot.sessions},
        "subscriptions": {
            (key, record.subscription.topic_filter): record for key, record in snapshot.subscriptions
        },
        "messages": snapshot.messages,
        "deliveries": {
            (session_key, delivery.key): fields(delivery) for session_key, delivery in snapshot.deliveries
        },
        "received": dict.fromkeys(snapshot.received, True),
        "retained": {message.topic: message for message in snapshot.retained},
        "kept": snapshot.kept,
    }


def fields(delivery: Delivery) -> tuple[object, ...]:
    return tuple(getattr(delivery, name) for name in Delivery.__slots__)


def rows(directory: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()


def session(key: int = 1, client_id: str = "barn") -> SessionRecord:
    return SessionRecord(key, client_id, None, MQTT_5, 3600.0, None)


def message(key: int) -> Message:
    return Message(f"field/{key}", b"%d" % key, 1, id=MessageId("node", 1, key))


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
        messages={11: rich, 12: plain},
        deliveries={
            (2, 12): Delivery(plain, 1, False, (), 12),
            (1, 12): Delivery(plain, 1, True, (9, 268_435_455), 12, 65_535, Stage.SENT),
            (2, 11): Delivery(rich, 2, False, (9,), 11, 1, Stage.RELEASED),
        },
        received={(1, 1): True, (2, 65_535): True},
        retained={"field/1": rich, "field/2": plain},
        kept={("bridges", "north"): "connection north\n", ("bridges", "süd"): ""},
    )
    store_changes(tmp_path, changes)
    snapshot = load(tmp_path)
    assert as_state(snapshot) == {
        "sessions": changes.sessions,
        "subscriptions": changes.subscriptions,
        "messages": changes.messages,
        "deliveries": {key: fields(delivery) for key, delivery in changes.deliveries.items() if delivery},
        "received": changes.received,
        "retained": changes.retained,
        "kept": changes.kept,
    }
    assert [delivery.key for _, delivery in snapshot.deliveries] == [11, 12, 12]
    assert all(delivery.message is snapshot.messages[delivery.key] for _, delivery in snapshot.deliveries)
    assert isinstance(snapshot.messages[11].payload, bytes)
    assert snapshot.messages[11].retain is True


def test_none_takes_away(tmp_path: Path) -> None:
    record = SubscriptionRecord(Subscription("#"))
    first, second = message(5), message(6)
    store_changes(
        tmp_path,
        Changes(
            sessions={1: session()},
            subscriptions={(1, "a"): SubscriptionRecord(Subscription("a")), (1, "#"): record},
            messages={5: first, 6: second},
            deliveries={(1, 5): Delivery(first, 1, key=5), (1, 6): Delivery(second, 1, key=6)},
            received={(1, 7): True, (1, 8): True},
            retained={"field/5": first, "field/6": second},
            kept={("p", "north"): "connection north", ("p", "south"): "connection south"},
        ),
        Changes(
            subscriptions={(1, "a"): None},
            messages={5: None},
            deliveries={(1, 5): None},
            received={(1, 7): False},
            retained={"field/5": None},
            kept={("p", "north"): None, ("p", "south"): "another text", ("p", "never"): None},
        ),
    )
    state = as_state(load(tmp_path))
    assert state["subscriptions"] == {(1, "#"): record}
    assert state["messages"] == {6: second}
    assert list(state["deliveries"]) == [(1, 6)]
    assert state["received"] == {(1, 8): True}
    assert state["retained"] == {"field/6": second}
    assert state["kept"] == {("p", "south"): "another text"}


def test_a_session_takes_everything_of_its_own_with_it(tmp_path: Path) -> None:
    shared = message(5)

    def all_of(key: int) -> Changes:
        return Changes(
            sessions={key: session(key, f"client-{key}")},
            subscriptions={(key, "#"): SubscriptionRecord(Subscription("#"))},
            messages={5: shared},
            deliveries={(key, 5): Delivery(shared, 1, key=5)},
            received={(key, 1): True},
        )

    # Put and removed in one batch too: the removal wins, as it does last in the broker.
    third = all_of(3)
    third.sessions[3] = None
    store_changes(tmp_path, all_of(1), all_of(2), Changes(sessions={1: None}), third)
    for table in "sessions", "subscriptions", "deliveries", "received":
        assert [row[0] for row in rows(tmp_path, table)] == [2], table
    assert load(tmp_path).messages == {5: shared}


def test_messages_without_a_delivery_are_removed(tmp_path: Path) -> None:
    kept, orphan = message(5), message(6)
    store_changes(
        tmp_path,
        Changes(
            sessions={1: session(1), 2: session(2, "shed")},
            messages={5: kept, 6: orphan},
            deliveries={(1, 5): Delivery(kept, 1, key=5), (2, 6): Delivery(orphan, 1, key=6)},
        ),
        Changes(sessions={2: None}),
    )
    assert [row[0] for row in rows(tmp_path, "messages")] == [5, 6]
    assert load(tmp_path).messages == {5: kept}
    assert [row[0] for row in rows(tmp_path, "messages")] == [5]


def test_what_belongs_to_no_session_is_removed_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_changes(
        tmp_path,
        Changes(
            sessions={1: session()},
            subscriptions={(9, "#"): SubscriptionRecord(Subscription("#"))},
            messages={5: message(5)},
            deliveries={(9, 5): Delivery(message(5), 1, key=5), (1, 6): Delivery(message(6), 1, key=6)},
            received={(9, 1): True},
        ),
    )
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path) == Snapshot(sessions=[session()])
    assert "1 subscriptions, 1 received identifiers, 2 deliveries" in caplog.text
    assert not any(rows(tmp_path, table) for table in ("subscriptions", "deliveries", "received"))
    caplog.clear()
    load(tmp_path)
    assert not caplog.records


@pytest.mark.parametrize(
    ("acknowledged", "left"),
    [
        (lambda key: True, []),
        (lambda key: key <= 50, list(range(51, 101))),
        (lambda key: key % 2, list(range(2, 101, 2))),
        (lambda key: key not in {1, 40, 41, 100}, [1, 40, 41, 100]),
    ],
)
def test_runs_of_deletions_take_their_own_rows_only(
    tmp_path: Path, acknowledged: Callable[[int], bool], left: list[int]
) -> None:
    """Two sessions share the messages; the first acknowledges some, in reverse order."""
    messages = {key: message(key) for key in range(1, 101)}
    put = Changes(sessions={1: session(1), 2: session(2, "shed")}, messages=dict(messages))
    for key, each in messages.items():
        for session_key in 1, 2:
            put.deliveries[session_key, key] = Delivery(each, 1, key=key)
    gone = [key for key in reversed(messages) if acknowledged(key)]
    store_changes(tmp_path, put, Changes(deliveries=dict.fromkeys((1, key) for key in gone)))
    deliveries = as_state(load(tmp_path))["deliveries"]
    assert [key for session_key, key in deliveries if session_key == 1] == left
    assert [key for session_key, key in deliveries if session_key == 2] == list(messages)


text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)
message_properties = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.integers(0, 1),
        "message_expiry_interval": st.integers(0, 2**32 - 1),
        "content_type": text,
        "response_topic": topics,
        "correlation_data": st.binary(max_size=20),
        "user_property": st.lists(st.tuples(text, text), min_size=1, max_size=3).map(tuple),
    },
)
messages = st.builds(
    Message,
    topic=topics,
    payload=st.binary(max_size=200),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=message_properties,
    id=st.none()
    | st.builds(MessageId, text.filter(bool), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    expires_at=st.none() | st.floats(0, 1e11),
    published_at=st.none() | st.floats(1e-6, 1e11),
)


@settings(max_examples=30)
@given(st.lists(messages, max_size=20))
def test_messages_come_back_as_they_were(stored: list[Message]) -> None:
    changes = Changes(sessions={1: session()})
    for key, each in enumerate(stored, 1):
        changes.messages[key] = each
        changes.deliveries[1, key] = Delivery(each, 1, key=key)
        changes.retained[each.topic] = each
    with tempfile.TemporaryDirectory() as directory:
        store_changes(Path(directory), changes)
        state = as_state(load(Path(directory)))
    assert state["messages"] == changes.messages
    assert state["retained"] == changes.retained


small = st.integers(1, 4)
batches = st.builds(
    Changes,
    sessions=st.dictionaries(small, st.booleans()),
    subscriptions=st.dictionaries(st.tuples(small, st.sampled_from(["a", "b/#"])), st.booleans()),
    messages=st.dictionaries(st.integers(1, 9), st.booleans()),
    deliveries=st.dictionaries(st.tuples(small, st.integers(1, 9)), st.booleans()),
    received=st.dictionaries(st.tuples(small, st.integers(1, 3)), st.booleans()),
    retained=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.booleans()),
    kept=st.dictionaries(st.sampled_from([("p", "north"), ("q", "south")]), st.booleans()),
)
MAKE: dict[str, Callable[[Any], Any]] = {
    "sessions": session,
    "subscriptions": lambda key: SubscriptionRecord(Subscription(key[1])),
    "messages": message,
    "deliveries": lambda key: Delivery(message(key[1]), 1, key=key[1]),
    "received": lambda key: True,
    "retained": lambda topic: Message(topic, b"kept"),
    "kept": lambda key: f"connection {key[1]}\n",
}


@settings(max_examples=60)
@given(st.lists(batches, max_size=6))
def test_the_store_agrees_with_a_dictionary(wanted: list[Changes]) -> None:
    """Any batches of puts and removals leave what a few dictionaries would hold after them.

    Keys come back here after their removal, which is more than the broker asks, but never within
    the batch that removes their session.
    """
    model: dict[str, dict[Any, Any]] = {name: {} for name in MAKE}
    done: list[Changes] = []
    for batch in wanted:
        changes = Changes()
        for name, make in MAKE.items():
            for key, present in getattr(batch, name).items():
                value = make(key) if present else (False if name == "received" else None)
                getattr(changes, name)[key] = value
                model[name][key] = value
        removed = {key for key, record in changes.sessions.items() if record is None}
        for name in "subscriptions", "deliveries", "received":
            model[name] = {key: value for key, value in model[name].items() if key[0] not in removed}
        done.append(changes)
    there = {name: {key: value for key, value in model[name].items() if value} for name in MAKE}
    for name in "subscriptions", "deliveries", "received":
        there[name] = {key: value for key, value in there[name].items() if key[0] in there["sessions"]}
    there["deliveries"] = {
        key: fields(value) for key, value in there["deliveries"].items() if key[1] in there["messages"]
    }
    referred = {key for _, key in there["deliveries"]}
    there["messages"] = {key: value for key, value in there["messages"].items() if key in referred}
    with tempfile.TemporaryDirectory() as directory:
        store_changes(Path(directory), *done)
        assert as_state(load(Path(directory))) == there
