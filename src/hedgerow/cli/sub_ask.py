"""`hedgerow sub --ask`: choose a topic, see what comes, and choose another while waiting.

The user types a topic a line, on a terminal or through a pipe. What is asked and answered goes to
standard error, messages to standard output, so that a program can read them. The end of the input ends
the questions, not the waiting.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import hedgerow
from hedgerow.cli.client_options import in_thread
from hedgerow.errors import ConfigError, RefusedError, TopicError
from hedgerow.net.client.sensor_bus import SensorBus

Subscribe = Callable[[str], hedgerow.Subscription]
Print = Callable[[hedgerow.Subscription], Coroutine[Any, Any, None]]

FIRST_QUESTION = "Which topic do you want to subscribe to?"
NEXT_QUESTION = "Waiting for messages. Type another topic to subscribe to it too."


async def ask(bus: hedgerow.Bus, topics: list[str], subscribe: Subscribe, print_messages: Print) -> None:
    """Ask until one of the chosen topics has printed enough. `topics` are those that were given beforehand,
    as if typed first."""
    if isinstance(bus, SensorBus):
        table = ", ".join(f"{number:02} {name}" for number, name in sorted(bus.topics.items()))
        _say(f"Topics: {table}")
    dialogue = _Dialogue(subscribe, print_messages)
    try:
        for topic in topics:
            await dialogue.choose(topic)
        dialogue.start(dialogue.question())
        await dialogue.over
    finally:
        await dialogue.close()


class _Dialogue:
    """A task that asks, and one for each chosen topic that prints. `over` ends with the first of these, or
    with the error of a task."""

    def __init__(self, subscribe: Subscribe, print_messages: Print) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._subscribe = subscribe
        self._print_messages = print_messages
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
            subscription = await self._subscribe(topic).__aenter__()
        except (RefusedError, TopicError) as error:
            _say(f"Not subscribed: {error}")
            return
        self._chosen[topic] = subscription
        _say(f"Subscribed to {topic}.")
        self.start(self._print(subscription))

    async def _print(self, subscription: hedgerow.Subscription) -> None:
        await self._print_messages(subscription)
        if not self.over.done():
            self.over.set_result(None)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscription in self._chosen.values():
            subscription.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
