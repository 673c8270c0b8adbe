"""`hedgerow demo`: a node, three fields with sensors and someone who listens, all in this process.

Everything is the real thing on free loopback ports: the sensors publish at QoS 1 through
`hedgerow.connect`, the field furthest away over WebSocket, and the summary counts what was published
and what the subscriber was given. Nothing is written to disk.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import uvloop

import hedgerow
from hedgerow.net import logs
from hedgerow.net.config import Config
from hedgerow.net.server import Server
from hedgerow.net.values import Address

LOOPBACK = (Address("127.0.0.1", 0),)
INTERVAL_S = 1.0
CATCH_UP_S = 5.0
CATCH_UP_STEP_S = 0.01
NOTICE_TOPIC = "farm/notice"
NOTICE = "hay is cut on Friday"

FIELDS = {"1": "mqtt", "2": "mqtt", "3": "ws"}  # and how its sensors connect


@dataclass(slots=True, frozen=True)
class Sensor:
    """A quantity that rises and falls; what it reads is made up."""

    mean: float
    swing: float
    period_s: float
    unit: str

    def read(self, field_number: int, at: float) -> str:
        value = self.mean + self.swing * math.sin(2 * math.pi * at / self.period_s + field_number)
        return f"{value:.1f} {self.unit}"


SENSORS = {
    "temperature": Sensor(17.0, 3.0, 60, "°C"),
    "humidity": Sensor(64.0, 9.0, 45, "%"),
    "wind": Sensor(4.2, 2.5, 20, "m/s"),
}


@dataclass(slots=True)
class Ledger:
    published: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)

    @property
    def lost(self) -> int:
        return (self.published - self.delivered).total()

    @property
    def doubled(self) -> int:
        return (self.delivered - self.published).total()

    def __str__(self) -> str:
        topics = len(self.published)
        return (
            f"{self.published.total()} published on {topics} topics, {self.delivered.total()} delivered, "
            f"{self.lost} lost, {self.doubled} doubled"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--headless", action="store_true", help="plain lines only: no colour")
    parser.add_argument("--seconds", metavar="N", type=float, help="end after N seconds (default: at Ctrl-C)")


def run(arguments: argparse.Namespace) -> int:
    logs.set_up(level="warning")
    printer = Printer(in_colour=sys.stdout.isatty() and not arguments.headless)
    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        ledger = runner.run(farm(printer, arguments.seconds))
    return 1 if ledger.lost or ledger.doubled else 0


class Printer:
    def __init__(self, in_colour: bool) -> None:
        self._in_colour = in_colour

    def say(self, text: str) -> None:
        print(f"\x1b[1m{text}\x1b[0m" if self._in_colour else text, flush=True)

    def show(self, message: hedgerow.Message) -> None:
        clock = time.strftime("%H:%M:%S")
        topic = f"\x1b[32m{message.topic:22}\x1b[0m" if self._in_colour else f"{message.topic:22}"
        print(f"{clock}  {topic} {message.payload.decode():>10}", flush=True)


async def farm(printer: Printer, seconds: float | None) -> Ledger:
    """Run the farm until Ctrl-C or for so many seconds; what was published and delivered in it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if seconds is not None:
        loop.call_later(seconds, stop.set)
    ledger = Ledger()
    server = Server(Config(mqtt=LOOPBACK, ws=LOOPBACK, http=()))
    await server.start()
    try:
        urls = {url.partition(":")[0]: url for url in server.urls}
        printer.say(f"a node serves {' and '.join(server.urls)}; Ctrl-C ends it")
        async with hedgerow.connect(urls["mqtt"], client_id="farmer") as farmer:
            await farmer.publish(NOTICE_TOPIC, NOTICE, qos=1, retain=True)
            async with farmer.subscribe("field/#", qos=1) as readings, asyncio.TaskGroup() as group:
                listening = group.create_task(listen(readings, ledger, printer))
                visiting = group.create_task(visit(urls["ws"], printer))
                sensing = [
                    group.create_task(sense(urls[scheme], name, ledger, stop))
                    for name, scheme in FIELDS.items()
                ]
                await asyncio.wait([*sensing, visiting])
                await catch_up(ledger)
                listening.cancel()
    finally:
        await server.stop()
    printer.say(str(ledger))
    return ledger


async def sense(url: str, name: str, ledger: Ledger, stop: asyncio.Event) -> None:
    """The sensors of one field: each publishes once an interval, until `stop`."""
    async with hedgerow.connect(url, client_id=f"field-{name}") as bus:
        while not stop.is_set():
            for kind, sensor in SENSORS.items():
                topic = f"field/{name}/{kind}"
                ledger.published[topic] += 1
                await bus.publish(topic, sensor.read(int(name), time.monotonic()), qos=1)
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await stop.wait()
            except TimeoutError:
                pass


async def listen(readings: hedgerow.Subscription, ledger: Ledger, printer: Printer) -> None:
    async for message in readings:
        ledger.delivered[message.topic] += 1
        printer.show(message)


async def visit(url: str, printer: Printer) -> None:
    """A client that comes after the notice was published, and still finds it: it is retained."""
    async with hedgerow.connect(url, client_id="visitor") as bus:
        async for message in bus.subscribe(NOTICE_TOPIC):
            printer.say(f"a visitor finds the notice, which is retained: {message.payload.decode()}")
            return


async def catch_up(ledger: Ledger) -> None:
    """Give what is on its way the time to arrive."""
    for _ in range(int(CATCH_UP_S / CATCH_UP_STEP_S)):
        if not ledger.lost:
            return
        await asyncio.sleep(CATCH_UP_STEP_S)
