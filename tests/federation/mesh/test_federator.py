"""What the machine promises to the code around it."""

from __future__ import annotations

import pytest

from hedgerow.errors import TopicError
from hedgerow.federation.mesh.federator import Federator
from hedgerow.federation.mesh.meshes import FilterState
from hedgerow.federation.mesh.wire import MeshKind, kind_of


def federator(node_id: str = "5", epoch: int = 0) -> Federator:
    return Federator(node_id, 0.0, random=lambda: 0.5, epoch=epoch)


def deliver(sender: Federator, receiver: Federator, now: float) -> list[MeshKind]:
    """All that waits for `receiver`; the kinds of the packets."""
    packets = [payload for neighbour, payload in sender.take_packets() if neighbour == receiver.node_id]
    for payload in packets:
        receiver.receive(sender.node_id, payload, now)
    return [kind_of(payload) for payload in packets]


def pair() -> tuple[Federator, Federator]:
    one, other = federator("1"), federator("2")
    one.add_neighbour("2", 0.0)
    other.add_neighbour("1", 0.0)
    return one, other


@pytest.mark.parametrize("node_id", ["", "x" * 256])
def test_an_id_has_a_length(node_id: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        federator(node_id)


def test_misuse_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="redundancy"):
        Federator("1", 0.0, random=lambda: 0.5, redundancy=0)
    with pytest.raises(ValueError, match="epoch"):
        federator(epoch=1 << 40)
    with pytest.raises(ValueError, match="itself"):
        federator("1").add_neighbour("1", 0.0)
    with pytest.raises(TopicError):
        federator().subscribe("a/#/b", 0.0)


def test_the_time_of_day_is_an_epoch() -> None:
    one, other = federator("1", epoch=1_800_000_000), federator("2")
    one.add_neighbour("2", 0.0)
    other.add_neighbour("1", 0.0)
    one.subscribe("t", 0.0)
    deliver(one, other, 0.0)
    assert other.core_of("t") == "1"


def test_a_node_without_subscribers_is_silent() -> None:
    machine = federator()
    machine.add_neighbour("1", 0.0)
    assert machine.deadline == float("inf")
    assert machine.take_packets() == []


def test_two_nodes_meet() -> None:
    """
    2 -- CORE_ANN (2) --> 1    2 subscribes
    1 -- CORE_ANN (1), MESH_MEMB_ANN --> 2    1 subscribes, its id is smaller; the mesh of 2 still carries on
    2 -- CORE_ANN (2: no filter), MESH_MEMB_ANN --> 1
    """
    one, other = pair()
    other.subscribe("t", 0.0)
    assert deliver(other, one, 0.0) == [MeshKind.CORE_ANN]
    assert one.targets("t", None) == ["2"]
    assert one.take_changes() == [("2", "t", True)]
    assert not one.is_member("t")
    one.subscribe("t", 1.0)
    assert deliver(one, other, 1.0) == [MeshKind.CORE_ANN, MeshKind.MESH_MEMB_ANN]
    assert other.core_of("t") == one.core_of("t") == "1"
    assert deliver(other, one, 1.0) == [MeshKind.CORE_ANN, MeshKind.MESH_MEMB_ANN]
    one.handle_timer(3.0)
    other.handle_timer(3.0)
    assert one.targets("t", None) == ["2"]
    assert other.targets("t", None) == ["1"]
    assert one.targets("t", "2") == []
    assert one.take_changes() == []  # It was so all the time.
    assert other.take_changes() == [("1", "t", True)]


def test_filters_that_are_subscribed_to_together_share_an_announcement() -> None:
    one, other = pair()
    for number in range(50):
        one.subscribe(f"t{number}", 0.0)
    assert deliver(one, other, 0.0) == [MeshKind.CORE_ANN]
    one.handle_timer(one.deadline)
    assert deliver(one, other, 0.1) == [MeshKind.CORE_ANN]
    assert all(other.core_of(f"t{number}") == "1" for number in range(50))


def test_it_describes_each_mesh_for_people() -> None:
    one, other = pair()
    one.subscribe("t", 0.0)
    other.subscribe("t", 0.0)
    other.subscribe("u/#", 0.0)
    other.subscribe("u/v", 0.0)  # covered: it has no mesh
    for now in (0.0, 0.1, 2.0):
        for machine in (one, other):
            machine.handle_timer(now)
        deliver(one, other, now)
        deliver(other, one, now)
    assert sorted(one.describe()) == [
        FilterState("t", "1", 0, (), ("2",), is_member=True, is_local=True),
        FilterState("u/#", "2", 1, ("2",), (), is_member=False, is_local=False),
    ]
    assert sorted(other.describe()) == [
        FilterState("t", "1", 1, ("1",), (), is_member=True, is_local=True),
        FilterState("u/#", "2", 0, (), (), is_member=True, is_local=True),
    ]
    assert sorted(one.filters_of("2")) == ["t", "u/#"]
    assert other.filters_of("1") == ["t"]
    one.remove_neighbour("2", 3.0)
    assert one.filters_of("2") == []


def test_a_neighbour_that_is_gone_gets_nothing() -> None:
    one, other = pair()
    other.subscribe("t", 0.0)
    deliver(other, one, 0.0)
    assert one.take_changes() == [("2", "t", True)]
    one.remove_neighbour("2", 1.0)
    assert one.take_changes() == [("2", "t", False)]
    assert one.targets("t", None) == []
    assert one.take_packets() == []
    one.remove_neighbour("2", 1.0)
    assert one.neighbours == []


def test_a_link_that_comes_up_again_begins_anew() -> None:
    one, other = pair()
    other.subscribe("t", 0.0)
    deliver(other, one, 0.0)
    other.add_neighbour("1", 1.0)
    one.add_neighbour("2", 1.0)
    deliver(other, one, 1.0)
    assert one.core_of("t") == "2"
    assert one.targets("t", None) == ["2"]
    assert one.take_changes() == [("2", "t", True)]


def test_it_counts_what_it_sends_and_gets() -> None:
    one, other = pair()
    one.subscribe("t", 0.0)
    deliver(one, other, 0.0)
    assert one.stats.sent == {"CORE_ANN": 1}
    assert other.stats.received == {"CORE_ANN": 1}
    assert one.stats.announcements == 1
