"""A neighbour learns of no filter whose topics it may neither read nor write, and of all others as before."""

from __future__ import annotations

from random import Random

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.federation.mesh.wire import MeshKind
from tests.federation.clients import Inbox
from tests.federation.fabric_of_nodes import Fabric
from tests.federation.hosts import Node
from tests.federation.mesh.network import Network, random_graph

FARM = ("farm/1/soil", "farm/+/air", "farm/2/#", "+/1/dust")
HOME = ("home/1/safe", "home/2/#", "home/+/door")


def of_farm(topic_filter: str) -> bool:
    rights = Access(Acl.parse("user guest\ntopic readwrite farm/#", "acl")).filter_rights("guest", "x")
    assert rights is not None
    return rights.has_any(topic_filter)


def known(network: Network, node: str) -> set[str]:
    return {each.topic_filter for each in network.nodes[node].describe()}


def test_a_guest_learns_of_what_it_may_use_alone() -> None:
    network = Network([("0", "1"), ("1", "guest")], rights={("1", "guest"): of_farm})
    for number, topic_filter in enumerate((*FARM, *HOME)):
        network.subscribe(str(number % 2), topic_filter)
        network.run(0.3)
    network.run(1)
    assert known(network, "guest") == set(FARM)
    assert known(network, "0") == known(network, "1") == {*FARM, *HOME}
    assert network.publish("guest", "farm/1/soil") == {"guest": 1, "1": 1, "0": 1}
    network.subscribe("guest", "farm/1/soil")
    network.subscribe("guest", "home/2/#")
    network.run(2)
    assert known(network, "guest") == {*FARM, "home/2/#"}, "that one is its own"
    assert network.publish("0", "farm/1/soil") == {"guest": 1, "1": 1, "0": 1}
    for number, topic_filter in enumerate((*FARM, *HOME)):
        network.unsubscribe(str(number % 2), topic_filter)
    network.run(20)
    assert known(network, "guest") == {"farm/1/soil", "home/2/#"}


def test_long_lists_are_asked_for_in_part_too() -> None:
    network = Network([("0", "1"), ("1", "guest"), ("guest", "far")], rights={("1", "guest"): of_farm})
    for number in range(300):
        network.subscribe("0", f"farm/{number}/{'x' * 100}")
        network.subscribe("0", f"home/{number}/{'x' * 100}")
    network.run(10)
    assert len(known(network, "guest")) == len(known(network, "far")) == 300
    assert network.sent[MeshKind.PART_LIST] > 0
    for number in range(300):
        network.unsubscribe("0", f"farm/{number}/{'x' * 100}")
    network.run(10)
    assert known(network, "guest") == known(network, "far") == set()


def test_whoever_hears_of_all_elsewhere_keeps_all() -> None:
    """The way by the guest is shorter, and comes first."""
    links = [("0", "guest"), ("guest", "far"), ("0", "1"), ("1", "2"), ("2", "far")]
    network = Network(links, rights={("0", "guest"): of_farm})
    for topic_filter in (*FARM, *HOME):
        network.subscribe("0", topic_filter)
        network.run(6)
    assert known(network, "far") == {*FARM, *HOME}
    assert known(network, "guest") >= set(FARM)
    network.cut("2", "far")
    network.unsubscribe("0", "farm/2/#")
    network.run(30)
    assert known(network, "far") == known(network, "guest") == set(FARM) - {"farm/2/#"}
    network.join("2", "far")
    network.run(30)
    assert known(network, "far") == {*FARM, *HOME} - {"farm/2/#"}


def test_parents_hear_of_no_memberships_that_they_may_not_know_of() -> None:
    """Both want the same, and the guest announces it: it is the core, which has the smaller id."""
    links = [("0", "5"), ("5", "6"), ("6", "7"), ("0", "7")]
    network = Network(links, rights={("5", "0"): of_farm, ("7", "0"): of_farm})
    network.subscribe("6", "home/#")
    network.subscribe("5", "home/#")
    network.subscribe("6", "farm/#")
    network.subscribe("0", "farm/#")
    network.run(10)
    assert known(network, "0") == {"farm/#"}
    assert network.publish("0", "farm/1")["6"] >= 1
    assert network.publish("5", "home/1")["6"] >= 1


