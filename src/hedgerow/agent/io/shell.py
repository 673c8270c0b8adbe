"""The topology machine on real brokers: a connection to each, drivers that do what it says, one timer.

Whatever a connection hears goes to the machine, and after it `_step` takes what the machine has to say:
probes, its announcement, commands, events.
"""

from __future__ import annotations

import asyncio
import secrets
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.agent.agent import Action, Agent, BridgeCommand
from hedgerow.agent.events import AgentEvent, BrokerLost
from hedgerow.agent.io.broker_list import BrokerEntry
from hedgerow.agent.io.connection import VERSION_TOPIC, BrokerConnection
from hedgerow.agent.io.drivers import (
    BridgeState,
    Driver,
    DriverContext,
    WatchedBroker,
    choose_driver,
    read_version,
)
from hedgerow.agent.io.events import (
    AgentBridgeDown,
    AgentBridgeGone,
    AgentBridgeUp,
    BrokerKnown,
    BrokerRefuses,
    CommandRefused,
    CommandSent,
    ShellEvent,
)
from hedgerow.agent.io.sections import BridgeSettings, mirrored
from hedgerow.agent.io.table import make_drivers
from hedgerow.agent.plan import BrokerLink, Ghosts, Topology, TopologyPlan, link_between, plan
from hedgerow.bridges.fabric_key import Envelopes, FabricKey
from hedgerow.errors import ConfigError
from hedgerow.node.clock import SteadyClock

# Of a probe interval: a timer that comes later than this tells that the process did not run.
STALL_SHARE = 0.5
# A broker that says nothing of its version by then is taken for one that never does.
ANSWERS_WITHOUT_VERSION = 3


@dataclass(frozen=True, slots=True)
class AgentSettings:
    agent_id: str
    topology: Topology
    ghosts: Ghosts = Ghosts.DELETE
    probe_interval_s: float = 0.5
    missed_probes: int = 3
    bridges: BridgeSettings = field(default_factory=BridgeSettings)
    data: Path | None = None
    is_once: bool = False
    """The agent will not stay: bridges that would end with it are not made."""
    key: bytes | None = field(default=None, repr=False)
    """That all agents share: only what its holders announce counts."""
    is_silent: bool = False
    """Watch alone: give no commands, and do not tell other agents of this one, nor listen to them."""


