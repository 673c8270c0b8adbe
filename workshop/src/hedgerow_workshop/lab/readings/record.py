"""What is written down of a scene that was carried in one way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hedgerow_workshop.lab.harness.record import Arrival, Hearing, RunRecord, Stream
from hedgerow_workshop.lab.readings.device import DeviceRecord


@dataclass(slots=True)
class ReadingsRecord(RunRecord):
    scene: str
    way: str
    qos: int
    transport: str = "mqtt"
    loss_percent: float = 0.0
    devices: dict[str, DeviceRecord] = field(default_factory=dict)
    began_at: float = 0.0
    seconds: float = 0.0
    sent_bytes: dict[str, int] = field(default_factory=dict)
    """Of the frames that hosts sent, each once: by what they are for."""
    frames: int = 0
    playing_bytes: int = 0
    """Of those, what was sent from the first reading on until the scene was over."""
    counted_bytes: int = 0
    """What hosts sent by the kernel's own counters, to check the capture against."""
    carried_bytes: int = 0
    """On all cables: a frame that goes to several hosts counts on the cable of each."""
    missed_frames: int = 0
    """That the capture did not take; then its bytes are too few."""

    @property
    def file_name(self) -> str:
        return f"{self.scene}-{self.way}"

    def settings(self) -> dict[str, str]:
        return {"scene": self.scene, "way": self.way, "qos": str(self.qos), "loss": f"{self.loss_percent:g}"}

    @property
    def bytes(self) -> int:
        return sum(self.sent_bytes.values())

    @property
    def readings(self) -> int:
        """Publications, of all devices."""
        return sum(len(sent) for device in self.devices.values() for sent in device.sent.values())

    def streams(self) -> list[Stream]:
        return [
            Stream(name, topic, sent, self.qos, transport=self.transport)
            for name, device in self.devices.items()
            for topic, sent in device.sent.items()
        ]

    def hearings(self) -> Iterator[Hearing]:
        """No two devices publish to one topic."""
        for stream in self.streams():
            for name, device in self.devices.items():
                arrivals = [
                    Arrival(number, at) for topic, number, at in device.received if topic == stream.topic
                ]
                since = device.subscribed.get(stream.topic)
                if arrivals or since is not None:
                    is_due = since is not None
                    yield Hearing(name, stream, arrivals, self.qos, is_due=is_due, since=since)
