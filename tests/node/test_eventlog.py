"""Peers cannot fill the log."""

from __future__ import annotations

import logging

import pytest

from hedgerow.broker.events import ClientDisconnected, ConnectionRefused
from hedgerow.node import eventlog
from hedgerow.node.eventlog import EventLog
from hedgerow.node.events import TransportFailed
from hedgerow.sensors.exchange import SensorPacketDropped


def refused(address: str) -> ConnectionRefused:
    return ConnectionRefused(address, None, 0x87, "for the test")


@pytest.fixture
def log() -> EventLog:
    return EventLog(logging.getLogger("test.eventlog"))


def test_one_address_gets_so_many_lines_a_minute_and_a_summary(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(eventlog.MAX_WARNINGS + 1_000):
        log.write(refused("192.0.2.1"), 100.0)
    assert len(caplog.records) == eventlog.MAX_WARNINGS
    log.write(refused("192.0.2.2"), 100.0)
    log.write(TransportFailed("192.0.2.1", "mqtts", "for the test"), 100.0)
    assert len(caplog.records) == eventlog.MAX_WARNINGS + 2
    assert log.deadline == 160.0
    log.handle_timer(160.0)
    assert caplog.records[-1].getMessage() == "1000 more of ConnectionRefused from 192.0.2.1 were left out"
    assert log.deadline is None
    log.write(refused("192.0.2.1"), 161.0)
    assert caplog.records[-1].getMessage().startswith("a connection from 192.0.2.1 refused")


def test_connections_have_more_lines_than_refusals(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(100):
        log.write(ClientDisconnected("192.0.2.1", "c", "for the test"), 100.0)
    assert len(caplog.records) == eventlog.MAX_LINES > eventlog.MAX_WARNINGS


def test_an_ipv6_network_is_one_address(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever has one has 2**64 addresses."""
    for number in range(100):
        log.write(refused(f"2001:db8::{number:x}"), 100.0)
    log.write(refused("2001:db8:0:1::1"), 100.0)
    assert len(caplog.records) == eventlog.MAX_WARNINGS + 1
    log.close()
    assert caplog.records[-1].getMessage() == "90 more of ConnectionRefused from 2001:db8::/64 were left out"


def test_many_addresses_share_one_count_in_the_end(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(10 * eventlog.MAX_KEYS):
        log.write(refused(f"10.0.{n >> 8}.{n & 255}"), 100.0)
    assert len(caplog.records) == eventlog.MAX_KEYS + eventlog.MAX_WARNINGS


def test_a_record_carries_the_fact_itself(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    log.write(refused("192.0.2.1"), 100.0)
    assert caplog.records[0].msg == refused("192.0.2.1")


def test_what_is_not_logged_is_not_counted(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    logging.getLogger("test.eventlog").setLevel(logging.ERROR)
    try:
        for _ in range(eventlog.MAX_WARNINGS + 1):
            log.write(refused("192.0.2.1"), 100.0)
    finally:
        logging.getLogger("test.eventlog").setLevel(logging.NOTSET)
    assert log.deadline is None
    assert not caplog.records


def test_the_last_minute_has_its_summary_too(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(eventlog.MAX_WARNINGS + 5):
        log.write(refused("192.0.2.1"), 100.0)
    log.close()
    assert caplog.records[-1].getMessage() == "5 more of ConnectionRefused from 192.0.2.1 were left out"


def test_a_kind_may_have_a_bound_of_its_own_and_then_has_no_summary(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    for address in ("192.0.2.1", "192.0.2.2"):
        for _ in range(100):
            log.write(SensorPacketDropped(address, "for the test"), 100.0)
    assert [record.getMessage() for record in caplog.records] == [
        "sensor packet from 192.0.2.1 dropped: for the test",
        "sensor packet from 192.0.2.2 dropped: for the test",
    ]
    log.write(SensorPacketDropped("192.0.2.1", "for the test"), 160.0)
    log.close()
    assert len(caplog.records) == 3


def test_such_a_kind_says_so_many_reasons_and_that_there_will_be_no_more(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        for reason in ("one", "two", "three", "four"):
            log.write(SensorPacketDropped("192.0.2.1", reason), 100.0)
    log.write(SensorPacketDropped("192.0.2.2", "four"), 100.0)
    lines = [record.getMessage().removeprefix("sensor packet from 192.0.2.") for record in caplog.records]
    assert lines == [
        "1 dropped: one",
        "1 dropped: two",
        "1 dropped: three; more from there are only counted for a minute",
        "2 dropped: four",
    ]
