"""Messages of which the store has no rows yet: the log notes who waits for them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.broker.changes import Changes, SessionRecord
from hedgerow.broker.stored import StoredQueue
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.node.store import MAX_CHUNKS, Store


class Broker:
    """Two sessions, as far as the store is concerned."""

    def __init__(self, store: Store) -> None:
        self.store = store
        snapshot = store.load()
        self.position = snapshot.next_position
        self.queues = {1: StoredQueue(), 2: StoredQueue()}
        for key, chunk in snapshot.chunks:
            self.queues[key].restore(chunk)
        if not snapshot.sessions:
            records = {key: SessionRecord(key, f"client {key}", None, MQTT_5, 60.0, None) for key in (1, 2)}
            store.write(Changes(sessions=dict(records)))
            store.commit()

    def publish(self, *waiting: int, count: int = 1, settles: bool = False) -> None:
        """Messages for these sessions, in a batch; whoever is named twice has it twice."""
        changes = Changes(first_position=self.position, at=float(self.position), begins_segment=True)
        for _ in range(count):
            changes.messages.append(message(self.position))
            changes.waiting.append(tuple((key, 1, ()) for key in waiting))
            for key in waiting:
                chunk = self.queues[key].add(self.position, 1, 1, (), None, 10, float(self.position))
                changes.chunks[key, chunk.number] = chunk
            self.position += 1
        self.store.write(changes, settles)
        self.store.commit()

    def finish(self, key: int, count: int = 1, settles: bool = False) -> None:
        changes = Changes()
        for position in self.positions(key)[:count]:
            for chunk, _ in self.queues[key].remove(position):
                changes.chunks[key, chunk.number] = chunk
        self.store.write(changes, settles)
        self.store.commit()

    def positions(self, key: int) -> list[int]:
        return [
            position
            for chunk in self.queues[key].chunks
            for first, count in chunk.runs_from(0)
            for position in range(first, first + count)
        ]


def message(position: int) -> Message:
    return Message("t", b"%d" % position, 1, id=MessageId("node", 1, position))


def test_what_has_no_rows_is_there_after_a_crash(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        broker.publish(1)
        assert not store.is_settled
        broker.publish(1, 2, count=3)
        before = broker.positions(1), broker.positions(2)
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        assert (broker.positions(1), broker.positions(2)) == before
        found, _ = store.log.read([(each, 1) for each in before[0]], 1 << 20)
        assert [each.message for each in found] == [message(each) for each in before[0]]
        assert all(chunk.sent == chunk.end - 1 for chunk in broker.queues[1].chunks), "it may have been sent"
        assert store.is_settled
    with closing(Store.open(tmp_path)) as store:
        assert Broker(store).positions(1) == before[0], "once, and not again"


def test_what_was_finished_and_settled_does_not_come_again(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        broker.publish(1, 2, count=4)
        broker.finish(1, 3)
        broker.finish(2, 1)
        store.write(Changes(), settles=True)
        store.commit()
        assert store.is_settled
        broker.finish(2, 1)  # which is lost
        broker.publish(2)
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        assert (broker.positions(1), broker.positions(2)) == ([4], [2, 3, 4, 5])


def test_a_batch_with_more_than_messages_brings_all_rows_along(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        broker.publish(1)
        store.write(Changes(kept={("part", "key"): "text"}))
        store.commit()
        assert store.is_settled


def test_a_crash_between_the_log_and_the_rows_leaves_nothing_of_a_batch_that_has_both(tmp_path: Path) -> None:
    """Else the publisher of a message at QoS 2, whose packet identifier is not known, would send it again."""
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        broker.publish(1)
        (before,) = broker.positions(1)
        changes = Changes(messages=[message(broker.position)], first_position=broker.position)
        changes.waiting = [((1, 2, ()),)]
        chunk = broker.queues[1].add(broker.position, 1, 2, (), None, 10, 1.0)
        changes.chunks[1, chunk.number] = chunk
        changes.received[2, 7] = True
        store.write(changes)
        store.log.commit()
    with closing(Store.open(tmp_path)) as store:
        snapshot = store.load()
        assert [run for _, chunk in snapshot.chunks for run in chunk.runs_from(0)] == [(before, 1)]
        assert snapshot.received == []


def test_what_too_many_wait_for_has_rows_at_once(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        changes = Changes(messages=[message(1)], waiting=[()], first_position=1, begins_segment=True)
        for key in (1, 2):
            chunk = broker.queues[key].add(1, 1, 1, (), None, 10, 0.0)
            changes.chunks[key, chunk.number] = chunk
        store.write(changes)
        store.commit()
        assert store.is_settled
    with closing(Store.open(tmp_path)) as store:
        assert Broker(store).positions(1) == [1]


def test_many_chunks_do_not_gather(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        for number in range(MAX_CHUNKS + 1):
            broker.queues[1].add(1 + number, 1, 1, (number,), None, 10, 0.0)
        changes = Changes(messages=[message(each) for each in range(1, MAX_CHUNKS + 2)], first_position=1)
        changes.waiting = [((1, 1, (number,)),) for number in range(MAX_CHUNKS + 1)]
        changes.chunks = {(1, chunk.number): chunk for chunk in broker.queues[1].chunks}
        changes.begins_segment = True
        store.write(changes)
        store.commit()
        assert store.is_settled


def test_what_waits_for_a_session_that_has_ended_is_nobodys(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        broker.publish(1, 2)
        broker.publish(1)
        store.write(Changes(sessions={1: None}))
        store.commit()
        broker.publish(1, 2)
    with closing(Store.open(tmp_path)) as store:
        broker = Broker(store)
        assert (broker.positions(1), broker.positions(2)) == ([], [1, 3])


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"), st.sampled_from([(1,), (2,), (1, 2)]), st.integers(1, 3), st.booleans()
        ),
        st.tuples(st.just("finish"), st.sampled_from([1, 2]), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("crash"), st.none(), st.none(), st.none()),
    ),
    min_size=3,
    max_size=20,
)


@given(steps=STEPS)
def test_nothing_is_lost_whenever_it_crashes(
    tmp_path_factory: object, steps: list[tuple[str, object, int, bool]]
) -> None:
    directory: Path = tmp_path_factory.mktemp("store")  # type: ignore[attr-defined]
    store = Store.open(directory)
    broker = Broker(store)
    for name, what, count, settles in steps:
        if name == "publish":
            broker.publish(*what, count=count, settles=settles)  # type: ignore[misc]
        elif name == "finish":
            broker.finish(what, count, settles=settles)  # type: ignore[arg-type]
        else:
            waiting = {key: set(broker.positions(key)) for key in (1, 2)}
            is_settled = store.is_settled
            store.close()
            store = Store.open(directory)
            broker = Broker(store)
            for key in (1, 2):
                found = broker.positions(key)
                assert found == sorted(set(found)), "in order, each once"
                assert waiting[key] <= set(found)
                assert not is_settled or waiting[key] == set(found)
    store.close()
