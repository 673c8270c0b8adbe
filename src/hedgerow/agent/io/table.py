"""The drivers, in the order of preference. One for EMQX or HiveMQ, by their REST interfaces, goes before the
last, which takes any broker."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.agent.io.drivers import Driver, DriverContext, HedgerowDriver
from hedgerow.agent.io.mosquitto import MosquittoDriver
from hedgerow.agent.io.process_driver import ProcessDriver

DRIVERS: tuple[Callable[[DriverContext], Driver], ...] = (
    HedgerowDriver,  # commands as publications
    MosquittoDriver,  # from 2.1 on, where its configuration folder is given: files and SIGHUP
    ProcessDriver,  # any other
)


def make_drivers(context: DriverContext) -> list[Driver]:
    return [make(context) for make in DRIVERS]
