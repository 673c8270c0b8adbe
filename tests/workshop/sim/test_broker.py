"""A simulated broker keeps what a neighbour may not have got, and what it may have missed."""

from __future__ import annotations

from hedgerow_workshop.sim.broker import KEEP_S, SETTLE_S, Activity, Broker, VirtualPublication


class Scripted:
    """A federator that says what the test wrote down."""

    deadline: float | None = None

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, bool]] = []
        self.filters: dict[str, list[str]] = {}

    def add_neighbour(self, neighbour_id: str, now: float) -> None: ...
    def remove_neighbour(self, neighbour_id: str, now: float) -> None: ...
    def subscribe(self, topic_filter: str, now: float) -> None: ...
    def receive(self, neighbour_id: str, payload: bytes, now: float) -> None: ...
    def handle_timer(self, now: float) -> None: ...

    def take_packets(self) -> list[tuple[str, bytes]]:
        return []

    def take_changes(self) -> list[tuple[str, str, bool]]:
        changes, self.changes = self.changes, []
        return changes

    def filters_of(self, neighbour_id: str) -> list[str]:
        return self.filters.get(neighbour_id, [])

    def targets(self, topic: str, sender: str | None) -> list[str]:
        return []

    def core_of(self, topic_filter: str) -> str | None:
        return None

    def is_member(self, topic_filter: str) -> bool:
        return False


def make(*neighbours: str) -> tuple[Broker, Scripted]:
    federator = Scripted()
    broker = Broker(federator, Activity())
    for neighbour in neighbours:
        broker.add_neighbour(neighbour, 0.0)
    return broker, federator


def change(broker: Broker, federator: Scripted, neighbour: str, is_wanted: bool, now: float) -> None:
    federator.changes.append((neighbour, "t/#", is_wanted))
    broker.receive(neighbour, b"", now)


def sent(broker: Broker) -> list[tuple[str, int]]:
    packets = broker.take_packets()
    return [(neighbour, data.number) for neighbour, data in packets if isinstance(data, VirtualPublication)]


def test_a_publication_goes_to_whom_the_federator_says_and_not_back() -> None:
    broker, federator = make("a", "b", "c")
    change(broker, federator, "a", True, 1.0)
    change(broker, federator, "b", True, 1.0)
    broker.publish(VirtualPublication(1, "t/x"), 1.0)
    assert sent(broker) == [("a", 1), ("b", 1)]
    broker.receive("a", VirtualPublication(2, "t/x", hops=1), 1.0)
    assert list(broker.take_packets()) == [("b", VirtualPublication(2, "t/x", hops=2))]
    broker.publish(VirtualPublication(3, "other"), 1.0)
    change(broker, federator, "a", False, 2.0)
    broker.publish(VirtualPublication(4, "t/x"), 2.0)
    assert sent(broker) == [("b", 4)]


def test_what_comes_again_goes_no_further() -> None:
    broker, federator = make("a", "b")
    change(broker, federator, "b", True, 1.0)
    broker.receive("a", VirtualPublication(1, "t"), 1.0)
    broker.take_packets()
    broker.receive("a", VirtualPublication(1, "t"), 1.0)
    assert list(broker.take_packets()) == []


def test_a_filter_that_is_new_brings_along_what_has_just_flowed() -> None:
    broker, federator = make("a")
    broker.publish(VirtualPublication(1, "t/x"), 0.0)
    broker.publish(VirtualPublication(2, "t/x"), 5.0)
    broker.publish(VirtualPublication(3, "other"), 5.0)
    change(broker, federator, "a", True, KEEP_S)
    assert sent(broker) == [("a", 2)]


def test_the_last_of_a_connection_is_sent_again_and_more_waits_meanwhile() -> None:
    broker, federator = make("a")
    change(broker, federator, "a", True, 0.0)
    broker.publish(VirtualPublication(1, "t"), 0.0)
    broker.publish(VirtualPublication(2, "t"), 5.0)
    assert sent(broker) == [("a", 1), ("a", 2)]
    federator.changes.append(("a", "t/#", False))
    broker.remove_neighbour("a", KEEP_S)
    broker.publish(VirtualPublication(3, "t"), KEEP_S)
    assert sent(broker) == []
    broker.add_neighbour("a", 100.0)
    assert sent(broker) == [("a", 2), ("a", 3)]
    broker.remove_neighbour("a", 101.0)
    broker.add_neighbour("a", 102.0)
    assert sent(broker) == [("a", 2), ("a", 3)]


def test_another_way_gets_what_waits_for_one_that_is_away() -> None:
    broker, federator = make("a", "b")
    change(broker, federator, "a", True, 0.0)
    broker.remove_neighbour("a", 0.0)
    broker.publish(VirtualPublication(1, "t"), 1.0)
    change(broker, federator, "b", True, 1.0 + 2 * KEEP_S)
    assert sent(broker) == [("b", 1)]


def test_who_is_back_for_a_while_has_the_filters_that_it_is_given_now() -> None:
    broker, federator = make("a")
    change(broker, federator, "a", True, 0.0)
    broker.remove_neighbour("a", 1.0)
    broker.add_neighbour("a", 2.0)
    assert broker.deadline == 2.0 + SETTLE_S
    broker.publish(VirtualPublication(1, "t"), 3.0)
    assert sent(broker) == [("a", 1)]
    broker.handle_timer(2.0 + SETTLE_S)
    assert broker.deadline is None
    broker.publish(VirtualPublication(2, "t"), 13.0)
    assert sent(broker) == []
