"""Brokers, bridges and agents in simulated time: brokers die and return, pairs are cut silently, commands are
lost, agents come and go. Every deletion is checked for not parting the network as it is done."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hedgerow.agent.agent import Action, Agent, BridgeCommand
from hedgerow.agent.plan import BrokerLink, Ghosts, TopologyPlan, link_between, parse_topology, plan
from tests.agent.checks import Pair, groups

STEP_S = 0.05
CONNECT_S = 0.1
SILENCE_S = 1.5  # until a bridge notices that its far side is cut off; one that died resets the connection
REPORT_S = 0.5


class Simulation:
    def __init__(
        self, random: Random, size: int, topology: str, ghosts: Ghosts = Ghosts.DELETE, loss: float = 0.0
    ) -> None:
        self.random = random
        self.topology = parse_topology(topology)
        self.ghosts = ghosts
        self.loss = loss
        self.brokers = [f"b{number}" for number in range(1, size + 1)]
        self.alive = set(self.brokers)
        self.cut: set[BrokerLink] = set()
        self.agents: dict[str, Agent] = {}
        self.now = 0.0
        self.carried: dict[str, dict[str, bool]] = {broker: {} for broker in self.brokers}
        self.done: list[BridgeCommand] = []
        """Commands that changed something."""
        self._turns_at: dict[tuple[str, str], float] = {}  # when a bridge will know its new state
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def link(self, a: str, b: str) -> BrokerLink:
        return link_between(self.brokers, a, b)

    @property
    def existing(self) -> set[BrokerLink]:
        """What living brokers carry."""
        return {self.link(a, b) for a in self.alive for b in self.carried[a]}

    @property
    def carrying(self) -> set[Pair]:
        """The bridges over which messages pass."""
        return {
            self.link(a, b)
            for a in self.alive
            for b, is_up in self.carried[a].items()
            if is_up and self._can_reach(a, b)
        }

    @property
    def is_connected(self) -> bool:
        """As far as it can be."""
        possible = {(a, b) for a in self.alive for b in self.alive if a != b and self._can_reach(a, b)}
        return groups(self.alive, self.carrying) == groups(self.alive, possible)

    def plan(self) -> TopologyPlan:
        """What would have to be done, to someone who knows all."""
        return plan(self.topology, self.brokers, self.alive, self.cut, self.existing, self.ghosts)

    def start_agent(self, agent_id: str) -> None:
        self.agents[agent_id] = Agent(agent_id, self.brokers, self.topology, self.now, ghosts=self.ghosts)

    def run(self, seconds: float, check: Callable[[], None] = lambda: None) -> None:
        end_at = self.now + seconds
        while self.now < end_at:
            self._step()
            check()

    def run_until(self, condition: Callable[[], bool], within_s: float) -> float:
        """How long it took."""
        start_at = self.now
        while not condition():
            assert self.now < start_at + within_s, f"not within {within_s} s"
            self._step()
        return self.now - start_at

    def _step(self) -> None:
        self.now += STEP_S
        due = sorted((item for item in self._queue if item[0] <= self.now), key=lambda item: item[:2])
        self._queue = [item for item in self._queue if item[0] > self.now]
        for _, _, action in due:
            action()
        for broker in sorted(self.alive):
            if self._turn_bridges(broker) or self.now % REPORT_S < STEP_S:
                self._report(broker)
        for agent_id, agent in list(self.agents.items()):
            if agent.deadline <= self.now:
                agent.handle_timer(self.now)
                assert agent.deadline > self.now
            self._send(agent_id, agent)

    def _later(self, action: Callable[[], None], least_s: float = 0.0) -> None:
        self._count += 1
        self._queue.append((self.now + least_s + self.random.random() * STEP_S, self._count, action))

    def _said_to_be_up(self) -> set[Pair]:
        """Those that carry, and those cut so lately that nobody can know it."""
        return {
            self.link(a, b)
            for a in self.alive
            for b, is_up in self.carried[a].items()
            if is_up and b in self.alive
        }

    def _can_reach(self, a: str, b: str) -> bool:
        return a in self.alive and b in self.alive and self.link(a, b) not in self.cut

    def _turn_bridges(self, broker: str) -> bool:
        changed = False
        for far, is_up in self.carried[broker].items():
            key = (broker, far)
            if is_up == self._can_reach(broker, far):
                self._turns_at.pop(key, None)
                continue
            wait_s = (SILENCE_S if far in self.alive else 0.0) if is_up else CONNECT_S
            if self.now >= self._turns_at.setdefault(key, self.now + wait_s):
                del self._turns_at[key]
                self.carried[broker][far] = not is_up
                changed = True
        return changed

    def _report(self, broker: str) -> None:
        bridges = dict(self.carried[broker])
        for agent in self.agents.values():
            agent.receive_bridges(broker, bridges, self.now)

    def _send(self, agent_id: str, agent: Agent) -> None:
        def answer(broker: str) -> None:
            if broker in self.alive and self.agents.get(agent_id) is agent:
                agent.receive_answer(broker, self.now)

        def announce() -> None:
            for other in self.agents.values():
                other.receive_announcement(agent_id, self.now)

        for broker in agent.take_probes():
            # One answer in twenty is late by more than a probe's interval.
            late_s = 0.6 if self.random.random() < 0.05 else 0.0
            self._later(lambda broker=broker: answer(broker), late_s)  # type: ignore[misc]
        if agent.take_announcement() is not None:
            self._later(announce)
        for command in agent.take_commands():
            if self.random.random() >= self.loss:
                self._later(lambda command=command: self._do(command))  # type: ignore[misc]

    def _do(self, command: BridgeCommand) -> None:
        if command.broker not in self.alive:
            return
        bridges = self.carried[command.broker]
        if (command.far in bridges) == (command.action is Action.CREATE):
            return
        self.done.append(command)
        before = groups(self.alive, self._said_to_be_up())
        if command.action is Action.CREATE:
            bridges[command.far] = False
        else:
            del bridges[command.far]
            self._turns_at.pop((command.broker, command.far), None)
        if self.ghosts is not Ghosts.PUBLISHED:
            assert groups(self.alive, self._said_to_be_up()) == before, f"{command} parted the network"
        self._report(command.broker)
