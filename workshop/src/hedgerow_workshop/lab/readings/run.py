"""One scene, carried in one way: a network of its own, a process on each host, and a capture of all of it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from hedgerow_workshop.lab.harness.brokers import KINDS, OURS, BrokerProgram, Hedgerow
from hedgerow_workshop.lab.harness.capture import Capture, kind_of, read_frames
from hedgerow_workshop.lab.harness.hosts import Host, Network, network
from hedgerow_workshop.lab.harness.programs import LabError, LabProgram, together, wait_until
from hedgerow_workshop.lab.readings.device import Plan, read_record
from hedgerow_workshop.lab.readings.record import ReadingsRecord
from hedgerow_workshop.lab.readings.scene import MQTT_PORT, Device, Scene, Way

BEGIN_S = 0.3  # from the word to the first second of the scene
END_S = 20.0

# Only what is asked of it is to be on the wire. Beyond loopback, clients without a name have to be meant.
QUIET_BROKER = ("--no-mdns", "--no-discover", "--no-federation", "--anonymous")


class DeviceProgram(LabProgram):
    def __init__(self, device: Device, host: Host, directory: Path) -> None:
        super().__init__(device.name, directory / device.name)
        self.device = device
        self.record = self.directory / "record.json"
        self._host = host

    async def start(self, scene: Scene, url: str, start: Path) -> None:
        device = self.device
        plan = Plan(
            device.name,
            url,
            scene.qos,
            scene.seconds,
            list(device.subscribed),
            [(each.at_s, each.does, each.topic) for each in device.actions],
            dict(device.answers),
            str(start),
            str(self.record),
        )
        file = self.directory / "plan.json"
        file.write_text(json.dumps(asdict(plan)), encoding="utf-8")
        module = "hedgerow_workshop.lab.readings.device"
        self.launch([*self._host.wrapper, sys.executable, "-m", module, str(file)])
        await self.wait_until(lambda: b"ready" in self.output.read_bytes(), "subscriptions")

    def check(self) -> None:
        if self.has_ended and not self.record.exists():
            raise LabError(f"{self.name} ended by itself: {self.last_words()}")


class ReadingsRun:
    """`options` are words of `hedgerow up`, where the broker is ours. The capture is a file in `captures`."""

    def __init__(
        self,
        scene: Scene,
        way: Way,
        directory: Path,
        captures: Path,
        kind: str = OURS,
        options: tuple[str, ...] = (),
    ) -> None:
        self._scene = scene
        self._way = way
        self._kind = kind
        self._options = options
        self._directory = directory
        self.record = ReadingsRecord(scene.name, way.name, scene.qos, way.transport, scene.loss_percent)
        self.capture = captures / f"{self.record.file_name}.pcap"

    async def perform(self) -> ReadingsRecord:
        scene, way, record = self._scene, self._way, self.record
        count = len(scene.devices) + way.has_broker
        async with AsyncExitStack() as stack:
            net = stack.enter_context(network(count, ipv4=way.ip == 4, ipv6=way.ip == 6))
            for host in net.hosts:
                host.lose(scene.loss_percent, tcp=True)
            capture = stack.enter_context(Capture(net, self.capture, self._directory / "capture"))
            await capture.start()
            before = net.count()
            with_broker = await self._start_broker(stack, net)
            programs = [
                stack.enter_context(DeviceProgram(device, host, self._directory))
                for device, host in zip(scene.devices, net.hosts, strict=False)
            ]
            start = self._directory / "start"
            await together(
                each.start(scene, way.url_of(each.device, with_broker), start) for each in programs
            )
            record.began_at = time.monotonic() + BEGIN_S
            record.seconds = scene.seconds
            _write_whole(start, str(record.began_at))
            await self._wait_for_end(programs)
            record.devices = {each.name: read_record(each.record) for each in programs}
            after = net.count()
            record.counted_bytes = after.sent - before.sent
            record.carried_bytes = after.carried - before.carried
            record.missed_frames = capture.finish()
        self._count_frames()
        return record

    async def _start_broker(self, stack: AsyncExitStack, net: Network) -> str | None:
        """Its address, on the last host."""
        if not self._way.has_broker:
            return None
        host = net.hosts[-1]
        assert host.address4 is not None
        broker: BrokerProgram = KINDS[self._kind](
            "broker", self._directory / "broker", host.address4, MQTT_PORT
        )
        broker.wrapper = host.wrapper
        if isinstance(broker, Hedgerow):
            broker.is_durable = False
            broker.options = (*QUIET_BROKER, *(word.format(broker=host.address4) for word in self._options))
        await stack.enter_context(broker).start()
        return host.address4

    async def _wait_for_end(self, programs: list[DeviceProgram]) -> None:
        def check() -> None:
            for each in programs:
                each.check()

        patience_s = BEGIN_S + self._scene.seconds + END_S
        if not await wait_until(lambda: all(each.has_ended for each in programs), patience_s, check):
            late = next(each for each in programs if not each.has_ended)
            raise LabError(f"{late.name} did not end within {END_S:g} s of the scene: {late.last_words()}")
        check()

    def _count_frames(self) -> None:
        record = self.record
        by_kind: Counter[str] = Counter()
        began_at = record.began_at + time.time() - time.monotonic()
        for frame in read_frames(self.capture):
            by_kind[kind_of(frame.data)] += frame.size
            record.frames += 1
            if began_at <= frame.at < began_at + record.seconds:
                record.playing_bytes += frame.size
        record.sent_bytes = dict(by_kind.most_common())


def _write_whole(file: Path, text: str) -> None:
    """Whoever finds it finds all of it."""
    part = file.with_suffix(".part")
    part.write_text(text)
    part.rename(file)
