"""One agent, step by step: whom it probes, who lives, what it commands, and when it leaves that to others."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hedgerow.agent import agent as agent_module
from hedgerow.agent.agent import MAX_AGENTS, MAX_BROKERS, Action, Agent, BridgeCommand
from hedgerow.agent.events import (
    ActingChanged,
    BrokerFound,
    BrokerLost,
    PairCut,
    PairRestored,
    Planned,
)
from hedgerow.agent.plan import BrokerLink, Ghosts, Topology, parse_topology, target_links

THREE = ["a", "b", "c"]


def create(broker: str, far: str) -> BridgeCommand:
    return BridgeCommand(Action.CREATE, broker, far)


def delete(broker: str, far: str) -> BridgeCommand:
    return BridgeCommand(Action.DELETE, broker, far)


class World:
    """An agent whose timers fire in time, and brokers that answer and report what they carry."""

    def __init__(self, topology: str = "line", ghosts: Ghosts = Ghosts.DELETE) -> None:
        self.agent = Agent("m", THREE, parse_topology(topology), 0.0, ghosts=ghosts)
        self.now = 0.0
        self.alive = set(THREE)
        self.carried: dict[str, dict[str, bool]] = {broker: {} for broker in THREE}
        self.commands: list[BridgeCommand] = []
        self.is_obeyed = True

    def run(self, seconds: float) -> list[BridgeCommand]:
        """The commands of that time."""
        end_at = self.now + seconds
        self.commands = []
        self._exchange()
        while self.agent.deadline <= end_at:
            assert self.agent.deadline > self.now or self.now == 0.0
            self.now = self.agent.deadline
            self.agent.handle_timer(self.now)
            self._exchange()
        self.now = end_at
        return self.commands

    def kill(self, broker: str) -> None:
        self.alive.remove(broker)
        for bridges in self.carried.values():
            if broker in bridges:
                bridges[broker] = False

    def _exchange(self) -> None:
        for broker in self.agent.take_probes():
            if broker in self.alive:
                self.agent.receive_answer(broker, self.now)
        for broker in self.alive & self.agent.alive:
            self.agent.receive_bridges(broker, self.carried[broker], self.now)
        for command in self.agent.take_commands():
            self.commands.append(command)
            if self.is_obeyed and command.action is Action.CREATE:
                self.carried[command.broker][command.far] = True
            elif self.is_obeyed:
                del self.carried[command.broker][command.far]


def test_the_lower_end_carries_and_nothing_is_done_before_all_had_time_to_answer() -> None:
    world = World()
    assert world.run(1.49) == []
    assert world.run(0.1) == [create("a", "b"), create("b", "c")]
    assert world.run(60.0) == []
    assert world.agent.is_acting


def test_probes_every_half_second() -> None:
    agent = Agent("m", THREE, parse_topology("star"), 0.0)
    assert agent.take_probes() == THREE
    agent.handle_timer(0.0)
    assert agent.take_probes() == THREE
    assert agent.deadline == 0.5
    agent.handle_timer(0.5)
    assert agent.take_probes() == THREE
    assert agent.take_probes() == []


def test_three_missed_probes_are_a_death_and_one_answer_is_a_life() -> None:
    world = World()
    world.run(3.1)
    world.agent.take_events()
    world.kill("b")
    world.run(1.3)
    assert world.agent.alive == set(THREE)
    assert world.run(0.2) == [create("a", "c"), delete("a", "b")]
    (lost,) = [event for event in world.agent.take_events() if isinstance(event, BrokerLost)]
    assert lost.broker == "b"
    assert lost.silent_s == pytest.approx(1.5)
    world.alive.add("b")
    assert world.run(1.0) == [create("a", "b"), delete("a", "c")]
    assert BrokerFound("b") in world.agent.take_events()


def test_answers_that_come_late_change_nothing() -> None:
    world = World()
    world.run(3.0)
    for _ in range(10):
        world.alive.remove("b")
        assert world.run(0.9) == []
        world.alive.add("b")
        assert world.run(0.6) == []
    assert not any(isinstance(event, BrokerLost) for event in world.agent.take_events())


def test_a_refused_connection_is_a_death_at_once() -> None:
    world = World()
    world.run(3.1)
    world.kill("b")
    world.agent.receive_refused("b", world.now)
    assert world.run(0.0) == [create("a", "c"), delete("a", "b")]


def test_what_closes_here_and_there_is_gone_at_once() -> None:
    world = World()
    world.run(3.1)
    world.agent.receive_closed("b", world.now)
    assert world.run(0.0) == [], "any reason may have closed one connection"
    world.kill("b")
    assert world.run(0.0) == [create("a", "c"), delete("a", "b")]
    world.alive.add("b")
    assert world.run(1.0) == [create("a", "b"), delete("a", "c")]


def test_the_other_way_round_too() -> None:
    world = World()
    world.run(3.1)
    world.kill("b")
    assert world.run(0.0) == [], "it may be the link between the two"
    world.agent.receive_closed("b", world.now)
    assert world.run(0.0) == [create("a", "c"), delete("a", "b")]


def test_an_answer_between_two_witnesses_takes_the_word_of_the_first_back() -> None:
    world = World()
    world.run(3.1)
    for _ in range(3):
        world.agent.receive_closed("b", world.now)
        world.run(0.5)
        assert world.agent.alive == set(THREE)
        world.carried["a"]["b"] = False
        assert world.run(0.0) == []
        world.run(0.05)
        world.agent.receive_answer("b", world.now)
        world.carried["a"]["b"] = True
        assert world.run(0.5) == []
    assert not any(isinstance(event, BrokerLost) for event in world.agent.take_events())


def test_ghosts_may_be_kept() -> None:
    world = World(ghosts=Ghosts.KEEP)
    world.run(3.0)
    world.kill("b")
    assert world.run(2.0) == [create("a", "c")]
    world.alive.add("b")
    world.carried["a"]["b"] = True
    assert world.run(1.0) == [delete("a", "c")]


def test_the_published_policy_breaks_before_it_makes_and_waits_for_its_ghosts() -> None:
    """Star: c goes, so a is linked to b; c returns, and its ghosts take their time (β)."""
    world = World("star", Ghosts.PUBLISHED)
    world.run(3.0)
    assert world.carried == {"a": {"c": True}, "b": {"c": True}, "c": {}}
    world.kill("c")
    assert world.run(2.0) == [create("a", "b")]
    assert world.carried["a"] == {"b": True, "c": False}
    world.alive.add("c")
    assert world.run(1.0) == [delete("a", "b")], "at once, though its ghosts are not up yet"
    assert world.run(600.0) == [], "nothing goes around a ghost that waits"
    assert world.agent.cut == frozenset()
    assert not world.agent.is_done
    world.carried["a"]["c"] = world.carried["b"]["c"] = True
    assert world.run(1.0) == []
    assert world.agent.is_done


def test_the_published_policy_removes_ghosts_that_cannot_serve_under_a_new_hub() -> None:
    """b and c go, so a has ghosts to both; c is back first, and the one to b goes."""
    world = World("star", Ghosts.PUBLISHED)
    world.run(3.0)
    world.kill("c")
    world.run(2.0)
    world.kill("b")
    assert world.run(2.0) == []
    assert world.carried["a"] == {"b": False, "c": False}
    world.carried["b"] = {}  # it was killed, and kept nothing
    world.alive.add("c")
    assert world.run(1.0) == [delete("a", "b")]
    world.alive.add("b")
    assert world.run(1.0) == [create("b", "c")], "by α alone"


def test_a_command_is_repeated_until_the_reports_confirm_it_and_ever_later() -> None:
    world = World()
    world.carried["a"] = {"b": True, "c": True}
    world.carried["b"] = {"c": True}
    world.is_obeyed = False
    times = [tick for tick in range(400) if world.run(0.1) == [delete("a", "c")]]
    assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx(
        [5, 10, 20, 40, 80, 80, 80], abs=1
    )
    assert world.agent.stats.repeated == 7
    world.is_obeyed = True
    world.run(8.1)
    assert world.run(60.0) == []


def test_a_bridge_that_cannot_be_made_counts_as_cut_and_is_tried_again() -> None:
    world = World()
    world.alive.remove("c")
    world.is_obeyed = False
    world.run(8.0)
    assert world.agent.cut == {("a", "b")}
    assert PairCut(BrokerLink("a", "b")) in world.agent.take_events()
    assert world.run(5.0) == []
    world.is_obeyed = True
    assert world.run(10.0) == [create("a", "b")]
    assert PairRestored(BrokerLink("a", "b")) in world.agent.take_events()


def test_a_bridge_that_is_up_to_a_broker_not_heard_is_left() -> None:
    world = World()
    world.run(3.0)
    world.alive.remove("b")
    assert world.run(5.0) == [create("a", "c")]
    world.carried["a"]["b"] = False
    assert world.run(0.5) == [delete("a", "b")]


def test_what_is_up_is_not_deleted_before_the_new_links_are_up() -> None:
    world = World("star")
    world.carried["a"]["b"] = True
    world.is_obeyed = False
    assert set(world.run(1.6)) == {create("a", "c"), create("b", "c")}
    world.carried["a"]["c"] = False
    world.carried["b"]["c"] = True
    assert world.run(0.5) == []
    world.carried["a"]["c"] = True
    assert world.run(0.4) == [delete("a", "b")]


def test_what_is_half_done_is_not_thought_over(monkeypatch: pytest.MonkeyPatch) -> None:
    decided_for: list[set[str]] = []

    def decide(
        topology: Topology, brokers: list[str], alive: frozenset[str], *known: set[BrokerLink]
    ) -> frozenset[BrokerLink]:
        decided_for.append(set(alive))
        return target_links(topology, brokers, alive, *known)

    monkeypatch.setattr(agent_module, "target_links", decide)
    world = World("ring")
    world.is_obeyed = False
    world.run(1.6)
    world.carried["a"]["c"] = True
    world.run(1.0)
    assert decided_for == [set(THREE)]
    world.kill("b")
    world.run(2.0)
    assert decided_for == [set(THREE), {"a", "c"}]


def test_it_is_done_when_the_reports_show_all_and_nothing_else() -> None:
    world = World("star")
    world.carried["a"]["b"] = True
    world.run(1.4)
    assert not world.agent.is_done
    world.run(1.5)
    assert world.agent.is_done
    assert world.carried == {"a": {"c": True}, "b": {"c": True}, "c": {}}
    world.carried["b"]["c"] = False
    world.run(0.0)
    assert not world.agent.is_done
    world.agent.receive_announcement("k", world.now)
    assert not world.agent.is_done, "what another agent wants is not known"


def test_a_broker_that_is_given_a_rank_takes_its_place() -> None:
    world = World("star")
    world.run(2.0)
    world.carried |= {"bb": {}, "d": {}}
    world.alive |= {"bb", "d"}
    world.agent.add_broker("bb", 2)
    assert world.agent.brokers == ("a", "b", "bb", "c")
    assert world.run(0.6) == [create("bb", "c")]
    world.agent.add_broker("d", 4)
    assert set(world.run(2.0)[:4]) == {create(lower, "d") for lower in ("a", "b", "bb", "c")}
    assert world.agent.is_done


def test_a_bridge_is_deleted_at_whoever_carries_it() -> None:
    world = World("line")
    world.carried["c"] = {"a": True, "b": True}
    assert world.run(2.0) == [create("a", "b"), delete("c", "a")]


def test_a_bridge_that_somebody_deletes_is_made_again() -> None:
    world = World()
    world.run(3.0)
    del world.carried["a"]["b"]
    assert world.run(0.5) == [create("a", "b")]


def test_only_the_lowest_agent_acts() -> None:
    world = World()
    world.agent.receive_announcement("z", 0.0)
    world.agent.receive_announcement("m", 0.0)
    for _ in range(10):
        world.agent.receive_announcement("k", world.now)
        assert world.run(1.0) == []
    assert not world.agent.is_acting
    assert world.run(0.6) == [create("a", "b"), create("b", "c")]
    world.agent.receive_announcement("k", world.now)
    assert not world.agent.is_acting
    acting = [event for event in world.agent.take_events() if isinstance(event, ActingChanged)]
    assert acting == [ActingChanged(True), ActingChanged(False)]


def test_an_agent_that_saw_nobody_lets_a_lower_one_be_heard_before_it_acts() -> None:
    world = World()
    world.run(1.5)
    world.agent.receive_announcement("a", 1.5)
    assert world.agent.is_standing_by
    world.alive.clear()
    world.run(5.0)
    assert not world.agent.alive
    world.alive.update(THREE)
    world.run(1.0)
    assert world.agent.alive == set(THREE)
    assert not world.agent.is_acting
    assert world.agent.is_standing_by
    world.run(1.5)
    assert world.agent.is_acting, "the other one is gone indeed"


def test_commands_that_were_not_taken_are_not_given_by_an_agent_that_stands_by() -> None:
    world = World()
    world.run(1.4)
    world.agent.handle_timer(1.5)
    world.agent.receive_announcement("k", 1.5)
    assert world.agent.take_commands() == []


def test_an_agent_announces_itself_when_it_knows_enough_to_act() -> None:
    world = World()
    world.run(1.4)
    assert world.agent.take_announcement() is None
    world.run(0.2)
    assert world.agent.take_announcement() == "m"
    assert world.agent.take_announcement() is None
    world.run(0.5)
    assert world.agent.take_announcement() == "m"
    world.alive.clear()
    world.run(2.5)
    world.agent.take_announcement()
    world.run(5.0)
    assert world.agent.take_announcement() is None, "it sees no broker, so others should act"
    assert not world.agent.is_acting


def test_a_broker_that_never_reports_holds_nothing_up_for_longer_than_the_detection_time() -> None:
    agent = Agent("m", ["a", "b"], parse_topology("line"), 0.0)
    for tick in range(16):
        agent.handle_timer(tick / 10)
        if tick >= 8:
            agent.receive_answer("b", tick / 10)
        agent.receive_answer("a", tick / 10)
        agent.receive_bridges("a", {}, tick / 10)
    assert agent.take_commands() == []
    agent.receive_answer("a", 2.2)
    agent.receive_answer("b", 2.2)
    assert agent.take_commands() == []
    agent.receive_answer("b", 2.31)
    assert agent.take_commands() == [create("a", "b")]


def test_discovered_brokers_are_the_highest() -> None:
    world = World("star")
    world.run(3.0)
    world.agent.add_broker("A")
    world.agent.add_broker("A")
    assert world.agent.brokers == ("a", "b", "c", "A")
    world.alive.add("A")
    world.carried["A"] = {}
    commands = world.run(0.1)
    assert commands[0].far == "A"
    assert BrokerFound("A") in world.agent.take_events()
    assert {command.far for command in commands if command.action is Action.CREATE} == {"A"}


def test_strangers_and_floods_are_dropped_and_counted() -> None:
    world = World()
    world.run(3.0)
    agent = world.agent
    agent.receive_answer("x", 3.0)
    agent.receive_refused("x", 3.0)
    agent.receive_bridges("x", {"a": True}, 3.0)
    agent.receive_bridges("a", {"b": True, "x": True, "a": True}, 3.0)
    assert agent.stats.unknown_broker == 4
    assert agent.take_commands() == []
    assert agent.alive == set(THREE)
    for number in range(2 * MAX_AGENTS):
        agent.receive_announcement(f"a{number}", 3.0)
    assert agent.stats.refused == MAX_AGENTS
    for number in range(MAX_BROKERS):
        agent.add_broker(f"n{number}")
    assert len(agent.brokers) == MAX_BROKERS
    assert agent.stats.refused == MAX_AGENTS + len(THREE)


def test_events_read_well() -> None:
    world = World()
    world.run(2.0)
    lines = [str(event) for event in world.agent.take_events()]
    assert lines[:3] == ["broker a answers", "broker b answers", "broker c answers"]
    assert lines[3:] == ["this agent acts", "plan: create a – b, create b – c"]
    assert str(BrokerLost("b", 1.5)) == "broker b is gone: last heard 1.50 s ago"
    assert str(PairCut(BrokerLink("a", "b"))) == "a – b cannot be linked at present"
    assert str(PairRestored(BrokerLink("a", "b"))) == "a – b may be linked again"
    assert str(ActingChanged(False)) == "this agent stands by"
    assert Planned.level < BrokerLost.level
