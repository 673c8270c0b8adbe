"""Machines on virtual links: what arrives and when, what they are told of their neighbours and when."""

from __future__ import annotations

from random import Random

import pytest

from hedgerow_workshop.sim.links import VirtualConditions
from hedgerow_workshop.sim.network import MAX_RINGS_AT_ONCE, Network, Packets, SimulationError
from hedgerow_workshop.sim.topologies import random_regular
from tests.workshop.sim.flooding import Flooder, line


def say(network: Network[Flooder], name: str, data: bytes) -> None:
    network.tell(name, lambda machine, now: machine.say(data, now))


def heard(network: Network[Flooder], name: str) -> dict[bytes, float]:
    return network.nodes[name].machine.heard


def told(network: Network[Flooder], name: str) -> list[tuple[float, str, bool]]:
    return [(round(at, 6), other, up) for at, other, up in network.nodes[name].machine.told]


def test_a_packet_takes_the_delay_of_each_link() -> None:
    network = line("a", "b", "c")
    network.run(1)
    say(network, "a", b"x")
    network.run(2)
    assert heard(network, "c")[b"x"] == pytest.approx(1.2)
    assert network.packets == Packets(sent=2, arrived=2)


def test_directions_have_conditions_of_their_own() -> None:
    network = Network(Flooder, Random(1))
    network.add("a")
    network.add("b")
    network.join("a", "b", VirtualConditions(delay_s=0.1), VirtualConditions(delay_s=0.4))
    network.run(1)
    say(network, "a", b"there")
    say(network, "b", b"back")
    network.run(2)
    assert heard(network, "b")[b"there"] == pytest.approx(1.1)
    assert heard(network, "a")[b"back"] == pytest.approx(1.4)
    network.change("b", "a", delay_s=0.2)
    say(network, "b", b"faster")
    network.run(3)
    assert heard(network, "a")[b"faster"] == pytest.approx(2.2)


def test_jitter_is_bounded_and_keeps_the_order() -> None:
    network = line("a", "b", conditions=VirtualConditions(delay_s=0.1, jitter_s=0.1))
    network.run(1)
    for number in range(100):
        say(network, "a", bytes([number]))
    network.run(2)
    arrivals = heard(network, "b")
    assert list(arrivals) == [bytes([number]) for number in range(100)]
    assert 1.1 <= arrivals[bytes([0])] <= arrivals[bytes([99])] <= 1.2
    assert len(set(arrivals.values())) > 2


def test_loss_takes_its_share() -> None:
    network = line("a", "b", conditions=VirtualConditions(loss=0.3))
    network.run(1)
    for number in range(1000):
        say(network, "a", number.to_bytes(2))
    network.run(2)
    assert 600 < len(heard(network, "b")) < 800
    assert network.packets.lost == 1000 - len(heard(network, "b"))


