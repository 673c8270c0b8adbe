"""A neighbour announces in another node's name: that node answers, and is heard by everyone again."""

from __future__ import annotations

import pytest

from hedgerow.federation.mesh import wire
from hedgerow.federation.mesh.limits import EARLY_S, MAX_LIFETIME_S, MAX_SEQUENCE
from hedgerow.federation.mesh.serial import NONE_YET, following, is_after
from hedgerow.federation.mesh.wire import CoreAnnouncement, FilterChanges, MeshKind, encode_packet
from tests.federation.mesh.network import Network, grid


def forged(core: str, sequence: int, distance: int = 1, version: int = 1, *filters: str) -> bytes:
    changes = FilterChanges(version, 0, len(filters), filters)
    entry = CoreAnnouncement(core, sequence, distance, MAX_LIFETIME_S, changes)
    return encode_packet(MeshKind.CORE_ANN, [wire.encode_core_announcement(entry)])


@pytest.mark.parametrize("sequence", [MAX_SEQUENCE, MAX_SEQUENCE - 1, 1 << 61, 1 << 60, 1 << 49, 1])
@pytest.mark.parametrize("filters", [(), ("x",)], ids=["no filters", "other filters"])
def test_no_number_silences_a_core(sequence: int, filters: tuple[str, ...]) -> None:
    network = Network([*grid(3, 3), ("8", "liar")])
    network.subscribe("2", "t")
    network.run(1)
    network.inject("liar", "8", forged("2", sequence, 1, MAX_SEQUENCE, *filters))
    network.run(1)
    assert network.cores("t") == {"2"}
    for publisher in network.nodes:
        assert "2" in network.publish(publisher, "t")
    network.subscribe("2", "later")  # Its next changes are heard too.
    network.run(1)
    for publisher in network.nodes:
        assert "2" in network.publish(publisher, "later")


def test_a_long_list_is_asked_for_again_after_a_forged_later_version() -> None:
    """Lists that do not fit into an announcement are asked for, whatever version was forged."""
    network = Network([*grid(3, 3), ("8", "liar")])
    filters = [f"topic/{number}/{'x' * 20}" for number in range(100)]
    for topic_filter in filters:
        network.subscribe("2", topic_filter)
    network.run(1)
    network.inject("liar", "8", forged("2", MAX_SEQUENCE - 5, 1, MAX_SEQUENCE - 1, "x"))
    network.run(2)
    for topic_filter in filters:
        assert "2" in network.publish("6", topic_filter)


def test_a_flood_of_forgeries_does_not_make_the_core_announce_all_the_time() -> None:
    network = Network([*grid(3, 3), ("8", "liar")])
    network.subscribe("2", "t")
    network.run(1)
    before = network.nodes["2"].stats.announcements
    sequence = 1 << 50
    for _ in range(100):
        sequence += 1_000
        network.inject("liar", "8", forged("2", sequence))
        network.run(0.01)
    assert network.nodes["2"].stats.announcements - before <= 1 / EARLY_S + 2
    network.run(1)
    assert "2" in network.publish("6", "t")


def test_numbers_go_round() -> None:
    assert following(MAX_SEQUENCE) == 1
    assert following(1) == 2
    assert following(0) == 1
    assert is_after(1, MAX_SEQUENCE)
    assert not is_after(MAX_SEQUENCE, 1)
    assert is_after(1, NONE_YET)
    assert not is_after(NONE_YET, 1)
    assert not is_after(7, 7)
