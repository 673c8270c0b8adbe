"""The clients of a run: a publisher at one broker, and a subscriber at each.

A subscriber keeps its session over the death of its broker, so that what was queued for it at QoS 1 arrives
when both are back. It also hears what its broker says of its bridges.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack

import hedgerow
from hedgerow.bridges.commands import RESULT, state_topic
from hedgerow.bridges.section import NEW_BRIDGE
from hedgerow.client.bus import Bus
from hedgerow.errors import HedgerowError
from hedgerow.message import Message
from hedgerow.node.clock import SteadyClock
from hedgerow_workshop.lab.experiments import LabError
from hedgerow_workshop.lab.schmitt.record import QOS, Arrival, BridgeState, Record

TOPICS = {qos: f"schmitt/qos{qos}" for qos in QOS}
FIRST_TOPIC = "schmitt/first"
STATE_FILTERS = {"hedgerow": state_topic("+"), "mosquitto": "$SYS/broker/connection/+/state"}
RECONNECT_S = (0.05, 0.2)
COMMAND_S = 10.0

_QOS_OF = {topic: qos for qos, topic in TOPICS.items()}


class Subscriber:
    """Writes what it receives into the record."""

    def __init__(self, broker: str, record: Record, clock: SteadyClock) -> None:
        self.broker = broker
        self.heard_at = 0.0
        """When it last received anything of the publisher."""
        self.numbers: dict[int, set[int]] = {qos: set() for qos in QOS}
        self._arrived = record.arrived[broker] = {qos: [] for qos in QOS}
        self._bridges = record.bridges
        self._clock = clock

    def receive(self, message: Message) -> None:
        self.heard_at = self._clock()
        qos = _QOS_OF.get(message.topic)
        if qos is not None:
            number = int(message.payload.split()[0])
            self.numbers[qos].add(number)
            self._arrived[qos].append(Arrival(number, self.heard_at))

    def receive_state(self, message: Message) -> None:
        name = message.topic.split("/")[-2]
        self._bridges.append(
            BridgeState(self._clock(), self.broker, name.rpartition(".")[2], read_state(message.payload))
        )


def read_state(payload: bytes) -> str:
    """Hedgerow's word on a bridge is JSON, Mosquitto's is 0 or 1."""
    if payload in (b"0", b"1"):
        return "up" if payload == b"1" else "waiting"
    return str(json.loads(payload)["state"]) if payload else ""


class Clients:
    """All clients of a run; they leave with the block."""

    def __init__(self, record: Record, clock: SteadyClock) -> None:
        self.subscribers: dict[str, Subscriber] = {}
        self._buses: dict[str, Bus] = {}
        self._record = record
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *reason: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def connect(self, broker: str, url: str) -> None:
        subscriber = self.subscribers[broker] = Subscriber(broker, self._record, self._clock)
        bus = self._buses[broker] = await hedgerow.connect(
            url, client_id=f"client_sub_{broker}", clean_start=False, reconnect_delay=RECONNECT_S
        )
        self._stack.push_async_callback(bus.close)
        await self._listen(bus, (*TOPICS.values(), FIRST_TOPIC), subscriber.receive)
        states = STATE_FILTERS[self._record.spec.kind]
        await self._listen(bus, (states,), subscriber.receive_state)

    async def _listen(
        self, bus: Bus, topic_filters: tuple[str, ...], receive: Callable[[Message], None]
    ) -> None:
        subscription = await self._stack.enter_async_context(bus.subscribe(*topic_filters, qos=1))

        async def read() -> None:
            async for message in subscription:
                receive(message)

        self._tasks.append(asyncio.create_task(read()))

    async def command(self, broker: str, section: str) -> None:
        """Have a bridge made. Raises LabError when the broker does not."""
        bus = self._buses[broker]
        try:
            async with asyncio.timeout(COMMAND_S), bus.subscribe(RESULT) as results:
                await bus.publish(NEW_BRIDGE, section, qos=1)
                outcome = json.loads((await anext(aiter(results))).payload)
            reason = None if outcome["ok"] else outcome["reason"]
        except TimeoutError:
            reason = f"no answer within {COMMAND_S:g} s"
        except HedgerowError as error:
            reason = str(error)
        if reason is not None:
            raise LabError(f"broker {broker} made no bridge: {reason}")

    def check(self) -> None:
        """Raise what ended a subscriber."""
        for task in self._tasks:
            if task.done():
                raise LabError(f"a subscriber ended: {task.exception()}")

    async def open_publisher(self, url: str) -> Bus:
        bus = await hedgerow.connect(url, client_id="publisher_1")
        self._stack.push_async_callback(bus.close)
        return bus


async def publish(bus: Bus, record: Record, clock: SteadyClock, interval_s: float, seconds: float) -> None:
    """A numbered message on each topic at each tick, from now on; the payload is its number and the time."""
    began_at = clock()
    for number in range(round(seconds / interval_s)):
        wait_s = began_at + number * interval_s - clock()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        now = clock()
        record.sent.append(now)
        for qos, topic in TOPICS.items():
            bus.publish_nowait(topic, f"{number} {now:.6f}", qos=qos)
