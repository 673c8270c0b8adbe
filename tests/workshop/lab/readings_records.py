"""Records of scenes that never were."""

from __future__ import annotations

from hedgerow_workshop.lab.readings.device import DeviceRecord
from hedgerow_workshop.lab.readings.record import ReadingsRecord

STEP_S = 0.3
DELAY_S = 0.002
BEGAN_AT = 100.0


def make_station(way: str) -> ReadingsRecord:
    """The nine steps and no more, each reading 2 ms on its way; the broker's steps follow the sensor's."""
    at = [BEGAN_AT + STEP_S * step for step in range(1, 7)]
    heard = [time + DELAY_S for time in at]
    devices = {
        "laptop": DeviceRecord(
            received=[("temperature", 0, heard[2]), ("humidity", 0, heard[5])],
            subscribed={"temperature": at[0], "humidity": at[4]},
        ),
        "mobile": DeviceRecord(
            received=[("wind speed", 0, heard[3])],
            subscribed={"wind speed": at[1]},
        ),
        "thermometer": DeviceRecord(sent={"temperature": {0: at[2]}}),
        "anemometer": DeviceRecord(sent={"wind speed": {0: at[3]}}),
        "hygrometer": DeviceRecord(sent={"humidity": {0: at[5]}}),
    }
    is_udp = way == "udp"
    sent = {"UDP": 300} if is_udp else {"TCP with data": 800, "TCP without data": 400}
    return ReadingsRecord(
        "station",
        way,
        0,
        "udp" if is_udp else "mqtt",
        0.0,
        devices,
        BEGAN_AT,
        3.0,
        sent,
        frames=6 if is_udp else 20,
        playing_bytes=180 if is_udp else 600,
        counted_bytes=sum(sent.values()),
        carried_bytes=2 * sum(sent.values()),
    )
