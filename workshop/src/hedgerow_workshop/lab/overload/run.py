"""One run: all publish as fast as they can, one node is killed now and then, and in the end all is read."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from hedgerow.client.bus import Bus
from hedgerow.journal import JournalReader
from hedgerow_workshop.lab.harness.clients import Clients, keep_pace
from hedgerow_workshop.lab.harness.programs import LabError, end_tasks, wait_until
from hedgerow_workshop.lab.harness.record import Received
from hedgerow_workshop.lab.harness.wire import WirePublisher, WireReader
from hedgerow_workshop.lab.overload import measure
from hedgerow_workshop.lab.overload.record import JOURNAL, OverloadRecord, Readers, Sensors
from hedgerow_workshop.lab.overload.settings import (
    FILTER,
    KILLED,
    MULTICAST,
    PROBE,
    SENSOR_NUMBER,
    SENSORS,
    TOPICS,
    OverloadSettings,
)
from hedgerow_workshop.lab.overload.stage import Stage, make_stage, start

FEDERATED_S = 30.0
STOP_S = 20.0
POLL_S = 0.05
PROBE_S = 0.2
STEADY_S = 1.0  # after the first probes have come everywhere


class OverloadRun:
    def __init__(self, settings: OverloadSettings, readers: Readers, directory: Path) -> None:
        self.record = OverloadRecord(readers, multicast=list(MULTICAST))
        self._settings = settings
        self._directory = directory
        self._absences: list[tuple[float, float]] = []
        self._publishers: list[WirePublisher] = []
        self._readers: list[WireReader] = []
        self._is_let_go = readers is Readers.FAST
        self._multicast_sent = {name: dict[int, float]() for name in MULTICAST}

    async def perform(self) -> OverloadRecord:
        async with AsyncExitStack() as stack:
            stage = make_stage(self._directory, stack.enter_context(ExitStack()))
            await start(stage)
            buses = await self._connect(stage, stack)
            await self._probe(stage, buses)
            await self._overload(stage, buses)
            await self._settle(stage)
            await asyncio.sleep(self._settings.quiet_s)
            self._conclude(stage)
        return self.record

    # Before

    async def _connect(self, stage: Stage, stack: AsyncExitStack) -> list[Bus]:
        settings = self._settings
        for name, broker in stage.brokers.items():
            address = broker.host, broker.port
            reader = WireReader(f"reader-{name}", address, FILTER, self._may_read)
            publisher = WirePublisher(
                name, address, f"{TOPICS}{name}", settings.payload_bytes, settings.window, settings.messages
            )
            self._readers.append(reader)
            self._publishers.append(publisher)
            for client in (reader, publisher):
                stack.push_async_callback(client.close)
                await client.open()
        clients = await stack.enter_async_context(Clients())
        url = f"multicast://lo:{stage.multicast_port}?ip=4"
        return [await clients.reach(url) for _ in MULTICAST]

    def _may_read(self) -> float:
        if self._is_let_go:
            return float("inf")
        return self._settings.slow_share * self._count_sent()

    def _count_sent(self) -> int:
        by_multicast = sum(map(len, self._multicast_sent.values()))
        return by_multicast + sum(len(publisher.sent) for publisher in self._publishers)

    async def _probe(self, stage: Stage, buses: list[Bus]) -> None:
        """Until every reader has heard of every publisher, so that all links and meshes are there."""
        names = {*MULTICAST, *(publisher.name for publisher in self._publishers)}
        give_up_at = time.monotonic() + FEDERATED_S
        while any(reader.heard < names for reader in self._readers):
            if time.monotonic() > give_up_at:
                silent = {reader.name: sorted(names - reader.heard) for reader in self._readers}
                raise LabError(f"not federated within {FEDERATED_S:g} s: {silent}")
            for publisher in self._publishers:
                publisher.probe(PROBE)
            for name, bus in zip(MULTICAST, buses, strict=True):
                await bus.publish(PROBE, name.encode(), qos=1)
            await asyncio.sleep(PROBE_S)
            _check(stage)
        await asyncio.sleep(STEADY_S)

    # The overload

    async def _overload(self, stage: Stage, buses: list[Bus]) -> None:
        settings, record = self._settings, self.record
        record.began_at = time.monotonic()
        beside = [
            asyncio.create_task(self._kill(stage)),
            *(asyncio.create_task(self._cast(*each)) for each in zip(MULTICAST, buses, strict=True)),
            asyncio.create_task(self._sense(stage)),
        ]
        try:
            for publisher in self._publishers:
                publisher.start()
            end_at = record.began_at + settings.seconds
            while time.monotonic() < end_at and not all(each.is_done for each in self._publishers):
                _check(stage, but=KILLED)
                await asyncio.sleep(POLL_S)
            for publisher in self._publishers:
                publisher.stop()
            await wait_until(lambda: all(each.is_done for each in self._publishers), STOP_S)
            record.published_s = time.monotonic() - record.began_at
            await asyncio.gather(*beside)
        finally:
            await end_tasks(beside)

    async def _kill(self, stage: Stage) -> None:
        settings, node = self._settings, stage.killed
        for number in range(settings.kills):
            at = self.record.began_at + settings.seconds * (number + 0.5) / settings.kills
            at -= settings.seconds / settings.kills / 4
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            self._note_memory(stage)
            killed_at = time.time()
            self._happened(f"{node.broker} killed")
            node.kill()
            await asyncio.sleep(settings.killed_s)
            await node.start()
            self._absences.append((killed_at, time.time()))
            self._happened(f"{node.broker} started")

    def _happened(self, what: str) -> None:
        self.record.happened.append((time.monotonic(), what))

    async def _cast(self, name: str, bus: Bus) -> None:
        settings, sent = self._settings, self._multicast_sent[name]
        due = self._due_at(settings.multicast_rate)
        number = 0
        async for _ in keep_pace(due):
            at = time.monotonic()
            if at > self.record.began_at + settings.seconds:
                break
            await bus.publish(f"{TOPICS}{name}", (b"%d" % number).ljust(settings.payload_bytes), qos=1)
            sent[number] = at
            number += 1

    async def _sense(self, stage: Stage) -> None:
        """Without waiting for anyone, as sensors do."""
        settings = self._settings
        address = stage.recorder.listens_at("udp")
        sensors = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(settings.sensors)]
        try:
            async for _ in keep_pace(self._due_at(settings.sensor_rate)):
                for sensor in sensors:
                    reading = b"%05d1%02d%d" % (address[1], SENSOR_NUMBER, self.record.sensors.sent)
                    sensor.sendto(reading, address)
                    self.record.sensors.sent += 1
        finally:
            for sensor in sensors:
                sensor.close()

    def _due_at(self, rate: float) -> list[float]:
        count = round(self._settings.seconds * rate)
        return [self.record.began_at + number / rate for number in range(count)]

    # After

    async def _settle(self, stage: Stage) -> None:
        """Until all readers and the journal have everything, or nothing has come for long."""
        self._is_let_go = True
        self.record.sent = {each.name: each.sent for each in self._publishers} | self._multicast_sent
        began_at = time.monotonic()
        give_up_at = began_at + self._settings.settle_s
        await self._wait_while_more_comes(
            give_up_at, stage, lambda: [self._is_complete(reader.arrivals) for reader in self._readers]
        )
        journal = stage.recorder.directory / "data" / "journal"

        def look() -> list[tuple[bool, int]]:
            self.record.arrived[JOURNAL], self.record.sensors.recorded = read_journal(journal)
            return [self._is_complete(self.record.arrived[JOURNAL])]

        await self._wait_while_more_comes(give_up_at, stage, look, poll_s=1.0)
        self.record.settled_s = time.monotonic() - began_at

    def _is_complete(self, arrivals: list[Received]) -> tuple[bool, int]:
        """And how many have come."""
        count = len(arrivals)
        if count < sum(map(len, self.record.sent.values())):
            return False, count
        found = {(each.publisher, each.number) for each in arrivals}
        return all(
            (name, number) in found for name, sent in self.record.sent.items() for number in sent
        ), count

    async def _wait_while_more_comes(
        self,
        give_up_at: float,
        stage: Stage,
        look: Callable[[], list[tuple[bool, int]]],
        poll_s: float = 0.25,
    ) -> None:
        before: list[tuple[bool, int]] = []
        changed_at = time.monotonic()
        while True:
            found = look()
            now = time.monotonic()
            if found != before:
                before, changed_at = found, now
            if all(is_complete for is_complete, _ in found):
                return
            if now > min(changed_at + self._settings.patience_s, give_up_at):
                return
            _check(stage)
            await asyncio.sleep(poll_s)

    def _conclude(self, stage: Stage) -> None:
        record = self.record
        self._note_memory(stage)
        record.arrived.update((reader.name, reader.arrivals) for reader in self._readers)
        record.losses = {reader.name: reader.losses for reader in self._readers}
        record.sensors = Sensors(
            record.sensors.sent, record.sensors.recorded, stage.recorder.dropped_readings()
        )
        shift_s = time.time() - time.monotonic()
        for name, program in stage.federated():
            log = program.log.read_text(errors="replace").splitlines()
            links = measure.lost_links(name, log)
            found = measure.flaps(name, links, KILLED, self._absences, record.began_at + shift_s)
            record.flaps += [(at - shift_s, text) for at, text in found]
            if any("traceback" in line.lower() for line in log):
                record.tracebacks.append(program.name)

    def _note_memory(self, stage: Stage) -> None:
        memory = self.record.memory
        for name, program in stage.federated():
            memory[name] = max(memory.get(name, 0.0), program.peak_mib())


def read_journal(directory: Path) -> tuple[list[Received], int]:
    """What publishers published, as it was recorded; and how many readings of sensors."""
    shift_s = time.time() - time.monotonic()
    found: list[Received] = []
    readings = 0
    reader = JournalReader(directory)
    for batch in reader.batches(columns=("topic", "payload", "received_at")):
        topics, payloads = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        times = batch.column(2).cast("int64").to_pylist()
        for topic, payload, at in zip(topics, payloads, times, strict=True):
            if topic == SENSORS:
                readings += 1
            elif topic != PROBE:
                name = topic.rpartition("/")[2]
                found.append(Received(name, int(payload), at / 1e6 - shift_s))
    return found, readings


def _check(stage: Stage, but: str = "") -> None:
    """Raise for whatever has ended that should run."""
    for name, program in [*stage.brokers.items(), ("", stage.federator)]:
        if name != but or not but:
            program.check()
