"""Small scenes on real hosts, in every way: what arrives, and that the capture has every byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow_workshop.lab.genera import scenes
from hedgerow_workshop.lab.genera.scenes import COMPUTED, IPV4_NAMED, IPV6_NAMED, GeneraSettings
from hedgerow_workshop.lab.harness import hosts
from hedgerow_workshop.lab.harness.brokers import OURS, STOCK
from hedgerow_workshop.lab.harness.experiment import Request
from hedgerow_workshop.lab.harness.measure import count_doubled
from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.readings import experiment, measure
from hedgerow_workshop.lab.readings.record import ReadingsRecord
from hedgerow_workshop.lab.readings.run import ReadingsRun
from hedgerow_workshop.lab.readings.scene import MQTT, Device, Scene, Way
from hedgerow_workshop.lab.zhang.experiment import options_of
from hedgerow_workshop.lab.zhang.scenes import UDP, ZhangSettings, station, steps_taken
from tests.programs import need_program

ROBOTS = GeneraSettings(seconds=3.0, mission_s=0.1, first_s=1.0, last_s=1.0)
STATION = ZhangSettings(seconds=4.0, step_s=0.2, reading_s=0.2)
SLACK_BYTES = 500  # What the kernel says between two looks.


def need_hosts() -> None:
    if (reason := hosts.why_not()) is not None:
        pytest.skip(reason)


async def perform(scene: Scene, way: Way, directory: Path, kind: str = OURS) -> ReadingsRecord:
    need_hosts()
    record = await ReadingsRun(scene, way, directory / way.name, directory, kind, options_of(way)).perform()
    assert record.missed_frames == 0
    assert abs(record.bytes - record.counted_bytes) <= SLACK_BYTES
    assert record.carried_bytes > 1.5 * record.counted_bytes
    assert measure.lost([record]) == 0
    assert count_doubled(record.hearings()) == 0
    assert measure.strays(record) == 0
    return record


@pytest.mark.parametrize("way", [COMPUTED, IPV6_NAMED, IPV4_NAMED, MQTT], ids=lambda way: way.name)
async def test_the_vacuum_and_the_mop_in_every_way(way: Way, tmp_path: Path) -> None:
    record = await perform(scenes.robots(ROBOTS), way, tmp_path)
    assert len(record.devices["vacuum"].sent[scenes.VACUUM]) == 10
    assert len(record.devices["mop"].sent[scenes.MOP]) == 10
    delay_ms = measure.delay(record, 50)
    assert delay_ms is not None
    assert 0 < delay_ms < 1_000
    assert ("TCP with data" in record.sent_bytes) is (way is MQTT)


@pytest.mark.parametrize("way", [UDP, MQTT], ids=lambda way: way.name)
async def test_the_nine_steps(way: Way, tmp_path: Path) -> None:
    record = await perform(station(STATION), way, tmp_path)
    assert steps_taken(record) == 9
    heard = {name: {topic for topic, _, _ in device.received} for name, device in record.devices.items()}
    assert heard["laptop"] == {"temperature", "humidity"}
    assert heard["mobile"] == {"wind speed"}
    assert ("UDP" in record.sent_bytes) is (way is UDP)


async def test_a_stock_broker_carries_mqtt_and_nothing_else(tmp_path: Path) -> None:
    need_program("mosquitto")
    need_hosts()
    plays = [(station(STATION), way) for way in (UDP, MQTT)]
    records = await experiment.perform(plays, tmp_path, Request(broker=STOCK), options_of)
    assert [steps_taken(record) for record in records] == [9, 9]
    assert (tmp_path / "station-mqtt" / "broker" / "mosquitto.conf").exists()
    assert not (tmp_path / "station-udp" / "broker" / "mosquitto.conf").exists()


async def test_a_device_that_fails_is_told_of_and_all_end(tmp_path: Path) -> None:
    need_hosts()
    scene = Scene("broken", 0, 1.0, (Device("odd", ("a/#/b",)),))
    with pytest.raises(LabError, match="^odd ended before subscriptions: "):
        await ReadingsRun(scene, COMPUTED, tmp_path / "run", tmp_path).perform()


async def test_on_a_lossy_network_qos_1_and_tcp_lose_nothing(tmp_path: Path) -> None:
    lossy = replace(scenes.robots(ROBOTS, qos=1), loss_percent=10.0)
    for way in (COMPUTED, MQTT):
        record = await perform(lossy, way, tmp_path)
        assert record.readings == 20


async def test_on_a_lossy_network_sensors_readings_are_lost_and_counted(tmp_path: Path) -> None:
    need_hosts()
    lossy = replace(station(STATION), loss_percent=30.0)
    record = await ReadingsRun(lossy, UDP, tmp_path / "run", tmp_path, options=options_of(UDP)).perform()
    lost = measure.lost([record])
    assert lost is not None
    assert 0 < lost < record.readings
