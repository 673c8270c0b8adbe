"""What a neighbour must not be able to do: it is ignored and counted, or bounded, and the rest goes on."""

from __future__ import annotations

from itertools import count, islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.federation.mesh import limits, wire
from hedgerow.federation.mesh.federator import Federator
from hedgerow.federation.mesh.limits import MeshBounds
from hedgerow.federation.mesh.wire import (
    About,
    CoreAnnouncement,
    FilterChanges,
    FilterList,
    MembershipAnnouncement,
    MeshKind,
    Question,
    Repair,
    encode_packet,
)
from tests.federation.mesh.network import Network, grid

NOTHING = FilterChanges(1, 0, 0)


def federator(*neighbours: str, bounds: MeshBounds = limits.BOUNDS) -> Federator:
    made = Federator("5", 0.0, random=lambda: 0.5, bounds=bounds)
    for neighbour in neighbours:
        made.add_neighbour(neighbour, 0.0)
    return made


def announcement(
    core: str,
    sequence: int = 1,
    distance: int = 1,
    lifetime_s: float = 15.0,
    changes: FilterChanges = NOTHING,
    edition: int = 0,
) -> bytes:
    entry = CoreAnnouncement(core, sequence, distance, lifetime_s, changes, edition)
    return wire.encode_core_announcement(entry)


def whole(*filters: str, version: int = 1) -> FilterChanges:
    return FilterChanges(version, 0, len(filters), filters)


def core_ann(*entries: bytes) -> bytes:
    return encode_packet(MeshKind.CORE_ANN, entries)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "malformed"),
        (b"\x01", "malformed"),
        (b"\x09\x01", "version"),
        (b"\x01\x0b", "kind"),
        (core_ann(announcement("c", distance=0)), "impossible distance"),  # It is not c itself.
        (core_ann(announcement("n", distance=3)), "impossible distance"),  # It is n itself.
        (core_ann(announcement("c", distance=limits.MAX_DISTANCE)), "impossible distance"),
        (core_ann(announcement("c", lifetime_s=1e9)), "impossible lifetime"),
        (core_ann(announcement("c", changes=whole("$SYS/#"))), "local topic"),
        (encode_packet(MeshKind.REPAIR, [wire.encode_repair(Repair("nobody", 1))]), "unknown core"),
        (encode_packet(MeshKind.ASK, [wire.encode_question(Question(About.LIST, "nobody"))]), "unknown core"),
        (
            encode_packet(MeshKind.LIST, [wire.encode_list(FilterList("c", 1, True, True, 0, ()))]),
            "not asked for",
        ),
        (
            encode_packet(
                MeshKind.NEW_REGULAR_TOPIC, [wire.encode_regular_topic(wire.RegularTopic("a", True))]
            ),
            "not from a client",
        ),
    ],
)
def test_ignored_and_counted(payload: bytes, reason: str) -> None:
    machine = federator("n", "m")
    machine.receive("n", payload, 1.0)
    assert machine.stats.ignored == {reason: 1}
    assert machine.take_packets() == []
    assert machine.take_changes() == []


def test_a_stranger_is_not_heard() -> None:
    machine = federator("n")
    machine.receive("stranger", core_ann(announcement("stranger", distance=0, changes=whole("t"))), 1.0)
    assert machine.stats.ignored == {"no neighbour": 1}
    assert machine.core_of("t") is None


def test_an_outdated_announcement_changes_nothing() -> None:
    machine = federator("n", "m")
    machine.receive("n", core_ann(announcement("c", 5, 1, changes=whole("t"))), 1.0)
    machine.take_packets()
    machine.receive("m", core_ann(announcement("c", 4, 1, changes=whole("u"))), 1.0)
    assert machine.stats.ignored == {"outdated": 1}
    assert machine.parents_of("t") == ["n"]
    assert machine.core_of("u") is None
    assert machine.take_packets() == []


