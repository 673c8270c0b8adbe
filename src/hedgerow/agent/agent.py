"""The agent: watches brokers by probes and says which bridges to create and to delete.

A broker lives while it answers: it is dead when it was silent for as long as three probes take (the detection
time, 1.5 s unless told otherwise), when its host refuses the connection, or when two witnesses saw it close:
this agent's own connection has ended, and a bridge of another broker to it has gone down, with no answer
since. It lives again with its next answer. An answer that comes late once changes nothing.

Several agents may run. Each of them watches; only the lowest id that was heard within the detection time
acts. An agent announces itself once it has watched for the detection time, so that it never takes over
with half a picture, and only while it sees a broker at all.

What the network should be is decided when the living brokers or the cut pairs change, and then kept: what
is half done is finished, not thought over. A command is given until the brokers' reports show that it
was done, at growing intervals. A bridge that is up is not deleted before all that should be there are up,
so the agent never parts what it could leave connected; nor is one to a broker that only this agent does not
hear, as the bridge says that it lives.

That is ours. The published policy (`Ghosts.PUBLISHED`) knows brokers alone: a link is there once its bridge
exists, and what does not serve goes at once. So whoever has a ghost to a broker that returns is parted from
the others until the ghost has connected, and the agent does not go around it meanwhile.

The shell calls `receive_…` and `handle_timer` and then takes what there is to send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hedgerow.agent.events import (
    ActingChanged,
    AgentEvent,
    BrokerFound,
    BrokerLost,
    PairCut,
    PairRestored,
    Planned,
)
from hedgerow.agent.links import LinkWatch
from hedgerow.agent.plan import (
    BrokerLink,
    Ghosts,
    Topology,
    TopologyPlan,
    awaited_links,
    changes,
    link_between,
    target_links,
)

MAX_BROKERS = 64  # whoever can announce brokers could make every plan take seconds
MAX_AGENTS = 64  # made-up agents would fill the memory
MAX_BACK_OFF_S = 8.0
NEVER = float("inf")


class Action(Enum):
    CREATE = "create"
    DELETE = "delete"


class BridgeCommand(NamedTuple):
    """To `broker`: have a bridge to `far`, or have it no more. Doing it twice must be as doing it once."""

    action: Action
    broker: str
    far: str


@dataclass(slots=True)
class AgentStats:
    probes: int = 0
    commands: int = 0
    repeated: int = 0
    """Commands that were given before and not confirmed in time."""
    unknown_broker: int = 0
    """Answers and reports of, and bridges to, brokers that are not in the list."""
    refused: int = 0
    """Brokers and agents beyond a bound."""


@dataclass(slots=True)
class _Attempt:
    next_at: float
    back_off_s: float


class Agent:
    """`brokers` in the order of their discovery. `agent_id` must be this agent's alone."""

    def __init__(
        self,
        agent_id: str,
        brokers: Sequence[str],
        topology: Topology,
        now: float,
        *,
        ghosts: Ghosts = Ghosts.DELETE,
        probe_interval_s: float = 0.5,
        missed_probes: int = 3,
        connect_s: float = 3.0,
    ) -> None:
        self.stats = AgentStats()
        self.agent_id = agent_id
        self.topology = topology
        self.detection_s = probe_interval_s * missed_probes
        self.is_acting = False
        self._brokers: list[str] = []
        self._ghosts = ghosts
        self._interval_s = probe_interval_s
        self._settled_at = now + self.detection_s
        self._next_probe_at = now
        self._now = now
        self._heard_at: dict[str, float] = {}  # of brokers that live
        self._found_at: dict[str, float] = {}
        self._closed: set[str] = set()  # those that ended our connection and have not answered since
        self._dropped: set[str] = set()  # those to which a bridge went down, likewise
        self._carried: dict[str, dict[str, bool]] = {}  # broker → far end → is it up
        self._lower_agents: dict[str, float] = {}  # only they can keep this one from acting
        # The published agent looks at brokers, not at their bridges: no pair is ever cut.
        is_published = ghosts is Ghosts.PUBLISHED
        grace_s, connect_s = (NEVER, NEVER) if is_published else (probe_interval_s / 5, connect_s)
        self._watch = LinkWatch(grace_s, connect_s, self.detection_s)
        self._cut: frozenset[BrokerLink] = frozenset()
        self._decided_for: tuple[frozenset[str], frozenset[BrokerLink]] | None = None
        self._target: frozenset[BrokerLink] = frozenset()
        self._awaited: frozenset[BrokerLink] = frozenset()
        """Ghosts that the published policy keeps."""
        self._attempts: dict[BridgeCommand, _Attempt] = {}
        self._probes: list[str] = []
        self._commands: list[BridgeCommand] = []
        self._announces = False
        self._events: list[AgentEvent] = []
        for broker in brokers:
            self.add_broker(broker)

    @property
    def brokers(self) -> tuple[str, ...]:
        return tuple(self._brokers)

    @property
    def alive(self) -> frozenset[str]:
        return frozenset(self._heard_at)

    @property
    def cut(self) -> frozenset[BrokerLink]:
        """Pairs of living brokers that cannot be linked at present."""
        return self._cut

    @property
    def is_standing_by(self) -> bool:
        """Another agent acts."""
        return bool(self._lower_agents)

    @property
    def is_done(self) -> bool:
        """This agent acts, and the reports show all that it decided on."""
        if self._decided_for is None:
            return False
        is_up = self._bridges()
        return self._changes(is_up) == TopologyPlan() and all(is_up[link] for link in self._target)

    @property
    def deadline(self) -> float:
        """When `handle_timer` has something to do."""
        waits = [
            self._settled_at,
            self._watch.deadline(self._now),
            *(at + self.detection_s for at in self._heard_at.values()),
            *(at + self.detection_s for at in self._lower_agents.values()),
            *(attempt.next_at for attempt in self._attempts.values()),
            *(self._found_at[broker] + self.detection_s for broker in self._unreported()),
        ]
        return min(self._next_probe_at, *(at for at in waits if at > self._now), float("inf"))

    # In

    def add_broker(self, broker: str, rank: int | None = None) -> None:
        """One that was discovered: it is higher than all before it, unless its rank is given.

        Those from that rank on are one higher then; their order among themselves stays as it was.
        """
        if broker in self._brokers:
            return
        if len(self._brokers) >= MAX_BROKERS:
            self.stats.refused += 1
            return
        self._brokers.insert(len(self._brokers) if rank is None else rank, broker)
        self._probe([broker])

    def receive_answer(self, broker: str, now: float) -> None:
        """A probe came back."""
        if broker not in self._brokers:
            self.stats.unknown_broker += 1
            return
        if not self._heard_at:
            # Nobody could be heard before it, other agents neither.
            self._lower_agents = dict.fromkeys(self._lower_agents, now)
        if broker not in self._heard_at:
            self._found_at[broker] = now
            self._events.append(BrokerFound(broker))
        self._heard_at[broker] = now
        self._closed.discard(broker)
        self._dropped.discard(broker)
        self._decide(now)

    def receive_closed(self, broker: str, now: float) -> None:
        """Our connection to it has ended; that alone may have any reason."""
        self._closed.add(broker)
        self._weigh(broker, now)
        self._decide(now)

    def receive_refused(self, broker: str, now: float) -> None:
        """Nobody listens at its address: no need to wait for probes that cannot be answered."""
        if broker in self._heard_at:
            self._lose(broker, now)
        self._decide(now)

    def receive_bridges(self, broker: str, bridges: Mapping[str, bool], now: float) -> None:
        """All bridges that a broker carries: far end → is it up."""
        if broker not in self._heard_at:
            # What a dead broker was last heard to have says nothing; one that returns reports again.
            self.stats.unknown_broker += broker not in self._brokers
            return
        known = {far: is_up for far, is_up in bridges.items() if far in self._brokers and far != broker}
        self.stats.unknown_broker += len(bridges) - len(known)
        before, self._carried[broker] = self._carried.get(broker, {}), known
        for far in [far for far, is_up in known.items() if before.get(far) and not is_up]:
            self._dropped.add(far)
            self._weigh(far, now)
        self._decide(now)

    def receive_announcement(self, agent_id: str, now: float) -> None:
        """Another agent is there."""
        if agent_id >= self.agent_id:
            return
        if agent_id not in self._lower_agents and len(self._lower_agents) >= MAX_AGENTS:
            self.stats.refused += 1
            return
        self._lower_agents[agent_id] = now
        self._decide(now)

    def handle_timer(self, now: float) -> None:
        if now >= self._next_probe_at:
            self._next_probe_at = now + self._interval_s
            self._probe(self._brokers)
            self._announces = now >= self._settled_at and bool(self._heard_at)
        self._decide(now)

    # Out

    def take_probes(self) -> list[str]:
        """The brokers to probe now."""
        taken, self._probes = self._probes, []
        return taken

    def take_announcement(self) -> str | None:
        """What to tell the other agents, if it is time to."""
        announces, self._announces = self._announces, False
        return self.agent_id if announces else None

    def take_commands(self) -> list[BridgeCommand]:
        """In the order in which they are to be given."""
        taken, self._commands = self._commands, []
        return taken

    def take_events(self) -> list[AgentEvent]:
        taken, self._events = self._events, []
        return taken

    # Inside

    def _probe(self, brokers: Sequence[str]) -> None:
        self._probes += [broker for broker in brokers if broker not in self._probes]
        self.stats.probes += len(brokers)

    def _weigh(self, broker: str, now: float) -> None:
        """What closes here and there is gone: the next probe or refusal would only say it later."""
        if broker in self._closed & self._dropped and broker in self._heard_at:
            self._lose(broker, now)

    def _lose(self, broker: str, now: float) -> None:
        self._events.append(BrokerLost(broker, now - self._heard_at.pop(broker)))
        del self._found_at[broker]
        self._carried.pop(broker, None)

    def _unreported(self) -> list[str]:
        return [broker for broker in self._heard_at if broker not in self._carried]

    def _decide(self, now: float) -> None:
        """Whatever changed: who lives, who acts, what is cut, what should be, what to say."""
        self._now = now
        for broker in [b for b, heard_at in self._heard_at.items() if now >= heard_at + self.detection_s]:
            self._lose(broker, now)
        if self._heard_at:
            self._lower_agents = {
                agent_id: at for agent_id, at in self._lower_agents.items() if now < at + self.detection_s
            }
        acts = now >= self._settled_at and bool(self._heard_at) and not self._lower_agents
        if acts is not self.is_acting:
            self.is_acting = acts
            self._events.append(ActingChanged(acts))
        if not acts:
            self._decided_for = None
            self._target = frozenset()
            self._attempts.clear()
            self._commands.clear()
        is_up = self._bridges()
        self._observe_links(is_up, now)
        # Without its report a bridge that a broker has would be created a second time.
        if acts and not any(now < self._found_at[broker] + self.detection_s for broker in self._unreported()):
            self._decide_target(is_up, now)
            self._command(is_up, now)

    def _bridges(self) -> dict[BrokerLink, bool]:
        """Those that living brokers carry, and whether they are up."""
        found: dict[BrokerLink, bool] = {}
        for broker, bridges in self._carried.items():
            for far, is_up in bridges.items():
                link = link_between(self._brokers, broker, far)
                found[link] = is_up or found.get(link, False)
        return found

    def _observe_links(self, is_up: dict[BrokerLink, bool], now: float) -> None:
        self._probe(sorted(self._watch.observe(is_up, self._target, self._heard_at, now)))
        cut = self._watch.cut
        self._events += [PairCut(link) for link in sorted(cut - self._cut)]
        self._events += [
            PairRestored(link)
            for link in sorted(self._cut - cut)
            if link.lower in self._heard_at and link.higher in self._heard_at
        ]
        self._cut = cut

    def _decide_target(self, is_up: dict[BrokerLink, bool], now: float) -> None:
        world = (self.alive, self._cut)
        if world == self._decided_for:
            return
        self._decided_for = world
        target = target_links(self.topology, self._brokers, *world, is_up)
        if self._ghosts is Ghosts.PUBLISHED:
            self._awaited = awaited_links(self.topology, self._brokers, *world)
        if target != self._target:
            self._target = target
            self._events.append(Planned(self._changes(is_up)))
            # What is wanted from now on is given its time to come up.
            self._observe_links(is_up, now)

    def _changes(self, is_up: dict[BrokerLink, bool]) -> TopologyPlan:
        return changes(self._target, self._brokers, self.alive, self._cut, is_up, self._ghosts, self._awaited)

    def _command(self, is_up: dict[BrokerLink, bool], now: float) -> None:
        plan = self._changes(is_up)
        is_published = self._ghosts is Ghosts.PUBLISHED
        is_whole = is_published or all(is_up.get(link, False) for link in self._target)
        wanted = [BridgeCommand(Action.CREATE, link.lower, link.higher) for link in plan.create]
        wanted += [
            BridgeCommand(Action.DELETE, broker, far)
            for link in plan.delete
            if not is_up[link] or (is_whole and self._heard_at.keys() >= set(link))
            for broker, far in (link, link[::-1])
            if far in self._carried.get(broker, {})
        ]
        self._attempts = {command: at for command, at in self._attempts.items() if command in wanted}
        self._commands = [command for command in self._commands if command in wanted]
        for command in wanted:
            attempt = self._attempts.get(command)
            if attempt is None:
                attempt = self._attempts[command] = _Attempt(now, self._interval_s)
            elif now >= attempt.next_at:
                self.stats.repeated += 1
            if now >= attempt.next_at:
                attempt.next_at = now + attempt.back_off_s
                attempt.back_off_s = min(2 * attempt.back_off_s, MAX_BACK_OFF_S)
                self.stats.commands += 1
                if command not in self._commands:
                    self._commands.append(command)
