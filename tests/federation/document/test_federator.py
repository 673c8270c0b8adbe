"""Meshes by the document's wire alone: its grid, random graphs, restarts, and what anybody may say."""

from __future__ import annotations

from random import Random
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.federation.document import limits
from hedgerow.federation.document.data_log import DataLog
from hedgerow.federation.document.federator import DocumentFederator
from hedgerow.federation.document.mesh import is_later
from hedgerow.federation.document.neighbours import DocumentPeer
from tests.federation.document.network import DocumentNetwork
from tests.federation.mesh import network as graphs

TWO, THREE = "user:2", "user:3"  # who speaks for neighbours 2 and 3
GRID = [(int(a), int(b)) for a, b in graphs.grid(3, 3)]


def federator_of(number: int, *neighbours: int) -> DocumentFederator:
    """Its neighbours are the users of these names."""
    peers = [DocumentPeer(str(each), each, str(each)) for each in neighbours]
    return DocumentFederator(number, peers, DataLog(1 << 20, 0), token=lambda: 7)


def test_the_grid_of_the_document() -> None:
    network = DocumentNetwork(GRID)
    network.want(7, "t")
    network.want(2, "t")
    network.run(6)
    meshes = {node: federator.mesh_of("t") for node, federator in network.nodes.items()}
    assert {mesh.core for mesh in meshes.values() if mesh is not None} == {2}
    members = {node for node, mesh in meshes.items() if mesh is not None and mesh.is_member}
    assert members == {1, 2, 4, 5, 7, 8}
    parents = {
        node: set(mesh.parents) for node, mesh in meshes.items() if mesh is not None and node in members
    }
    assert parents == {2: set(), 1: {2}, 5: {2}, 4: {1, 5}, 8: {5}, 7: {4, 8}}
    # The publisher is at node 6: Figure 6, with what may be redundant on 4-5 and 1-2.
    network.transmissions.clear()
    network.publish(6, "t", b"x")
    network.run(1)
    assert network.got[7] == network.got[2] == {b"x": 1}
    crossed = {frozenset(pair) for pair in network.transmissions if network.transmissions[pair]}
    assert crossed == {
        frozenset(pair) for pair in ((6, 7), (7, 4), (7, 8), (4, 1), (4, 5), (8, 5), (1, 2), (5, 2))
    }


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 16), st.integers(1, 3), st.booleans(), st.booleans())
def test_everything_reaches_everybody_once(
    seed: int, size: int, redundancy: int, uneven: bool, knows_numbers: bool
) -> None:
    random = Random(seed)
    links = [(int(a), int(b)) for a, b in graphs.random_graph(random, size, random.randrange(2 * size))]
    delay = (lambda: 10 ** random.uniform(-3, -1)) if uneven else (lambda: 0.005)
    network = DocumentNetwork(links, redundancy=redundancy, delay_s=delay, knows_numbers=knows_numbers)
    network.run(1)
    chosen = random.sample(range(size), random.randint(1, min(size, 5)))
    for node in chosen:
        network.want(node, "t")
        network.run(random.uniform(0, 0.3))
    network.run(20)
    core = min(chosen)
    distances = network.distances(core)
    for node, federator in network.nodes.items():
        mesh = federator.mesh_of("t")
        assert mesh is not None
        assert (mesh.core, mesh.distance) == (core, distances[node])
        assert all(distances[parent] == distances[node] - 1 for parent in mesh.parents)
    for node in network.nodes:
        network.publish(node, "t", b"%d" % node)
        network.run(random.uniform(0, 0.02))
    network.run(5)
    for node in chosen:
        assert network.got[node] == {b"%d" % publisher: 1 for publisher in network.nodes if publisher != node}
    for node in network.nodes.keys() - set(chosen):
        assert not network.got[node]


def test_a_mesh_ends_with_its_last_subscriber_and_nothing_is_left() -> None:
    network = DocumentNetwork(GRID)
    network.want(7, "t")
    network.run(6)
    network.want(7, "t", False)
    network.run(60)
    assert all(not list(federator.meshes) for federator in network.nodes.values())
    assert all(federator.deadline == float("inf") for federator in network.nodes.values())


def test_what_wildcards_want_is_what_others_have_meshes_for() -> None:
    network = DocumentNetwork([(1, 2), (2, 3)])
    network.want(1, "farm/+/soil")
    network.run(6)
    assert network.nodes[2].mesh_of("farm/7/soil") is None
    network.want(3, "farm/7/soil")
    network.run(6)
    network.publish(2, "farm/7/soil", b"x")
    network.publish(3, "farm/7/soil", b"y")
    network.run(1)
    assert network.got[1] == {b"x": 1, b"y": 1}


def test_a_core_that_was_started_again_is_believed_although_it_counts_from_the_beginning() -> None:
    federator = federator_of(5, 2)
    federator.set_wanted("t", True, 0.0)
    for sequence in (40, 41):
        federator.receive("federator/core_ann/t", pack("<4I", 2, sequence, 0, 2), TWO, 1.0 + sequence)
    federator.take_packets()
    federator.receive("federator/core_ann/t", pack("<4I", 2, 0, 0, 2), TWO, 50.0)
    assert ("federator/memb_ann/t", pack("<3I", 2, 0, 5)) in [each[1:3] for each in federator.take_packets()]