def test_invented_cores_push_out_none_of_another_neighbour() -> None:
    machine = federator("good", "bad", bounds=MeshBounds(cores=100))
    machine.receive("bad", core_ann(*(announcement(f"x{number}") for number in range(150))), 1.0)
    assert machine.stats.ignored == {"too many cores": 50}
    good = [announcement(f"g{number}", changes=whole(f"t{number}")) for number in range(40)]
    machine.receive("good", core_ann(*good), 1.0)
    assert all(machine.core_of(f"t{number}") == f"g{number}" for number in range(40))
    assert machine.stats.evicted == 40
    machine.receive("bad", core_ann(*(announcement(f"y{number}") for number in range(150))), 1.0)
    assert all(machine.core_of(f"t{number}") == f"g{number}" for number in range(40))
    assert machine.core_count == 100


def test_a_flood_pushes_out_itself_before_what_came_by_the_same_neighbour() -> None:
    machine = federator("bad", "other", bounds=MeshBounds(cores=100))
    machine.receive("bad", core_ann(announcement("true", changes=whole("t"))), 1.0)
    machine.receive("bad", core_ann(*(announcement(f"x{number}") for number in range(150))), 1.0)
    machine.receive("other", core_ann(*(announcement(f"y{number}") for number in range(30))), 1.0)
    assert machine.stats.evicted == 30
    assert machine.core_of("t") == "true"


def test_invented_filters_push_out_none_of_another_neighbour() -> None:
    machine = federator("good", "bad", bounds=MeshBounds(filters=1_000))
    for core in range(20):
        invented = whole(*(f"{core}/{number}" for number in range(100)))
        machine.receive("bad", core_ann(announcement(f"x{core}", changes=invented)), 1.0)
    assert machine.stats.ignored == {"too many filters": 10}
    wanted = [f"t{number}" for number in range(300)]
    machine.receive("good", core_ann(announcement("g", changes=whole(*wanted))), 1.0)
    assert all(machine.core_of(name) == "g" for name in wanted)
    assert machine.filter_count <= 1_000
    too_many = whole(*(f"u{number}" for number in range(1_500)), version=2)
    machine.receive("good", core_ann(announcement("g", 2, changes=too_many)), 1.0)
    assert machine.filter_count <= 1_000


def test_invented_memberships_are_bounded() -> None:
    machine = federator("bad", bounds=MeshBounds(memberships=1_000))
    for core in range(20):
        invented = whole(*(f"{core}/{number}" for number in range(100)))
        entry = wire.encode_membership(MembershipAnnouncement(f"x{core}", 1, invented))
        machine.receive("bad", encode_packet(MeshKind.MESH_MEMB_ANN, [entry]), 1.0)
    assert machine.stats.ignored == {"too many filters": 10}
    assert machine.filter_count == 1_000
    machine.remove_neighbour("bad", 2.0)
    assert machine.filter_count == 0


LONG = ["x" * 25_000, "/".join(["a"] * 190)]


@pytest.mark.parametrize("ending", LONG, ids=["long", "deep"])
def test_long_filters_count_as_several(ending: str) -> None:
    """Counted by their number, those of one neighbour could take 13 GB."""
    machine = federator("good", "bad", bounds=MeshBounds(filters=1_000, memberships=1_000))
    for core in range(200):
        changes = whole(f"{core}/{ending}")
        machine.receive("bad", core_ann(announcement(f"x{core}", changes=changes)), 1.0)
        entry = wire.encode_membership(MembershipAnnouncement(f"x{core}", 1, changes))
        machine.receive("bad", encode_packet(MeshKind.MESH_MEMB_ANN, [entry]), 1.0)
    assert machine.stats.ignored["too many filters"] > 200
    assert machine.filter_count < 180
    wanted = [f"t{number}" for number in range(300)]
    machine.receive("good", core_ann(announcement("g", changes=whole(*wanted))), 1.0)
    assert all(machine.core_of(name) == "g" for name in wanted)


def test_what_is_taken_back_makes_room_again() -> None:
    machine = federator("n", bounds=MeshBounds(filters=200, memberships=200))
    for version in range(1, 40, 2):
        changes = whole(f"{version}/{LONG[0]}", version=version)
        machine.receive("n", core_ann(announcement("c", version, changes=changes)), 1.0)
        nothing = whole(version=version + 1)
        machine.receive("n", core_ann(announcement("c", version + 1, changes=nothing)), 1.0)
    assert machine.stats.ignored == {}