class AgentShell:
    """`start` it in a running loop. `on_event` gets each event with its time."""

    def __init__(
        self,
        settings: AgentSettings,
        entries: Sequence[BrokerEntry],
        on_event: Callable[[AgentEvent | ShellEvent, float], None],
        make: Callable[[DriverContext], list[Driver]] = make_drivers,
    ) -> None:
        self.settings = settings
        self.clock = SteadyClock()
        self.brokers: dict[str, WatchedBroker] = {}
        self.agent = Agent(
            settings.agent_id,
            (),
            settings.topology,
            self.clock(),
            ghosts=settings.ghosts,
            probe_interval_s=settings.probe_interval_s,
            missed_probes=settings.missed_probes,
        )
        key = settings.key
        self._envelopes = None if key is None else Envelopes(FabricKey(key), secrets.randbits(64))
        self._on_event = on_event
        context = DriverContext(settings.bridges, settings.data, self._emit, self._report_of)
        self._drivers = make(context)
        self._reported: dict[str, dict[str, BridgeState]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._stalled_s = 0.0
        self._stands_by = False
        self._changed = asyncio.Event()
        self._entries = list(entries)
        self.unmade: BrokerLink | None = None
        """A bridge that was not made because it would have ended with this agent."""
        self._redirected: dict[tuple[str, str], str] = {}
        self._is_stepping = False
        self._is_stopped = False

    def start(self) -> None:
        for entry in self._entries:
            self._add(entry, None)
        self._step()

    async def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(
            *(broker.connection.stop() for broker in self.brokers.values()),
            *(driver.stop() for driver in self._drivers),
        )

    def discover(self, entry: BrokerEntry) -> None:
        """A broker was found. Those that were given are the lowest, the discovered are ranked by their ids,
        so that every agent that finds the same ones ranks them alike."""
        known = self.brokers.get(entry.id)
        if known is None:
            given = len(self._entries)
            rank = given + bisect(self.agent.brokers[given:], entry.id)
            self._add(entry, rank)
        elif entry.address != known.entry.address and entry.id not in self.agent.alive:
            # While it answers where it was, someone else announces the same name.
            known.entry = entry
            known.connection.move(entry)
            for near in self.agent.alive if self.agent.is_acting else ():
                self._redirect(self.brokers[near], known)
        self._step()

    def _add(self, entry: BrokerEntry, rank: int | None) -> None:
        self.agent.add_broker(entry.id, rank)
        if entry.id in self.agent.brokers:
            settings = self.settings
            connection = BrokerConnection(
                entry,
                settings.agent_id,
                self,
                settings.probe_interval_s,
                self.agent.detection_s,
                self._envelopes,
            )
            self.brokers[entry.id] = WatchedBroker(entry, connection)
            connection.start()

    # What people ask

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Until it holds, looking after every input; False when the time is over first."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    @property
    def is_informed(self) -> bool:
        """Every broker has answered, and said which bridges it has."""
        return all(broker_id in self._reported for broker_id in self.brokers)

    def plan(self) -> TopologyPlan:
        """What would be done, if what is known now were all."""
        existing = [(near, far) for near, bridges in self._reported.items() for far in bridges]
        brokers, alive = self.agent.brokers, self.agent.alive
        settings = self.settings
        return plan(settings.topology, brokers, alive, self.agent.cut, existing, settings.ghosts)

    # In, from connections

    def receive_answer(self, broker: str) -> None:
        self.brokers[broker].answers += 1
        self.agent.receive_answer(broker, self._now())
        self._report(self.brokers[broker])

    def receive_refused(self, broker: str) -> None:
        self.agent.receive_refused(broker, self._now())
        self._step()

    def receive_announcement(self, agent_id: str) -> None:
        if not self.settings.is_silent:
            self.agent.receive_announcement(agent_id, self._now())
            self._step()

    def receive_system(self, broker: str, topic: str, payload: bytes) -> None:
        known = self.brokers[broker]
        if topic == VERSION_TOPIC:
            self._receive_version(known, payload)
        elif sum(driver.receive_system(known, topic, payload) for driver in self._drivers):
            self._report(known)

    def receive_complete(self, broker: str) -> None:
        self.brokers[broker].is_complete = True
        self._report(self.brokers[broker])

    def receive_stray(self, broker: str, token: str) -> None:
        """One broker was given under two names, such as `localhost` and `127.0.0.1`. A bridge between them
        would lead from the broker to itself."""
        twins = [each for each in self.agent.brokers if self.brokers[each].connection.token == token]
        if twins and twins[0] != broker:
            first, second = sorted((broker, twins[0]), key=self.agent.brokers.index)
            self.brokers[second].connection.leave(f"it is the same broker as {first}")
            self.receive_refused(second)

    def receive_lost(self, broker: str) -> None:
        known = self.brokers[broker]
        known.is_complete = False
        known.answers = 0
        self._redirected = {pair: told for pair, told in self._redirected.items() if pair[0] != broker}
        for driver in self._drivers:
            driver.forget(known)
        self.agent.receive_closed(broker, self._now())
        self._step()

    def receive_problem(self, broker: str, reason: str) -> None:
        self._emit(BrokerRefuses(broker, reason))

    def _receive_version(self, broker: WatchedBroker, payload: bytes) -> None:
        text = payload.decode(errors="replace")[:100]
        found = read_version(text)
        if found is not None and found != (broker.product, broker.version):
            broker.product, broker.version = found
            self._emit(BrokerKnown(broker.id, text))
            self._report(broker)

    def _report_of(self, broker: str) -> None:
        self._report(self.brokers[broker])

    def _report(self, broker: WatchedBroker) -> None:
        """Tell the machine of all bridges of a broker, once they are all known."""
        if self._is_stopped:
            return
        is_known = broker.kind != "" or broker.answers >= ANSWERS_WITHOUT_VERSION
        if broker.is_complete and is_known and broker.id in self.agent.alive:
            if not (self.settings.is_silent or self.settings.is_once):
                for driver in self._drivers:
                    driver.prepare(broker)
            bridges = {far: state for each in self._drivers for far, state in each.bridges(broker).items()}
            before = self._reported.get(broker.id)
            if bridges != before:
                self._reported[broker.id] = bridges
                for event in _differences(broker.id, before or {}, bridges):
                    self._emit(event)
                is_up = {far: state.is_up for far, state in bridges.items()}
                self.agent.receive_bridges(broker.id, is_up, self._now())
        self._step()

    # Out, after every input

    def _step(self) -> None:
        if self._is_stopped or self._is_stepping:
            return
        self._is_stepping = True
        try:
            self._take()
        finally:
            self._is_stepping = False
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(0.0, self.agent.deadline - self._now())
        self._timer_at = self.clock() + wait_s
        self._timer = self._loop.call_later(wait_s, self._handle_timer)
        self._changed.set()

    def _now(self) -> float:
        """The machine's time. While this process was stopped it stood still: that nobody was heard meanwhile
        says nothing of them, and an agent that took them for dead would take down what it carries."""
        now = self.clock()
        late_s = now - self._timer_at
        if late_s > STALL_SHARE * self.settings.probe_interval_s:
            self._stalled_s += late_s
            self._timer_at = now
        return now - self._stalled_s

    def _handle_timer(self) -> None:
        self.agent.handle_timer(self._now())
        self._step()

    def _take(self) -> None:
        while events := self.agent.take_events():
            for event in events:
                self._on_event(event, self.clock())
                if isinstance(event, BrokerLost):
                    self._reported.pop(event.broker, None)
        if self.agent.is_standing_by is not self._stands_by:
            self._stands_by = self.agent.is_standing_by
            if self._stands_by:
                for driver in self._drivers:
                    driver.stand_by()
        for broker in self.agent.take_probes():
            self.brokers[broker].connection.probe()
        announcement = self.agent.take_announcement()
        commands = self.agent.take_commands()
        if self.settings.is_silent:
            return
        if announcement is not None:
            for known in self.brokers.values():
                known.connection.announce(announcement)
        for command in commands:
            self._execute(command)
        if self.agent.is_acting:
            self._redirect_all()

    def _execute(self, command: BridgeCommand) -> None:
        near, far = self.brokers[command.broker], self.brokers[command.far]
        action = command.action.value
        if command.action is Action.CREATE:
            driver, near, far = choose_driver(self._drivers, near, far)
            if driver.ends_with_agent and self.settings.is_once:
                self.unmade = BrokerLink(command.broker, command.far)
                return
            self._emit(CommandSent(action, near.id, far.id, driver.name))
            topics = self.settings.bridges.topics
            if near.id != command.broker:
                topics = tuple(map(mirrored, topics))
            try:
                driver.create(near, far, topics)
            except ConfigError as error:
                self._emit(CommandRefused(near.id, far.id, str(error)))
            return
        for driver in self._drivers:
            if far.id in driver.bridges(near):
                self._emit(CommandSent(action, near.id, far.id, driver.name))
                driver.delete(near, far.id)

    def _redirect_all(self) -> None:
        """What leads to where its far end no longer is, as after a change of the list, would wait there for
        ever."""
        for near, bridges in list(self._reported.items()):
            for far, state in bridges.items():
                address = str(self.brokers[far].entry.far_address) if far in self.brokers else ""
                told = self._redirected.get((near, far))
                if state.address and address and address not in (state.address, told):
                    self._redirected[near, far] = address
                    self._redirect(self.brokers[near], self.brokers[far])

    def _redirect(self, near: WatchedBroker, far: WatchedBroker) -> None:
        topics = self.settings.bridges.topics
        if link_between(self.agent.brokers, near.id, far.id).lower != near.id:
            topics = tuple(map(mirrored, topics))
        for driver in self._drivers:
            if far.id in driver.bridges(near):
                self._emit(CommandSent("redirect", near.id, far.id, driver.name))
                try:
                    driver.create(near, far, topics)
                except ConfigError as error:
                    self._emit(CommandRefused(near.id, far.id, str(error)))

    def _emit(self, event: ShellEvent) -> None:
        self._on_event(event, self.clock())


def _differences(
    broker: str, before: dict[str, BridgeState], after: dict[str, BridgeState]
) -> Iterable[ShellEvent]:
    for far, state in after.items():
        if state.is_told_twice:
            continue
        was_up = far in before and before[far].is_up
        if state.is_up and not was_up:
            yield AgentBridgeUp(broker, far)
        elif not state.is_up and was_up:
            yield AgentBridgeDown(broker, far, state.reason)
    for far in before.keys() - after.keys():
        if not before[far].is_told_twice:
            yield AgentBridgeGone(broker, far)
