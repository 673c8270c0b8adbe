"""The plan as a whole: its words, its order, ghosts, cut pairs, and the document's own timeline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.agent.plan import (
    PUBLISHED_TOPOLOGIES,
    BrokerLink,
    Ghosts,
    Topology,
    TopologyPlan,
    parse_topology,
    plan,
    target_links,
)
from tests.agent.checks import Pair, groups

FIVE = ["b1", "b2", "b3", "b4", "b5"]
STAR, LINE, RING = Topology("star"), Topology("line"), Topology("ring")
ALL = ["star", "line", "tree 2", "tree 3", "ring", "redundant 1", "redundant 2", "redundant 3"]


def pairs(text: str) -> set[Pair]:
    """ "12 35" → {("b1", "b2"), ("b3", "b5")}"""
    return {(f"b{pair[0]}", f"b{pair[1]}") for pair in text.split()}


def target(topology: str, alive: str = "12345", cut: str = "", existing: str = "") -> str:
    found = target_links(
        parse_topology(topology), FIVE, [f"b{n}" for n in alive], pairs(cut), pairs(existing)
    )
    return " ".join(sorted((a + b).replace("b", "") for a, b in found))


@pytest.mark.parametrize(
    ("topology", "alive", "cut", "links"),
    [
        ("star", "12345", "", "15 25 35 45"),
        ("star", "124", "", "14 24"),
        ("star", "3", "", ""),
        ("star", "", "", ""),
        ("star", "12345", "15", "14 25 35 45"),
        ("star", "12345", "15 14 25", "13 24 35 45"),
        ("star", "1234", "14 24 13 23", "12 34"),
        ("line", "12345", "", "12 23 34 45"),
        ("line", "1345", "", "13 34 45"),
        ("line", "12345", "23", "12 24 34 45"),
        ("line", "1234", "34", "12 23 24"),
        ("line", "123", "23", "12 13"),
        ("line", "1345", "34 35", "13 14 45"),
        ("tree 2", "12345", "", "13 24 35 45"),
        ("tree 2", "12345", "12 13 24 34 45", "14 15 23 25"),
        ("tree 3", "12345", "", "14 25 35 45"),
        ("ring", "12345", "", "12 15 23 34 45"),
        ("ring", "1245", "", "12 15 24 45"),
        ("ring", "125", "", "12 15 25"),
        ("ring", "25", "", "25"),
        ("ring", "1", "", ""),
        ("ring", "1234", "12", "13 14 23 24"),
        ("redundant 1", "12345", "", "12 15 23 34"),
        ("redundant 2", "12345", "", "12 15 23 34 45"),
        ("redundant 3", "1234", "", "12 13 14 23 24 34"),
        ("redundant 4", "125", "", "12 15 25"),
    ],
)
def test_from_nothing(topology: str, alive: str, cut: str, links: str) -> None:
    assert target(topology, alive, cut) == links


@pytest.mark.parametrize(
    ("topology", "alive", "existing", "links"),
    [
        ("tree 2", "12345", "13 35 25 24", "13 24 25 35"),
        ("tree 3", "1234", "13 35 23 34", "13 23 34"),
        ("ring", "12345", "13 35 25 24 14", "13 14 24 25 35"),
        ("ring", "1245", "13 35 25 24 14", "14 15 24 25"),
        ("redundant 2", "12345", "13 35 25 24 14", "13 14 24 25 35"),
        ("redundant 2", "1245", "12 23 34 45 15", "12 15 24 45"),
    ],
)
def test_what_exists_and_serves_is_kept(topology: str, alive: str, existing: str, links: str) -> None:
    assert target(topology, alive, existing=existing) == links


def test_a_plan_in_words() -> None:
    found = plan(LINE, FIVE, FIVE, existing=pairs("12 24 45"))
    assert found == TopologyPlan((BrokerLink("b2", "b3"), BrokerLink("b3", "b4")), (BrokerLink("b2", "b4"),))
    assert str(found) == "create b2 – b3\ncreate b3 – b4\ndelete b2 – b4"
    assert str(TopologyPlan()) == "nothing to do"


def test_more_paths_than_brokers_are_as_many_as_there_can_be() -> None:
    brokers = list("abcd")
    made = [plan(Topology("redundant", count), brokers, brokers) for count in (3, 10**12)]
    assert made[0] == made[1]
    assert len(made[0].create) == 6


def test_pairs_may_come_either_way_round_and_order_is_that_of_the_list() -> None:
    brokers = ["zebra", "ant", "mole"]
    existing = [("mole", "ant"), ("ant", "zebra")]
    found = plan(STAR, brokers, brokers, existing=existing)
    assert found == TopologyPlan((BrokerLink("zebra", "mole"),), (BrokerLink("zebra", "ant"),))
    assert plan(STAR, brokers, brokers, [("mole", "zebra")], existing) == TopologyPlan()


def test_what_connects_parts_comes_first() -> None:
    """1, 2 and 3 are connected: one link to the new hub brings all of them, then 4 is alone."""
    found = plan(STAR, FIVE, FIVE, existing=pairs("12 13"))
    assert [f"{link}" for link in found.create] == ["b1 – b5", "b4 – b5", "b2 – b5", "b3 – b5"]


@pytest.mark.parametrize(
    ("ghosts", "delete"),
    # Published: 1 – 2 is kept for when 1 returns, 2 – 3 for when they reach each other; 1 – 3 serves nothing.
    [(Ghosts.KEEP, "35"), (Ghosts.DELETE, "12 13 23 35"), (Ghosts.PUBLISHED, "13 35")],
)
def test_ghosts(ghosts: Ghosts, delete: str) -> None:
    """Broker 1 is dead and 2 and 3 cannot reach each other; 3 – 5 is merely no part of a line."""
    found = plan(LINE, FIVE, ["b2", "b3", "b4", "b5"], pairs("23"), pairs("12 13 23 24 34 45 35"), ghosts)
    assert found.create == ()
    assert found.delete == tuple(BrokerLink(*pair) for pair in sorted(pairs(delete)))


def test_a_ghost_whose_broker_returns_is_a_bridge_again() -> None:
    found = plan(STAR, FIVE, FIVE, existing=pairs("15 25 35 34 45"), ghosts=Ghosts.KEEP)
    assert found == TopologyPlan((), (BrokerLink("b3", "b4"),))


def test_bridges_of_strangers_are_left_alone() -> None:
    existing = [("b1", "cloud"), ("cloud", "b2"), ("b1", "b1"), *pairs("12")]
    assert plan(STAR, FIVE[:2], FIVE[:2], [("b1", "cloud")], existing) == TopologyPlan()


# The document's stages: who lives from then on, and which bridges are created and deleted as it begins.
# Brokers that return have forgotten their own bridges; those of 1 and 2 are all that anyone keeps.
STAGES = {
    Ghosts.PUBLISHED: [
        ("t1", "1234", "14 24 34", ""),
        ("t2", "123", "13 23", ""),
        ("t3", "12", "12", ""),
        # 5 is back: its ghosts are left, as bridges to the new hub; what leads elsewhere goes, 1 – 2 as well.
        ("t4", "125", "", "12 13 14 23 24"),
        ("t5", "1245", "45", ""),
        ("t6", "12345", "35", ""),
    ],
    Ghosts.KEEP: [
        ("t1", "1234", "14 24 34", ""),
        ("t2", "123", "13 23", ""),
        ("t3", "12", "12", ""),
        ("t4", "125", "", "12"),
        ("t5", "1245", "45", "14 24"),
        ("t6", "12345", "35", "13 23"),
    ],
    Ghosts.DELETE: [
        ("t1", "1234", "14 24 34", "15 25 35 45"),
        ("t2", "123", "13 23", "14 24 34"),
        ("t3", "12", "12", "13 23"),
        ("t4", "125", "15 25", "12"),
        ("t5", "1245", "45", ""),
        ("t6", "12345", "35", ""),
    ],
}


@pytest.mark.parametrize("ghosts", Ghosts)
def test_the_stages_of_the_document(ghosts: Ghosts) -> None:
    existing = pairs("15 25 35 45")
    for stage, alive, create, delete in STAGES[ghosts]:
        existing = {pair for pair in existing if pair[0][1] in alive}  # the lower end carries it
        found = plan(STAR, FIVE, [f"b{n}" for n in alive], existing=existing, ghosts=ghosts)
        assert (set(found.create), set(found.delete)) == (pairs(create), pairs(delete)), stage
        existing = existing.union(found.create).difference(found.delete)
    assert existing == pairs("15 25 35 45")


@pytest.mark.parametrize("topology", PUBLISHED_TOPOLOGIES)
def test_the_published_policy_deletes_nothing_when_a_broker_of_a_whole_network_goes(topology: str) -> None:
    """What is left of a network would be a part of it again, but for what had to be made in between."""
    existing = set(target_links(parse_topology(topology), FIVE, FIVE))
    for gone in FIVE:
        alive = [broker for broker in FIVE if broker != gone]
        found = plan(parse_topology(topology), FIVE, alive, existing=existing, ghosts=Ghosts.PUBLISHED)
        assert not {link for link in found.delete if gone in link}


def test_the_broken_line_of_the_document() -> None:
    """Its figure 2: 2 goes and 1 is linked to 3, 2 returns and is linked to both again."""
    existing = pairs("12 23 34 45")
    for ghosts in (Ghosts.DELETE, Ghosts.KEEP, Ghosts.PUBLISHED):
        broken = plan(LINE, FIVE, ["b1", "b3", "b4", "b5"], existing=existing - pairs("23"), ghosts=ghosts)
        assert broken.create == (BrokerLink("b1", "b3"),)
        assert set(broken.delete) == (pairs("12") if ghosts is Ghosts.DELETE else set())
        left = (existing - pairs("23")).union(broken.create).difference(broken.delete)
        mended = plan(LINE, FIVE, FIVE, existing=left, ghosts=ghosts)
        assert set(mended.create) == existing - left
        assert set(mended.delete) == pairs("13")


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("star", Topology("star")),
        ("tree", Topology("tree", 3)),
        (" tree  2 ", Topology("tree", 2)),
        ("redundant", Topology("redundant", 2)),
        ("redundant 5", Topology("redundant", 5)),
    ],
)
def test_topologies_as_people_write_them(text: str, topology: Topology) -> None:
    assert parse_topology(text) == topology
    assert parse_topology(str(topology)) == topology


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is no topology: there are star, line, tree, ring, redundant"),
        ("mesh", "'mesh' is no topology"),
        ("star 3", "star does not take '3'"),
        ("tree 1", "tree: degree is a number from 2 on, not '1'"),
        ("tree x", "tree: degree is a number from 2 on, not 'x'"),
        ("redundant 0", "redundant: paths is a number from 1 on, not '0'"),
        ("redundant 2 3", "redundant does not take '3'"),
    ],
)
def test_what_is_no_topology(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_topology(text)


links_of_five = st.sets(st.sampled_from(sorted(pairs("12 13 14 15 23 24 25 34 35 45"))))


policies = st.sampled_from(
    [
        (text, ghosts)
        for text in ALL
        for ghosts in Ghosts
        if text in PUBLISHED_TOPOLOGIES or ghosts is not Ghosts.PUBLISHED
    ]
)


@given(policies, st.sets(st.sampled_from(FIVE)), links_of_five, links_of_five)
def test_at_every_step_connected_if_it_can_be(
    policy: tuple[str, Ghosts], alive: set[str], cut: set[Pair], existing: set[Pair]
) -> None:
    text, ghosts = policy
    topology = parse_topology(text)
    found = plan(topology, FIVE, alive, cut, existing, ghosts)
    living = {(a, b) for a, b in pairs("12 13 14 15 23 24 25 34 35 45") if a in alive and b in alive}
    possible = groups(alive, living - cut)

    def parts(links: set[Pair]) -> list[frozenset[str]]:
        return groups(alive, (links & living) - cut)

    assert not set(found.create) & existing
    assert set(found.delete) <= existing
    now = set(existing)
    for link in found.create:
        before = len(parts(now))
        now.add(link)
        assert len(parts(now)) < before or parts(now) == possible
    for link in found.delete:
        now.remove(link)
        assert parts(now) == possible
    assert parts(now) == possible
    assert plan(topology, FIVE, alive, cut, now, ghosts) == TopologyPlan(), (
        "a plan that was done leaves nothing to do"
    )
