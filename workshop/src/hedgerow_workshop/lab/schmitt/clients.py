"""The clients of a run: a publisher at one broker, and a subscriber at each.

A subscriber keeps its session over the death of its broker, so that what was queued for it at QoS 1 arrives
when both are back. It also hears what its broker says of its bridges.
"""

from __future__ import annotations

import asyncio
import json

from hedgerow.bridges.commands import NEW_BRIDGE, RESULT, state_topic
from hedgerow.client.bus import Bus
from hedgerow.errors import HedgerowError
from hedgerow.message import Message
from hedgerow.node.clock import SteadyClock
from hedgerow_workshop.lab.harness.clients import Clients, keep_pace
from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.harness.record import Arrival
from hedgerow_workshop.lab.schmitt.record import QOS, TOPICS, BridgeState, SchmittRecord

FIRST_TOPIC = "schmitt/first"
STATE_FILTERS = {"hedgerow": state_topic("+"), "mosquitto": "$SYS/broker/connection/+/state"}
COMMAND_S = 10.0

_QOS_OF = {topic: qos for qos, topic in TOPICS.items()}


class BridgedSubscriber:
    """Writes what it receives into the record."""

    def __init__(self, broker: str, record: SchmittRecord, clock: SteadyClock) -> None:
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


class BridgedClients(Clients):
    """All clients of a run; they leave with the block."""

    def __init__(self, record: SchmittRecord, clock: SteadyClock) -> None:
        super().__init__()
        self.subscribers: dict[str, BridgedSubscriber] = {}
        self._buses: dict[str, Bus] = {}
        self._record = record
        self._clock = clock

    async def subscribe(self, broker: str, url: str) -> None:
        subscriber = self.subscribers[broker] = BridgedSubscriber(broker, self._record, self._clock)
        bus = self._buses[broker] = await self.connect(f"client_sub_{broker}", url, clean_start=False)
        await self.listen(bus, (*TOPICS.values(), FIRST_TOPIC), 1, subscriber.receive)
        await self.listen(bus, STATE_FILTERS[self._record.spec.kind], 1, subscriber.receive_state)

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


async def publish(
    bus: Bus, record: SchmittRecord, clock: SteadyClock, interval_s: float, seconds: float
) -> None:
    """A numbered message on each topic at each tick, from now on; the payload is its number and the time."""
    began_at = clock()
    ticks = (began_at + number * interval_s for number in range(round(seconds / interval_s)))
    async for _ in keep_pace(ticks, clock):
        now, number = clock(), len(record.sent)
        record.sent.append(now)
        for qos, topic in TOPICS.items():
            bus.publish_nowait(topic, f"{number} {now:.6f}", qos=qos)
