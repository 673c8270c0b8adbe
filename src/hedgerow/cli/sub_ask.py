"""`hedgerow sub --ask`: choose a topic, see what comes, and choose another while waiting.

The user types a topic a line, on a terminal or through a pipe. What is asked and answered goes to
standard error, messages to standard output, so that a program can read them. The end of the input ends
the questions, not the waiting.

Each choice is a subscription of its own. A message that several of them match is printed by the earliest.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import hedgerow
from hedgerow.cli.client_options import in_thread
from hedgerow.cli.sub import Batches
from hedgerow.client.sensor_transport import SensorTopics
from hedgerow.errors import ConfigError, RefusedError, TopicError, escape_controls
from hedgerow.message import Message
from hedgerow.topics import matches, split_shared, validate_filter

Subscribe = Callable[[str], hedgerow.Subscription]
Print = Callable[[Batches], Coroutine[Any, Any, None]]

FIRST_QUESTION = "Which topic do you want to subscribe to?"
NEXT_QUESTION = "Waiting for messages. Type another topic to subscribe to it too."


async def ask(
    bus: hedgerow.Bus,
    topics: list[str],
    sensor_topics: SensorTopics | None,
    subscribe: Subscribe,
    print_messages: Print,
) -> None:
    """Ask until one of the chosen topics has printed enough. `topics` are those that were given beforehand,
    as if typed first; `sensor_topics` is the table of them, over UDP."""
    if sensor_topics is not None:
        _say(f"Topics: {sensor_topics}")
    dialogue = _Dialogue(bus, sensor_topics, subscribe, print_messages)
    try:
        for topic in topics:
            await dialogue.choose(topic)
        dialogue.start(dialogue.question())
        await dialogue.over
    finally:
        await dialogue.close()


class _Choice:
    """A chosen filter, and of its messages those that no earlier choice has."""

    def __init__(
        self,
        bus: hedgerow.Bus,
        topic_filter: str,
        subscription: hedgerow.Subscription,
        earlier: list[_Choice],
    ) -> None:
        self.topic_filter = topic_filter
        self.subscription = subscription
        self._bus = bus
        # A group's member does not get all that its filter matches.
        self._earlier = [each for each in earlier if split_shared(each.topic_filter)[0] is None]
        self._left_here: list[Message] = []

    async def batches(self) -> AsyncGenerator[list[Message], None]:
        """Whoever takes a batch acknowledges it before it asks for the next one.

        What is left to an earlier choice may be the very message that waits there, or a copy of it. So it
        is acknowledged when the earlier one is through with all that had arrived by then, and not before:
        what was not printed has to come again the next time.
        """
        async for batch in self.subscription.batches():
            due, self._left_here = self._left_here, []
            own = [message for message in batch if not self._leave_to_earlier(message)]
            if own:
                yield own
            for message in due:
                self._bus.acknowledge(message)

    def _leave_to_earlier(self, message: Message) -> bool:
        for choice in self._earlier:
            if matches(choice.topic_filter, message.topic):
                if message.qos:
                    choice._left_here.append(message)
                return True
        return False


class _Dialogue:
    """A task that asks, and one for each chosen topic that prints. `over` ends with the first of these, or
    with the error of a task."""

    def __init__(
        self,
        bus: hedgerow.Bus,
        sensor_topics: SensorTopics | None,
        subscribe: Subscribe,
        print_messages: Print,
    ) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bus = bus
        self._sensor_topics = sensor_topics
        self._subscribe = subscribe
        self._print_messages = print_messages
        self._chosen: list[_Choice] = []
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
        try:
            topic = self._name_of(topic)
            for choice in self._chosen:
                if covers(choice.topic_filter, topic):
                    by = "" if choice.topic_filter == topic else f", by {choice.topic_filter}"
                    _say(f"You are subscribed to {topic} already{by}.")
                    return
            subscription = await self._subscribe(topic).__aenter__()
        except (RefusedError, TopicError) as error:
            _say(f"Not subscribed: {error}")
            return
        choice = _Choice(self._bus, topic, subscription, self._chosen)
        self._chosen.append(choice)
        # Over UDP nobody answers that it is so.
        _say(f"Subscribed to {topic}." if self._sensor_topics is None else f"Asked for {topic}.")
        self.start(self._print(choice))

    def _name_of(self, topic: str) -> str:
        """The one way to write what may be typed in several: a sensor topic has a name and a number."""
        if self._sensor_topics is not None:
            return self._sensor_topics.name_of(self._sensor_topics.number_of(topic))
        validate_filter(topic)
        return topic

    async def _print(self, choice: _Choice) -> None:
        await self._print_messages(choice)
        if not self.over.done():
            self.over.set_result(None)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for choice in self._chosen:
            choice.subscription.close()


def covers(general: str, special: str) -> bool:
    """Whether `general` matches whatever `special` does."""
    if general == special:
        return True
    if split_shared(general)[0] is not None or split_shared(special)[0] is not None:
        return False
    if special.endswith("#") and general.split("/")[special.count("/") :][:1] == ["+"]:
        return False  # read as a name, the # would be one level
    return matches(general, special)


def _say(text: str) -> None:
    print(escape_controls(text), file=sys.stderr, flush=True)
