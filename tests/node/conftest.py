"""The shell runs on uvloop and on Python's own event loop, so its tests run on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

ON_BOTH_LOOPS = {
    "test_connect.py",
    "test_endpoint.py",
    "test_multicast_bus.py",
    "test_mqtt_bus.py",
    "test_relay.py",
    "test_sensor_bus.py",
    "test_sensors.py",
    "test_server.py",
    "test_tls.py",
    "test_websocket.py",
    "test_http.py",
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    own: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    return {**own, "uvloop": uvloop.new_event_loop} if item.path.name in ON_BOTH_LOOPS else own