@pytest.mark.parametrize("conditions", [{"delay_s": -1.0}, {"jitter_s": -1.0}, {"loss": 1.1}])
def test_impossible_conditions_are_refused(conditions: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no link can be like this"):
        VirtualConditions(**conditions)


def test_a_cut_is_noticed_by_both_ends_when_a_probe_would() -> None:
    network = line("a", "b")
    network.run(1)
    network.cut("a", "b")
    say(network, "a", b"into the dark")
    network.run(5)
    assert told(network, "a") == [(0.01, "b", True), (2.0, "b", False)]
    assert told(network, "b") == [(0.01, "a", True), (2.0, "a", False)]
    network.restore("a", "b")
    network.run(6)
    assert told(network, "b")[2:] == [(5.01, "a", True)]
    say(network, "a", b"seen")
    network.run(7)
    assert list(heard(network, "b")) == [b"seen"]


def test_a_cut_of_one_direction_takes_the_connection_too() -> None:
    network = line("a", "b")
    network.run(1)
    network.cut("a", "b", one_way=True)
    say(network, "a", b"there")
    say(network, "b", b"back")
    network.run(5)
    assert list(heard(network, "a")) == [b"there", b"back"]
    assert list(heard(network, "b")) == [b"back"]
    assert told(network, "a")[1:] == [(2.0, "b", False)]


def test_a_cut_shorter_than_the_detection_is_never_noticed() -> None:
    network = line("a", "b")
    network.run(1)
    network.cut("a", "b")
    say(network, "a", b"lost")
    network.run(1.5)
    network.restore("a", "b")
    say(network, "a", b"seen")
    network.run(5)
    assert len(told(network, "a")) == len(told(network, "b")) == 1
    assert list(heard(network, "b")) == [b"seen"]


def test_what_is_on_its_way_is_lost_in_a_cut() -> None:
    network = line("a", "b")
    network.run(1)
    say(network, "a", b"on its way")
    network.cut("a", "b")
    network.run(5)
    assert not heard(network, "b")


def test_a_killed_node_is_missed_at_once_after_what_it_had_sent() -> None:
    network = line("a", "b", "c")
    network.run(1)
    say(network, "b", b"last words")
    network.kill("b")
    network.run(5)
    assert told(network, "a")[1:] == [(1.1, "b", False)]
    assert list(heard(network, "c")) == [b"last words"]
    network.tell("a", lambda machine, now: machine.send("b", b"to nobody"))
    assert network.packets.unsent == 1


def test_a_silent_node_is_missed_when_a_probe_would() -> None:
    network = line("a", "b")
    network.run(1)
    network.kill("b", silent=True)
    network.run(5)
    assert told(network, "a")[1:] == [(2.0, "b", False)]


def test_a_node_that_returns_is_a_new_machine_with_new_connections() -> None:
    network = line("a", "b")
    network.run(1)
    say(network, "a", b"before")
    network.run(2)
    network.kill("b")
    network.run(3)
    network.bring_back("b")
    network.run(4)
    assert told(network, "a")[1:] == [(2.1, "b", False), (3.01, "b", True)]
    assert told(network, "b") == [(3.01, "a", True)]
    assert not heard(network, "b")


def test_a_return_before_the_silence_was_noticed_is_a_loss_and_a_return() -> None:
    network = line("a", "b")
    network.run(1)
    network.kill("b", silent=True)
    network.run(1.5)
    say(network, "a", b"to the old one")
    network.bring_back("b")
    network.run(5)
    assert told(network, "a")[1:] == [(1.51, "b", False), (1.51, "b", True)]
    assert told(network, "b") == [(1.51, "a", True)]
    assert not heard(network, "b")


def test_when_both_ends_returned_unnoticed_neither_is_told_of_a_loss() -> None:
    network = line("a", "b")
    network.run(1)
    for name in "ab":
        network.kill(name, silent=True)
    network.run(1.2)
    network.bring_back("a")
    network.run(1.3)
    network.bring_back("b")
    network.run(5)
    assert told(network, "a") == [(1.31, "b", True)]
    assert told(network, "b") == [(1.31, "a", True)]


def test_a_timer_rings_at_the_deadline_and_only_then() -> None:
    network = line("a")

    def set_deadline(at: float | None) -> None:
        def act(machine: Flooder, now: float) -> None:
            machine.deadline = at

        network.tell("a", act)

    rang = network.nodes["a"].machine.rang
    set_deadline(2)
    set_deadline(1)
    network.run(3)
    assert rang == [1]
    set_deadline(4)
    set_deadline(5)
    network.run(6)
    assert rang == [1, 5]
    set_deadline(7)
    set_deadline(None)
    network.run(8)
    assert rang == [1, 5]
    set_deadline(6)
    network.run(9)
    assert rang == [1, 5, 8]
    set_deadline(10)
    network.kill("a")
    network.run(11)
    assert rang == [1, 5, 8]


def test_a_machine_whose_timer_is_always_due_is_found_out() -> None:
    class Restless(Flooder):
        def handle_timer(self, now: float) -> None:
            self.rang.append(now)

    network = Network(Restless, Random(1))
    network.add("a").deadline = 1
    network.tell("a", lambda machine, now: None)
    with pytest.raises(SimulationError, match="a: its timer is always due, at 1"):
        network.run(2)
    assert len(network.nodes["a"].machine.rang) == MAX_RINGS_AT_ONCE + 1


def test_misuse_raises_at_once() -> None:
    network = line("a", "b")
    with pytest.raises(SimulationError, match="there is a node a already"):
        network.add("a")
    for a, b in (("a", "a"), ("b", "a")):
        with pytest.raises(SimulationError, match="cannot be joined"):
            network.join(a, b, VirtualConditions())
    with pytest.raises(SimulationError, match="a lives"):
        network.bring_back("a")
    network.kill("a")
    with pytest.raises(SimulationError, match="a is dead already"):
        network.kill("a")


def flood(seed: int) -> list[tuple[str, str, bytes]]:
    """All packets of a network with jitter, loss and a death, in order."""
    random = Random(seed)
    edges = random_regular(300, random)
    network = Network(Flooder, random)
    sent: list[tuple[str, str, bytes]] = []
    network.watch = lambda *packet: sent.append(packet)
    for node in range(300):
        network.add(str(node))
    for a, b in edges:
        network.join(str(a), str(b), VirtualConditions(jitter_s=0.01, loss=0.01))
    network.run(1)
    for node in range(5):
        say(network, str(node), bytes([node]))
    network.kill("100")
    network.run(2)
    return sent


def test_a_run_is_a_function_of_its_seed() -> None:
    assert flood(1) == flood(1)
    assert flood(1) != flood(2)
