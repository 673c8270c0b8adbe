"""How control traffic grows with the number of filters: it does not, once they are known."""

from __future__ import annotations

from hedgerow.federation.mesh.wire import MeshKind
from tests.federation.mesh.network import Network, grid

COUNT = 10_000
LONG = 2_000


def names(count: int) -> list[str]:
    return [f"site/{number % 7}/machine/{number:05}/temperature" for number in range(count)]


def traffic_per_interval(count: int) -> float:
    """Bytes on all links together, with every filter subscribed to at two of four nodes."""
    network = Network(grid(2, 2))
    for name in names(count):
        network.subscribe("0", name)
        network.subscribe("3", name)
    network.run(12)
    assert network.cores(names(count)[-1]) == {"0"}
    before = network.bytes
    announced = network.nodes["0"].stats.announcements
    network.run(30)
    return (network.bytes - before) / (network.nodes["0"].stats.announcements - announced)


def test_ten_thousand_filters_cost_what_one_costs() -> None:
    one, many = traffic_per_interval(1), traffic_per_interval(COUNT)
    assert many <= 1.2 * one
    assert many < 200


def test_a_long_list_crosses_each_link_once_and_one_more_filter_is_cheap() -> None:
    network = Network(grid(3, 3))
    for name in names(LONG):
        network.subscribe("2", name)
    network.run(2)
    assert network.cores(names(LONG)[-1]) == {"2"}
    # Each of the eight others asks one neighbour; the list is about 15 bytes for a filter.
    assert network.sent[MeshKind.ASK] <= 2 * 8
    assert network.bytes < 2 * 8 * 16 * LONG
    before = network.bytes
    network.subscribe("7", names(LONG)[5])
    network.subscribe("2", "one/more")
    network.run(0.5)
    assert network.cores("one/more") == {"2"}
    assert "7" in network.publish("6", names(LONG)[5])
    assert network.bytes - before < 4_000


def test_what_a_wider_filter_covers_is_not_announced() -> None:
    network = Network(grid(3, 3))
    for name in names(1_000):
        network.subscribe("2", name)
    network.subscribe("2", "site/#")
    network.run(1)
    assert network.cores(names(1)[0]) == {None}
    assert network.cores("site/#") == {"2"}
    assert "2" in network.publish("6", names(1)[0])
    network.unsubscribe("2", "site/#")
    network.run(2)
    assert network.cores("site/#") == {None}
    assert network.cores(names(1)[0]) == {"2"}
    assert "2" in network.publish("6", names(1)[0])


def test_topics_of_the_broker_itself_stay_there() -> None:
    network = Network(grid(2, 2))
    network.subscribe("0", "$SYS/#")
    network.run(1)
    assert network.cores("$SYS/#") == {None}
    assert network.sent == {}
