"""One run: brokers, links, clients and perhaps the agent are started, the timeline is carried out, and what
happened is written down.

    python -m hedgerow_workshop.lab.schmitt.run KIND MODE DEPARTURE SECONDS TIMELINE DIRECTORY

It says `ready` when the network is whole, and carries the timeline out once its standard input is closed. A
run is a process of its own, so that several can run side by side. It writes `record.json` into its
directory; when it fails it says why, in one line on standard error, and ends with status 1. All that it
started is ended.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import uvloop

from hedgerow.client.bus import Bus
from hedgerow.errors import HedgerowError
from hedgerow.node.clock import SteadyClock
from hedgerow_workshop.lab.harness.brokers import OURS
from hedgerow_workshop.lab.harness.programs import LabError, wait_until
from hedgerow_workshop.lab.schmitt.agent import AgentProgram, bridge_states
from hedgerow_workshop.lab.schmitt.brokers import Fleet, static_section
from hedgerow_workshop.lab.schmitt.clients import FIRST_TOPIC, BridgedClients, publish
from hedgerow_workshop.lab.schmitt.record import Departure, Mode, SchmittRecord, SchmittSpec, StepTaken
from hedgerow_workshop.lab.schmitt.timeline import GOES, RETURNS, Step, Timeline, read_timeline

FIRST_S = 20.0  # until every subscriber has heard the publisher
FIRST_INTERVAL_S = 0.05
QUIET_S = 0.5  # after the last message: what is doubled would come now


class BridgedRun:
    def __init__(self, spec: SchmittSpec, timeline: Timeline, seconds: float, directory: Path) -> None:
        self.record = SchmittRecord(spec, list(timeline.brokers), timeline.publisher, timeline.measured)
        self._spec = spec
        self._timeline = timeline
        self._seconds = seconds
        self._clock = SteadyClock()
        self._fleet = Fleet(spec.kind, list(timeline.brokers), directory, spec.departure)
        self._clients = BridgedClients(self.record, self._clock)
        self._agent = AgentProgram(directory / "agent")

    async def perform(self, begin: Callable[[], Awaitable[None]]) -> None:
        """`begin` returns when the timeline is to be carried out; the network is whole by then."""
        async with AsyncExitStack() as stack:
            # The brokers end first: a client would wait for the answer of one that is stopped.
            await stack.enter_async_context(self._clients)
            stack.enter_context(self._agent)
            await stack.enter_async_context(self._fleet)
            await self._start()
            publisher = await self._clients.connect(
                "publisher_1", self._fleet.brokers[self._timeline.publisher].url
            )
            await self._wait_until_whole(publisher)
            await begin()
            await self._carry_out(publisher)
            await self._settle()
            self.record.agent = self._agent.events()
            self.record.happened = seen_first(self.record.happened, self.record.agent)
            if self._spec.kind != OURS and self.record.agent:
                self.record.bridges = bridge_states(self.record.agent)  # its own processes carry them

    async def _start(self) -> None:
        is_static = self._spec.mode is Mode.STATIC
        await self._fleet.start(is_static)
        if not is_static:
            share = self._timeline.ghost_retry()
            retry_s = None if share is None else share * self._seconds
            self._agent.start(self._fleet, self._spec.mode, self._timeline.topology, retry_s)
        for name, broker in self._fleet.brokers.items():
            await self._clients.subscribe(name, broker.url)
        if is_static and self._spec.kind == OURS:
            *others, hub = self._timeline.brokers
            address = self._fleet.far_address(hub)
            for name in others:
                bind = f"bridge_bind_address {self._fleet.binds[name]}\n"
                await self._clients.command(name, static_section(name, hub, address) + bind)

    def _check(self) -> None:
        """Raise for whatever has ended that should run."""
        self._fleet.check()
        self._clients.check()
        if self._spec.mode is not Mode.STATIC and self._agent.has_ended:
            raise LabError(f"the agent ended: {self._agent.last_words()}")

    async def _wait_until_whole(self, publisher: Bus) -> None:
        give_up_at = time.monotonic() + FIRST_S
        subscribers = self._clients.subscribers.values()
        while deaf := [each.broker for each in subscribers if not each.heard_at]:
            self._check()
            if time.monotonic() > give_up_at:
                agent = "" if self._spec.mode is Mode.STATIC else f"; the agent: {self._agent.last_words()}"
                names = ", ".join(deaf)
                raise LabError(f"nothing reached the subscribers at {names} within {FIRST_S:g} s{agent}")
            await publisher.publish(FIRST_TOPIC, b"")
            await asyncio.sleep(FIRST_INTERVAL_S)

    async def _carry_out(self, publisher: Bus) -> None:
        record, timeline = self.record, self._timeline
        record.began_at = self._clock()
        publishing = asyncio.create_task(
            publish(publisher, record, self._clock, timeline.publish_interval_s, self._seconds)
        )
        try:
            for step in timeline.steps:
                early_s = self._head_start_s(step)
                await self._sleep_until(record.began_at + step.at * self._seconds - early_s)
                at = self._clock()
                if step.does == GOES:
                    self._fleet.take_away(step.broker)
                else:
                    await self._fleet.bring_back(step.broker)
                    at = self._clock()
                record.happened.append(StepTaken(step.name, at, step.broker, step.does))
            await publishing
        finally:
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing
        record.ended_at = self._clock()

    def _head_start_s(self, step: Step) -> float:
        """A broker that was killed is to take connections again at its time: it is started before that, by as
        long as it took the last time, and not in the first half of a stage."""
        if step.does == GOES or self._spec.departure is not Departure.KILL:
            return 0.0
        stage_s = self.record.began_at + step.at * self._seconds - self.record.happened[-1].at
        return min(self._fleet.start_s[step.broker], stage_s / 2)

    async def _sleep_until(self, at: float) -> None:
        while (wait_s := at - self._clock()) > 0:
            self._check()
            await asyncio.sleep(min(wait_s, 0.2))

    async def _settle(self) -> None:
        """Until all that was sent at QoS 1 has arrived where it is measured, and nothing more arrives
        anywhere; or until the time for it is over. Stock brokers do not promise as much."""
        subscribers = self._clients.subscribers
        measured, count = subscribers[self._timeline.measured], len(self.record.sent)

        def is_settled() -> bool:
            heard_at = max(each.heard_at for each in subscribers.values())
            is_complete = self._spec.kind != OURS or len(measured.numbers[1]) == count
            return is_complete and self._clock() > heard_at + QUIET_S

        await wait_until(is_settled, self._timeline.settle_s, self._check)


def seen_first(happened: Sequence[StepTaken], agent: Sequence[Mapping[str, Any]]) -> list[StepTaken]:
    """The steps, with a broker's return at the time at which the agent found it, if we saw it after that.

    On a busy machine we may see it last, and what the agent does then belongs to the return.
    """
    steps: list[StepTaken] = []
    for step in happened:
        since = steps[-1].at if steps else 0.0
        found = [
            float(event["time"])
            for event in agent
            if event["event"] == "broker_found"
            and event["broker"] == step.broker
            and since < event["time"] < step.at
        ]
        is_late = step.does == RETURNS and found
        steps.append(step._replace(at=min(found)) if is_late else step)
    return steps


async def perform(spec: SchmittSpec, timeline: Timeline, seconds: float, directory: Path) -> SchmittRecord:
    run = BridgedRun(spec, timeline, seconds, directory)
    task = asyncio.current_task()
    assert task is not None
    cancel: Callable[[], object] = task.cancel
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, cancel)
    await run.perform(_begin_together)
    return run.record


async def _begin_together() -> None:
    """Say that this run is ready, and wait until whoever started it closes our standard input."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    closed = loop.create_future()
    loop.add_reader(sys.stdin, closed.set_result, None)
    try:
        await closed
    finally:
        loop.remove_reader(sys.stdin)


def main(words: list[str]) -> int | str:
    """The exit status, or why it failed."""
    kind, mode, departure, seconds, timeline, directory = words
    spec = SchmittSpec(kind, Mode(mode), Departure(departure))
    Path(directory).mkdir(exist_ok=True)
    logging.basicConfig(filename=Path(directory) / "run.log", level=logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            coroutine = perform(spec, read_timeline(Path(timeline)), float(seconds), Path(directory))
            runner.run(coroutine).write(Path(directory) / "record.json")
    except HedgerowError as error:
        return str(error)
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
