"""One run of the demo: everything is started, the story told, the summary written, and everything ended.

All files are in a temporary directory. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the story where it is, in
order and with the summary so far; a second one ends it at once. Whatever ends this process, its programs end
with it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hedgerow.cli.stop_signals import StopSignals, ending_signals
from hedgerow.errors import HedgerowError
from hedgerow_workshop.demo import robots, spark
from hedgerow_workshop.demo.farm import HOUSE, TRACTOR, WEST, DemoFarm
from hedgerow_workshop.demo.ledger import Ledger
from hedgerow_workshop.demo.people import FILTERS, People
from hedgerow_workshop.demo.robots import Robots
from hedgerow_workshop.demo.story import Cast, Story
from hedgerow_workshop.demo.summary import summary_lines
from hedgerow_workshop.demo.terminal import Terminal
from hedgerow_workshop.demo.watch import Watch
from hedgerow_workshop.lab.harness.clients import Clients, quiet_clients

FAILED = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FEW_BYTES = 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    seconds: float = 60.0
    with_spark: bool = True
    goes_on: bool = False
    """After the story, until Ctrl-C."""


def run(
    options: Options,
    terminal: Terminal,
    make: Callable[[Options, Terminal, Path], Demo] | None = None,
    place: Path | None = None,
) -> int:
    """The exit status: 1 if anything was lost or doubled, or did not come. `place` is where the files are;
    None: where the system has temporary ones."""
    temporary = tempfile.TemporaryDirectory(prefix="hedgerow-demo-", dir=place)
    with _signals_as_before(), quiet_clients(), temporary as directory:
        try:
            return asyncio.run((make or Demo)(options, terminal, Path(directory)).run())
        except asyncio.CancelledError:
            terminal.say("ended at once, by a second signal")
            return FAILED
        finally:
            # Nothing runs any more, and removing the files takes a moment.
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)


@contextmanager
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Demo:
    def __init__(self, options: Options, terminal: Terminal, directory: Path) -> None:
        self.directory = directory
        self._options = options
        self._terminal = terminal
        self._stop = asyncio.Event()

    async def run(self) -> int:
        self._heed_signals()
        failure = ""
        async with AsyncExitStack() as stack:
            try:
                story = await self._unless_stopped(self.start(stack))
            except HedgerowError:
                self._name_full_disk()
                raise
            if story is None:
                self._terminal.say("ended before the farm was there")
                return FAILED
            try:
                try:
                    await self._unless_stopped(story.tell())
                finally:
                    await story.end()
                if not self._stop.is_set():
                    await self._unless_stopped(story.look_into_spark())
            except HedgerowError as error:
                failure = str(error)
            status = self.sum_up(story, failure)
            if self._options.goes_on and not self._stop.is_set():
                self._terminal.head(f"the farm goes on; look at {story.dashboard}; Ctrl-C ends it")
                try:
                    await self._unless_stopped(story.go_on())
                except HedgerowError as error:
                    self._terminal.say(f"the farm does not go on: {error}")
                    status = FAILED
        return status

    def _heed_signals(self) -> None:
        loop, work = asyncio.get_running_loop(), asyncio.current_task()
        assert work is not None

        signals = StopSignals()

        def end() -> None:
            if signals.asks_again():
                work.cancel()
            self._stop.set()

        for number in ending_signals(*SIGNALS):
            loop.add_signal_handler(number, end)

    async def _unless_stopped(self, work: Coroutine[object, object, T]) -> T | None:
        """What it gives; None when it was stopped instead."""
        task, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            for each in (task, stopping):
                each.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    async def start(self, stack: AsyncExitStack) -> Story:
        say = self._terminal.say
        began_at = time.monotonic()
        multicast, reason = await robots.find_multicast(self.directory)
        farm = await stack.enter_async_context(DemoFarm(self.directory, multicast))
        await farm.start()
        self._terminal.head(f"dashboard {farm.dashboard}")
        if farm.has_mosquitto:
            say(f"{WEST} is a stock Mosquitto with a federator beside it, the others are Hedgerow nodes")
        else:
            say(f"{WEST} is a Hedgerow node like the others: there is no Mosquitto on this machine")
        if multicast is None:
            say(f"no vacuum and no mop: multicast does not work here: {reason}")
        pipeline = self._start_spark(stack, farm)
        clients = await stack.enter_async_context(Clients())
        filters = FILTERS | (robots.FILTERS if multicast is not None else {})
        people = await stack.enter_async_context(People(farm, clients, Ledger(filters)))
        watch = Watch()
        await watch.open(clients, farm.brokers[TRACTOR].url)
        cast = Cast(farm, people, watch, None, pipeline)
        if multicast is not None:
            cast.robots = await stack.enter_async_context(Robots(people, clients, multicast))
        story = Story(cast, filters, self._terminal, self._options.seconds)
        story.took["the farm's start"] = time.monotonic() - began_at
        return story

    def _start_spark(self, stack: AsyncExitStack, farm: DemoFarm) -> spark.PipelineProgram | None:
        if not self._options.with_spark:
            self._terminal.say("Spark stays away, as it was told to")
            return None
        if reason := spark.why_not():
            self._terminal.say(f"Spark stays away: {reason}")
            return None
        self._terminal.say("Spark starts, to read the journals of the nodes")
        pipeline = stack.enter_context(spark.PipelineProgram(self.directory / "spark", farm.journals))
        pipeline.start(farm.brokers[HOUSE].url, TRACTOR)
        return pipeline

    def sum_up(self, story: Story, failure: str) -> int:
        for line in summary_lines(story, is_whole=not self._stop.is_set()):
            self._terminal.head(line)
        if failure:
            self._terminal.say(f"it did not end as it should: {failure}")
            self._name_full_disk()
        is_wrong_in_spark = story.in_spark is not None and story.in_spark.is_wrong
        return FAILED if failure or story.ledger.lost or story.ledger.doubled or is_wrong_in_spark else 0

    def _name_full_disk(self) -> None:
        """As the cause of what failed, if it may be."""
        if self.free_bytes() < FEW_BYTES:
            self._terminal.say(f"no room is left in {self.directory.parent}; TMPDIR=DIR names another place")

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.directory).free