def part(core: str, *filters: str, is_first: bool = True, is_last: bool = False, size: int = 1_000) -> bytes:
    listed = FilterList(core, 1, is_first, is_last, size, filters)
    return encode_packet(MeshKind.LIST, [wire.encode_list(listed)])


def test_lists_that_only_begin_are_bounded_together() -> None:
    machine = federator("good", "bad", bounds=MeshBounds(filters=1_000))
    machine.receive("good", core_ann(announcement("g", changes=FilterChanges(1, 1, 2))), 1.0)
    machine.receive("good", part("g", "t", size=2), 1.0)
    for core in range(50):
        machine.receive("bad", core_ann(announcement(f"x{core}", changes=FilterChanges(1, 1, 1_000))), 1.0)
        machine.receive("bad", part(f"x{core}", *(f"{core}/{number}" for number in range(100))), 1.0)
    assert machine.stats.ignored == {"incomplete list": 41}
    machine.receive("good", part("g", "u", is_first=False, is_last=True, size=2), 1.0)
    assert machine.core_of("t") == machine.core_of("u") == "g"


def test_lists_that_only_begin_keep_no_other_out() -> None:
    machine = federator("good", "bad", bounds=MeshBounds(filters=1_000))
    for core in range(9):
        machine.receive("bad", core_ann(announcement(f"x{core}", changes=FilterChanges(1, 1, 1_000))), 1.0)
        machine.receive("bad", part(f"x{core}", *(f"{core}/{number}" for number in range(110))), 1.0)
    machine.receive("good", core_ann(announcement("g", changes=FilterChanges(1, 1, 300))), 1.0)
    wanted = [f"t{number}" for number in range(300)]
    machine.receive("good", part("g", *wanted, is_last=True, size=300), 1.0)
    assert all(machine.core_of(name) == "g" for name in wanted)


def test_a_neighbour_that_sends_too_fast_is_not_heard_for_a_while() -> None:
    machine = federator("bad", "good")
    packet = core_ann(*[announcement("c")] * 5_000)
    for _ in range(20):
        machine.receive("bad", packet, 1.0)
    assert machine.stats.ignored["too fast"] > 0
    machine.receive("good", core_ann(announcement("good", distance=0, changes=whole("t"))), 1.0)
    assert machine.core_of("t") == "good"
    machine.receive("bad", core_ann(announcement("d", changes=whole("u"))), 5.0)
    assert machine.core_of("u") == "d"


def test_a_short_question_is_not_answered_with_the_long_list_again_and_again() -> None:
    machine = federator("bad")
    for number in range(2_000):
        machine.subscribe(f"some/topic/{number}", 0.0)
    machine.handle_timer(1.0)
    machine.take_packets()
    question = encode_packet(MeshKind.ASK, [wire.encode_question(Question(About.LIST, "5"))])
    for _ in range(100):
        machine.receive("bad", question, 1.0)
    assert sum(len(payload) for _, payload in machine.take_packets()) < 60_000
    assert machine.stats.ignored == {"asked too often": 99}


def test_repairs_do_not_make_a_core_announce_all_the_time() -> None:
    machine = federator("bad", "good")
    machine.subscribe("t", 0.0)
    before = machine.stats.announcements
    for step in range(1_000):
        now = 1.0 + step / 1_000
        sequence = machine.sequence_of("t")
        assert sequence is not None
        repair = wire.encode_repair(Repair("5", sequence))
        machine.receive("bad", encode_packet(MeshKind.REPAIR, [repair]), now)
        if machine.deadline <= now:
            machine.handle_timer(now)
    assert machine.stats.announcements - before <= 1 / limits.EARLY_S + 1


def test_a_forged_core_is_forgotten_and_the_true_one_heard_again() -> None:
    """A member that lies can stand in another's way for as long as it lies, not longer."""
    network = Network(grid(3, 3))
    network.subscribe("2", "t")
    network.run(1)
    network.inject("4", "7", core_ann(announcement("2", 1 << 40, 2, changes=whole("x", version=1 << 40))))
    network.run(30)
    assert network.cores("t") == {"2"}
    assert network.cores("x") == {None}
    for publisher in network.nodes:
        assert "2" in network.publish(publisher, "t")