def test_rights_that_change() -> None:
    network = Network([("0", "1"), ("1", "guest")], rights={("1", "guest"): of_farm})
    for topic_filter in (*FARM, *HOME):
        network.subscribe("0", topic_filter)
    network.run(2)
    network.nodes["1"].set_rights("guest", lambda topic_filter: topic_filter in HOME, network.now)
    network.run(10)
    assert known(network, "guest") == set(HOME)
    network.nodes["1"].set_rights("guest", None, network.now)
    network.run(10)
    assert known(network, "guest") == {*FARM, *HOME}
    network.nodes["1"].set_rights("guest", of_farm, network.now)
    network.subscribe("0", "home/new")
    network.run(10)
    assert known(network, "guest") == set(FARM)


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_with_guests(seed: int) -> None:
    """Nodes that have a way without such rules know of all; guests of theirs; and nothing stays for ever."""
    random = Random(seed)
    members = random.randrange(3, 7)
    links = random_graph(random, members, 3)
    guests = [f"guest{number}" for number in range(2)]
    hosts = {guest: {str(random.randrange(members)) for _ in range(2)} for guest in guests}
    rights = {(host, guest): of_farm for guest in guests for host in hosts[guest]}
    links += [(host, guest) for host, guest in rights]
    network = Network(links, seed=seed, rights=rights, delay_s=lambda: 0.001 + 0.05 * random.random())
    wanted: list[tuple[str, str]] = []
    for _ in range(25):
        if wanted and random.random() < 0.3:
            network.unsubscribe(*wanted.pop(random.randrange(len(wanted))))
        else:
            one = str(random.randrange(members)), random.choice((*FARM, *HOME))
            if one not in wanted:
                wanted.append(one)
                network.subscribe(*one)
        network.run(random.random())
        for guest in guests:
            assert known(network, guest) <= set(FARM)
    network.run(20)
    everything = {topic_filter for _, topic_filter in wanted}
    for node in map(str, range(members)):
        assert known(network, node) == everything
    for guest in guests:
        assert known(network, guest) == everything & set(FARM)
    for one in wanted:
        network.unsubscribe(*one)
    network.run(40)
    assert [known(network, node) for node in network.nodes] == [set()] * len(network.nodes)


GUEST = """
user guest
topic readwrite $hedgerow/bridge
topic read farm/#
topic write up/#
user other
topic readwrite $hedgerow/bridge
topic readwrite #
"""


def filters_of(node: Node) -> set[str]:
    return {each.topic_filter for each in node.federation.federator.describe()}


@pytest.mark.parametrize("dials", [True, False])
def test_rights_are_those_of_the_neighbours_user(dials: bool) -> None:
    """Of one that this node dialled nothing is asked: it is a part of the fabric."""
    fabric = Fabric()
    hub = fabric.add("x", *(() if dials else ("y",)), access=Access(Acl.parse(GUEST, "acl")))
    guest = fabric.add("y", *(("x",) if dials else ()), username="guest")
    fabric.settle_links()
    topics = ("home/safe", "farm/1", "up/1")
    inboxes = {topic: Inbox(hub, topic, username="other") for topic in topics}
    for topic, inbox in inboxes.items():
        inbox.subscribe(topic)
    fabric.advance(1)
    assert filters_of(guest) == ({"farm/1", "up/1"} if dials else set(topics))
    guest.publish("up/1", b"1")
    fabric.wait_for(lambda: inboxes["up/1"].payloads == [b"1"], 5)
    if dials:
        hub.broker.set_access(Access(Acl.parse(GUEST.replace("farm/#", "home/#"), "acl")))
        hub.federation.rights_changed()
        fabric.wait_for(lambda: filters_of(guest) == {"home/safe", "up/1"}, 5)