@pytest.mark.parametrize(("later", "earlier"), [(1, 0), (0, 2**32 - 1), (2**31 - 1, 0)])
def test_numbers_go_round(later: int, earlier: int) -> None:
    assert is_later(later, earlier)
    assert not is_later(earlier, later)
    assert not is_later(later, later)


# What anybody may say who may publish at this broker


NAMES = st.builds(
    lambda kind, topic: kind + topic,
    st.sampled_from(
        [
            "federator/core_ann/",
            "federator/memb_ann/",
            "federator/routing/",
            "federator/beacon/",
            "federator/",
            "federated/",
            "",
        ]
    ),
    st.sampled_from(["t", "u", "hedgerow/neighbour/1/x", "$SYS/x", "federated/t", "a/#", ""]),
)
small = st.integers(0, 5) | st.sampled_from([2**31, 2**32 - 1])
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda *numbers: pack("<4I", *numbers), small, small, small, small),
    st.builds(lambda *numbers: pack("<3I", *numbers), small, small, small),
    st.builds(
        lambda a, b, c, data: pack("<3IQ", a, b, c, len(data)) + data,
        small,
        small,
        small,
        st.binary(max_size=9),
    ),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(NAMES, PAYLOADS, st.sampled_from([TWO, THREE, "user:4", None]), st.floats(0, 10)),
        max_size=40,
    ),
    st.booleans(),
    st.booleans(),
)
def test_nothing_that_comes_raises_or_goes_round(
    said: list[tuple[str, bytes, str | None, float]], knows: bool, knows_speakers: bool
) -> None:
    peers = [DocumentPeer("2", 2, "2"), DocumentPeer("3", 3 if knows else None)]
    log = DataLog(1 << 20, 0)
    federator = DocumentFederator(1, peers, log, token=lambda: 7, knows_speakers=knows_speakers)
    federator.set_wanted("t", True, 0.0)
    now = 0.0
    for name, payload, speaker, gap in said:
        now += gap
        federator.handle_timer(now)
        federator.receive(name, payload, speaker, now)
        for address, _, _, _ in federator.take_packets():
            assert address in {"2", "3"}
        federator.take_publications()
        federator.take_listens()
        assert federator.deadline > now
        for mesh in federator.meshes:
            assert len(mesh.parents) <= 2
            assert len(mesh.children) <= limits.MAX_CHILDREN
            assert 1 not in mesh.parents


def test_strangers_are_not_heard() -> None:
    federator = federator_of(1, 2)
    federator.receive("federator/core_ann/t", pack("<4I", 9, 1, 0, 9), TWO, 0.0)
    federator.receive("federator/memb_ann/t", pack("<3I", 1, 1, 9), TWO, 0.0)
    federator.receive("federator/routing/t", pack("<3IQ", 9, 1, 9, 0), TWO, 0.0)
    assert federator.ignored == {"stranger": 3}
    assert not list(federator.meshes)


def test_topics_that_are_invented_are_bounded_and_leave_room_for_others() -> None:
    federator = federator_of(1, 2, 3)
    for number in range(2 * limits.MAX_TOPICS):
        federator.receive(f"federator/core_ann/{number}", pack("<4I", 2, 1, 0, 2), TWO, number / 5_000)
    assert len(list(federator.meshes)) == limits.MAX_TOPICS // 2
    federator.receive("federator/core_ann/t", pack("<4I", 3, 1, 0, 3), THREE, 4.0)
    federator.set_wanted("u", True, 4.0)
    assert federator.mesh_of("t") is not None
    assert federator.mesh_of("u") is not None
    federator.handle_timer(100.0)
    assert [mesh.topic for mesh in federator.meshes] == ["u"]
    for number in range(limits.MAX_TOPICS):
        federator.receive(f"federator/core_ann/{number}", pack("<4I", 2, 1, 0, 2), TWO, 101.0)
    assert len(list(federator.meshes)) == 1 + limits.MAX_TOPICS // 2


def test_topics_that_are_wanted_here_are_bounded() -> None:
    federator = federator_of(1, 2)
    for number in range(limits.MAX_TOPICS + 100):
        federator.set_wanted(str(number), True, 0.0)
    assert len(list(federator.meshes)) == limits.MAX_TOPICS
    assert federator.ignored["too many topics"] == 100


def test_children_are_neighbours() -> None:
    federator = federator_of(1, 2)
    federator.set_wanted("t", True, 100.0)
    mesh = federator.mesh_of("t")
    assert mesh is not None
    for number in range(1_000):
        federator.receive("federator/memb_ann/t", pack("<3I", 1, mesh.sequence, number), TWO, 101.0)
    assert set(mesh.children) == {2}


def test_a_number_is_learnt_from_the_answer_to_a_question_alone() -> None:
    network = DocumentNetwork([(1, 2), (2, 3)], knows_numbers=False)
    network.run(6)
    assert network.nodes[2].number_of("1") == 1
    assert network.nodes[2].number_of("3") == 3
    assert network.nodes[1].number_of("2") == 2
