"""`hedgerow sub --ask`: choose a topic, see what comes, and choose another while waiting.

The user types a topic a line, on a terminal or through a pipe. What is asked and answered goes to
standard error, messages to standard output, so that a program can read them. The end of the input ends
the questions, not the waiting.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import hedgerow
from hedgerow.cli.client_options import in_thread, write_out
from hedgerow.errors import ConfigError, RefusedError, TopicError
from hedgerow.net.client.sensor_bus import SensorBus

if TYPE_CHECKING:
    from hedgerow.cli.sub import Printer

FIRST_QUESTION = "Which topic do you want to subscribe to?"
NEXT_QUESTION = "Waiting for messages. Type another topic to subscribe to it too."


async def ask(bus: hedgerow.Bus, topics: list[str], printer: Printer) -> int:
    """The exit status. `topics` are those that were given beforehand, as if typed first."""
    if isinstance(bus, SensorBus):
        table = ", ".join(f"{number:02} {name}" for number, name in sorted(bus.topics.items()))
        _say(f"Topics: {table}")
    dialogue = _Dialogue(bus, printer)
    try:
        for topic in topics:
            await dialogue.choose(topic)
        dialogue.start(dialogue.question())
        await dialogue.over
    finally:
        await dialogue.close()
    return 0


class _Dialogue:
    """A task that asks, and one for each chosen topic that prints. `over` ends when enough was printed, or
    with the error of a task."""

    def __init__(self, bus: hedgerow.Bus, printer: Printer) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bus = bus
        self._printer = printer
        self._chosen: dict[str, hedgerow.Subscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self.over.done():
            return
        if (error := task.exception()) is not None:
            self.over.set_exception(error)
        elif self._printer.done:
            self.over.set_result(None)

    async def question(self) -> None:
        _say(NEXT_QUESTION if self._chosen else FIRST_QUESTION)
        while line := await in_thread(sys.stdin.readline):
            if topic := line.strip():
                await self.choose(topic)
            _say(NEXT_QUESTION if self._chosen else FIRST_QUESTION)
        if not self._chosen:
            raise ConfigError("no topic was chosen")

    async def choose(self, topic: str) -> None:
        if topic in self._chosen:
            _say(f"You are subscribed to {topic} already.")
            return
        try:
            subscription = await self._bus.subscribe(topic).__aenter__()
        except (RefusedError, TopicError) as error:
            _say(f"Not subscribed: {error}")
            return
        self._chosen[topic] = subscription
        _say(f"Subscribed to {topic}.")
        self.start(self._print(subscription))

    async def _print(self, subscription: hedgerow.Subscription) -> None:
        async for batch in subscription.batches():
            if self._printer.done:
                return
            for message in self._printer.take(batch):
                self._bus.acknowledge(message)
            if self._printer.output:
                await write_out(b"".join(self._printer.output))
            if self._printer.done:
                return

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscription in self._chosen.values():
            subscription.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