def test_the_federation_goes_on_beside_a_neighbour_that_does_all_of_it() -> None:
    """Node 8 of the grid, and a liar that is its neighbour: what it invents floods everyone, and fills tables
    in which what was there before it, or is told by others, has its place."""
    bounds = MeshBounds(cores=100, filters=1_000, memberships=1_000)
    network = Network([*grid(3, 3), ("8", "liar")], bounds=bounds)
    for node in ("2", "7"):
        network.subscribe(node, "t")
    network.run(2)
    names = (f"x{number}" for number in count())
    for _ in range(20):
        cores = list(islice(names, 30))
        invented = whole(*(f"{core}/{number}" for core in cores for number in range(20)))
        for payload in (
            b"\x02\x01" + announcement("7"),
            b"\x01\x01\xff\xff",
            core_ann(announcement("2", distance=0, sequence=1 << 50, changes=whole("u"))),
            core_ann(announcement("liar", distance=5)),
            core_ann(*(announcement(core, changes=whole(f"{core}/#")) for core in cores)),
            core_ann(announcement("liar", int(network.now * 1_000), 0, changes=invented)),
            encode_packet(
                MeshKind.MESH_MEMB_ANN,
                [wire.encode_membership(MembershipAnnouncement(core, 1, invented)) for core in cores],
            ),
        ):
            network.inject("liar", "8", payload)
        network.run(0.5)
        for publisher in network.nodes:
            assert {"2", "7"} <= set(network.publish(publisher, "t"))
    ignored = network.nodes["8"].stats.ignored
    assert ignored["version"] == ignored["malformed"] == 20
    assert ignored["impossible distance"] == 40
    assert ignored["too many cores"] > 0
    assert ignored["too many filters"] > 0
    for federator in network.nodes.values():
        assert federator.core_count <= 100
        assert federator.filter_count <= 2_000
    network.subscribe("0", "new")
    network.run(1)
    assert "0" in network.publish("6", "new")
    network.cut("8", "liar")
    network.run(20)
    assert network.cores("t") - {None} == {"2"}
    assert all(network.nodes[str(node)].filter_count == 2 for node in range(9))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_noise_from_one_neighbour_leaves_the_others_alone(seed: int) -> None:
    """Packets of the protocol with random numbers and names, and damaged ones, between the true ones."""
    random = Random(seed)
    network = Network(grid(3, 3), seed=seed)
    network.subscribe("2", "t")
    network.subscribe("7", "t")
    network.join("0", "8")
    for _ in range(60):
        network.run(random.uniform(0, 0.2))
        core = random.choice(["x", "y", "8", "31"])
        filters = random.sample(["u", "v/#", "w/+"], random.randint(0, 3))
        version, since, size = (random.choice([0, 1, 2, 3, 1 << 40]) for _ in range(3))
        changes = FilterChanges(version, since, size, tuple(filters))
        sequence = random.choice([0, 1, 2, 5, 1 << 33, 1 << 61])
        entries = [
            (MeshKind.CORE_ANN, announcement(core, sequence, random.choice([0, 1, 7]), changes=changes)),
            (MeshKind.MESH_MEMB_ANN, wire.encode_membership(MembershipAnnouncement(core, sequence, changes))),
            (MeshKind.REPAIR, wire.encode_repair(Repair(random.choice([core, "2"]), sequence))),
            (
                MeshKind.ASK,
                wire.encode_question(Question(random.choice(list(About)), random.choice([core, "2"]))),
            ),
            (MeshKind.LIST, wire.encode_list(FilterList(core, sequence, True, True, 1, tuple(filters)))),
            (
                MeshKind.PART_ANN,
                announcement(core, sequence, 1, changes=changes, edition=random.choice([1, 2])),
            ),
            (
                MeshKind.PART_LIST,
                wire.encode_list(FilterList(core, sequence, True, True, 1, tuple(filters), version or 1)),
            ),
        ]
        kind, entry = random.choice(entries)
        payload = bytearray(encode_packet(kind, [entry]))
        if random.random() < 0.3:
            payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
        network.inject("8", "0", bytes(payload))
    network.run(2)
    for publisher in network.nodes:
        assert {"2", "7"} <= set(network.publish(publisher, "t"))
