"""What the lab's experiments leave for Wireshark is read by tshark with our dissectors, frame by frame."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hedgerow_workshop.lab.genera import scenes
from hedgerow_workshop.lab.genera.scenes import COMPUTED, IPV4_NAMED, IPV6_NAMED, GeneraSettings
from hedgerow_workshop.lab.harness import hosts
from hedgerow_workshop.lab.readings.record import ReadingsRecord
from hedgerow_workshop.lab.readings.run import ReadingsRun
from hedgerow_workshop.lab.readings.scene import MQTT, Scene, Way
from hedgerow_workshop.lab.zhang.experiment import options_of
from hedgerow_workshop.lab.zhang.scenes import PORTS, UDP, ZhangSettings, station
from tests.waiting import PATIENCE_S
from tests.wireshark.capture import DISSECTORS, need_dissecting_tshark

ROBOTS = GeneraSettings(seconds=3.0, mission_s=0.1, first_s=1.0, last_s=1.0)
STATION = ZhangSettings(seconds=4.0, step_s=0.2, reading_s=0.2)


async def captured(scene: Scene, way: Way, directory: Path) -> tuple[Path, ReadingsRecord]:
    need_dissecting_tshark()
    if (reason := hosts.why_not()) is not None:
        pytest.skip(reason)
    run = ReadingsRun(scene, way, directory / "run", directory, options=options_of(way))
    return run.capture, await run.perform()


def fields(capture: Path, display_filter: str, *names: str) -> list[list[str]]:
    """Of each packet that the filter passes, these fields."""
    command = [need_dissecting_tshark(), "-X", f"lua_script:{DISSECTORS}", "-r", str(capture)]
    command += ["-Y", display_filter, "-T", "fields", *(word for name in names for word in ("-e", name))]
    done = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    assert b"Lua" not in done.stderr, done.stderr.decode()
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


@pytest.mark.parametrize("way", [COMPUTED, IPV6_NAMED, IPV4_NAMED], ids=lambda way: way.name)
async def test_missions_are_dissected(way: Way, tmp_path: Path) -> None:
    capture, record = await captured(scenes.robots(ROBOTS), way, tmp_path)
    assert fields(capture, "hedgerow.multicast.malformed or _ws.malformed", "frame.number") == []
    frames = fields(capture, "hedgerow.multicast.kind", "hedgerow.multicast.kind")
    assert len(frames) == len(fields(capture, "udp.port == 18514 or udp.port == 18515", "frame.number"))
    data = fields(capture, "hedgerow.multicast.kind == 1", "hedgerow.multicast.payload")
    payloads = {bytes.fromhex(text.replace(":", "")) for (text,) in data}
    assert payloads == {b"%d 21.5" % number for number in range(10)}
    assert len(data) >= record.readings


async def test_readings_of_sensors_are_dissected(tmp_path: Path) -> None:
    capture, record = await captured(station(STATION), UDP, tmp_path)
    assert fields(capture, "hedgerow.sensor.malformed or _ws.malformed", "frame.number") == []
    packets = fields(capture, "hedgerow.sensor", "hedgerow.sensor.role", "hedgerow.sensor.port")
    assert len(packets) == len(fields(capture, "udp", "frame.number"))
    assert {port for role, port in packets if role == "0"} == {str(port) for port in PORTS.values()}
    # Each reading goes to the broker, and from there to its one subscriber.
    assert len([role for role, _ in packets if role == "1"]) == 2 * record.readings


async def test_mqtt_beside_them_is_dissected_as_3_1_1(tmp_path: Path) -> None:
    capture, record = await captured(station(STATION), MQTT, tmp_path)
    assert {version for (version,) in fields(capture, "mqtt.msgtype == 1", "mqtt.ver")} == {"4"}
    published = fields(capture, "mqtt.msgtype == 3", "mqtt.topic")
    topics = [topic for (several,) in published for topic in several.split(",")]
    assert len(topics) == 2 * record.readings
