"""Scenes with readings, what their frames are, and the rows that they become."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.genera import experiment as genera
from hedgerow_workshop.lab.genera import scenes
from hedgerow_workshop.lab.genera.scenes import COMPUTED, MOP, VACUUM, GeneraSettings
from hedgerow_workshop.lab.harness import hosts
from hedgerow_workshop.lab.harness.capture import kind_of
from hedgerow_workshop.lab.harness.experiment import Request
from hedgerow_workshop.lab.harness.hosts import NoHostsError
from hedgerow_workshop.lab.readings import experiment, measure
from hedgerow_workshop.lab.readings.device import DeviceRecord, read_record
from hedgerow_workshop.lab.readings.scene import MQTT, Device, Does, every
from hedgerow_workshop.lab.zhang import experiment as zhang
from hedgerow_workshop.lab.zhang.scenes import UDP, ZhangSettings, station, steps_taken
from tests.workshop.lab.readings_records import BEGAN_AT, make_station

# Scenes


def test_the_robots_are_two_and_the_mop_answers_the_vacuum() -> None:
    vacuum, mop = scenes.robots(GeneraSettings()).devices
    assert {action.topic for action in vacuum.actions} == {VACUUM}
    assert vacuum.subscribed == (MOP,)
    assert (mop.subscribed, mop.answers, mop.actions) == ((VACUUM,), {VACUUM: MOP}, ())


@pytest.mark.parametrize("settings", [GeneraSettings(), scenes.FAST])
def test_every_topic_of_the_home_is_read_evenly_and_heard_by_two_or_three(settings: GeneraSettings) -> None:
    home = scenes.home(settings)
    published = Counter(action.topic for device in home.devices for action in device.actions)
    heard = Counter(topic for device in home.devices for topic in device.subscribed)
    assert len(published) == 12
    assert set(heard) == set(published)
    assert set(heard.values()) == {2, 3}
    assert max(published.values()) - min(published.values()) <= 1
    for device in home.devices:
        times = [action.at_s for action in device.actions]
        assert times == sorted(times)
        assert all(settings.first_s <= at <= settings.seconds - settings.last_s for at in times)


def test_the_document_s_way_and_mqtt_carry_every_scene() -> None:
    ways: dict[str, set[str]] = {}
    for scene, way in scenes.runs(scenes.FAST):
        ways.setdefault(scene.name, set()).add(way.name)
    assert ways.keys() == {"robots", "robots-qos1", "robots-lossy", "home"}
    assert all({COMPUTED.name, MQTT.name} <= of_scene for of_scene in ways.values())
    assert ways["home"] == ways["robots"] == {"ipv6", "ipv6-mdns", "ipv4-mdns", "mqtt"}


def test_the_walk_through_has_its_steps_in_order_and_readings_after_them() -> None:
    scene = station(ZhangSettings())
    taken = sorted(
        (action.at_s, device.name, action.does, action.topic)
        for device in scene.devices
        for action in device.actions
    )
    assert [each[1:] for each in taken[:6]] == [
        ("laptop", Does.SUBSCRIBE, "temperature"),
        ("mobile", Does.SUBSCRIBE, "wind speed"),
        ("thermometer", Does.PUBLISH, "temperature"),
        ("anemometer", Does.PUBLISH, "wind speed"),
        ("laptop", Does.SUBSCRIBE, "humidity"),
        ("hygrometer", Does.PUBLISH, "humidity"),
    ]
    assert {does for _, _, does, _ in taken[6:]} == {Does.PUBLISH}
    assert len(taken) > 6 + 3 * 200


def test_devices_connect_at_the_document_s_ports() -> None:
    laptop = next(device for device in station(ZhangSettings()).devices if device.name == "laptop")
    assert UDP.url_of(laptop, "10.0.0.9") == "udp://10.0.0.9:12345?port=12346"
    assert UDP.url_of(Device("thermometer"), "10.0.0.9") == "udp://10.0.0.9:12345"
    assert MQTT.url_of(laptop, "10.0.0.9") == "mqtt://10.0.0.9:1883"
    assert COMPUTED.url_of(laptop, None) == "multicast://eth0?ip=6"


def test_readings_come_at_a_pace() -> None:
    assert [action.at_s for action in every(0.5, 1.0, 2.5, "t")] == [1.0, 1.5, 2.0]
    assert every(0.5, 3.0, 2.0, "t") == []


# Frames

MACS = bytes(12)


def ipv4(protocol: int, rest: bytes, padding: bytes = b"") -> bytes:
    return (
        MACS
        + struct.pack("!HBBHIBBHII", 0x0800, 0x45, 0, 20 + len(rest), 0, 64, protocol, 0, 0, 0)
        + rest
        + padding
    )


def ipv6(protocol: int, rest: bytes) -> bytes:
    return MACS + struct.pack("!HIHBB", 0x86DD, 0x60000000, len(rest), protocol, 1) + bytes(32) + rest


def udp(to_port: int) -> bytes:
    return struct.pack("!HHHH", 40_000, to_port, 9, 0) + b"x"


def tcp(data: bytes = b"", options: bytes = bytes(12)) -> bytes:
    return (
        struct.pack("!HHIIBBHHH", 1883, 40_000, 1, 1, (20 + len(options)) // 4 << 4, 16, 0, 0, 0)
        + options
        + data
    )


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (ipv4(17, udp(18_514)), "UDP"),
        (ipv6(17, udp(18_514)), "UDP"),
        (ipv4(17, udp(5_353)), "mDNS"),
        (ipv6(17, udp(5_353)), "mDNS"),
        (ipv4(6, tcp(b"PUBLISH")), "TCP with data"),
        (ipv4(6, tcp()), "TCP without data"),
        (ipv4(6, tcp(), padding=bytes(6)), "TCP without data"),
        (ipv6(6, tcp(options=b"")), "TCP without data"),
        (ipv4(2, bytes(8)), "group membership"),
        (ipv6(0, bytes((58, 0, 5, 2, 0, 0, 1, 0)) + b"\x8f" + bytes(20)), "group membership"),
        (ipv6(58, b"\x87" + bytes(23)), "neighbours"),
        (MACS + b"\x08\x06" + bytes(28), "neighbours"),
        (MACS + b"\x88\xcc" + bytes(28), "other"),
    ],
)
def test_what_a_frame_is_for(frame: bytes, kind: str) -> None:
    assert kind_of(frame) == kind


# Figures


def test_the_nine_steps_are_counted_up_to_the_first_that_is_missing_or_too_early() -> None:
    record = make_station("udp")
    assert steps_taken(record) == 9
    humidity = record.devices["laptop"].received.pop()
    assert steps_taken(record) == 8
    record.devices["laptop"].received.append((*humidity[:2], BEGAN_AT))
    assert steps_taken(record) == 8
    del record.devices["mobile"].subscribed["wind speed"]
    assert steps_taken(record) == 1


def test_rows_hold_bytes_against_those_of_mqtt() -> None:
    rows = {row.name: row.ours for row in zhang.make_rows([make_station("udp"), make_station("mqtt")])}
    assert list(rows)[:3] == ["bytes-ratio", "delay/p50", "lost"]
    assert rows["bytes-ratio"] == rows["bytes-ratio/station/udp"] == 300 / 1_200
    assert rows["bytes-ratio/station/udp/cables"] == 300 / 1_200
    assert rows["delay/p50"] == pytest.approx(2.0, abs=0.01)
    assert (rows["lost"], rows["steps/udp"], rows["steps/mqtt"]) == (0, 9, 9)
    assert rows["bytes/station/udp/reading"] == 60
    assert rows["bytes/station/mqtt"] == 1_200


def test_what_is_lost_and_what_nobody_asked_for_are_counted() -> None:
    record = make_station("udp")
    record.devices["laptop"].received.clear()
    record.devices["laptop"].received.append(("wind speed", 0, 101.3))
    assert measure.lost([record]) == 2
    assert measure.strays(record) == 1
    rows = {row.name: row.ours for row in zhang.make_rows([record, make_station("mqtt")])}
    assert rows["lost"] == rows["lost/station/udp"] == 2
    notes = list(experiment.make_notes(Request(), [record]))
    assert "station-udp: 1 readings came to devices that had not subscribed to them." in notes


def test_what_was_published_before_a_subscription_is_not_due() -> None:
    record = make_station("mqtt")
    record.devices["hygrometer"].sent["humidity"] = {0: BEGAN_AT, 1: BEGAN_AT + 1.8}
    record.devices["laptop"].received[1] = ("humidity", 1, BEGAN_AT + 1.802)
    assert measure.lost([record]) == 0


def test_a_device_s_record_is_read_back(tmp_path: Path) -> None:
    record = make_station("udp").devices["laptop"]
    record = replace(record, sent={"a": {0: 1.5, 7: 2.5}})
    file = tmp_path / "record.json"
    file.write_text(json.dumps({name: getattr(record, name) for name in DeviceRecord.__slots__}))
    assert read_record(file) == record


# Requests


def test_the_report_has_the_bytes_and_links_to_the_captures(tmp_path: Path) -> None:
    result = zhang.conclude(Request(out=tmp_path), [make_station("udp"), make_station("mqtt")])
    assert result.report == tmp_path / "report.html"
    page = result.report.read_text()
    assert 'href="captures/station-udp.pcap"' in page
    assert "MISSED" not in page
    assert (tmp_path / "bytes.png").stat().st_size > 1_000
    assert (tmp_path / "journals" / "station-mqtt").is_dir()


@pytest.mark.parametrize("module", [genera, zhang])
def test_without_hosts_rows_are_empty_and_a_note_says_why(
    module: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NoHostsError("unshare is not installed")

    monkeypatch.setattr(hosts, "network", refuse)
    result = module.run(Request(fast=True, out=tmp_path))  # type: ignore[attr-defined]
    assert result.rows
    assert {row.ours for row in result.rows} == {None}
    assert result.notes == ["Nothing was measured: there can be no hosts here (unshare is not installed)."]
    assert result.report is not None


@pytest.mark.parametrize(("module", "name"), [(genera, "genera"), (zhang, "zhang")])
def test_what_it_does_not_take_is_named(module: object, name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name} takes no --timeline"):
        module.run(Request(timeline=tmp_path))  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no broker emqx"):
        module.run(Request(broker="emqx"))  # type: ignore[attr-defined]
