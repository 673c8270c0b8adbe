"""What applications see of a bus and of a subscription: that, and nothing that is for ourselves."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap

import pytest

import hedgerow
from hedgerow.client.bus import Bus, Subscription
from tests.client.test_transport import LocalTransport
from tests.conftest import StartMosquitto
from tests.waiting import PATIENCE_S


def public_names(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


async def test_a_bus_has_what_applications_may_call() -> None:
    bus = Bus(LocalTransport())
    assert public_names(bus) == {
        "acknowledge", "broker_name", "client_id", "close", "closed", "origin", "publish", "publish_nowait",
        "send", "send_nowait", "state", "subscribe", "unsubscribe", "version", "wait_closed",
    }  # fmt: skip
    assert public_names(bus.subscribe("a")) == {"batches", "close", "dropped", "missed", "topic_filters"}


def examples() -> list[str]:
    """The indented blocks of the package's docstring."""
    found = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", inspect.getdoc(hedgerow) or "", re.MULTILINE)
    return [textwrap.dedent(each).strip() for each in found]


def test_the_examples_of_the_package_work_when_pasted(mosquitto: StartMosquitto) -> None:
    asynchronous, synchronous = examples()
    url = f"mqtt://127.0.0.1:{mosquitto()}"
    assert printed_by(asynchronous) == "home/vacuum/status b'done'\n"
    assert printed_by(synchronous.replace("mqtt://localhost", url)) == "b'done'\n"


def printed_by(program: str) -> str:
    words = [sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout


@pytest.mark.parametrize("name", hedgerow.__all__)
def test_everything_that_is_exported_is_there_and_says_what_it_is(name: str) -> None:
    assert getattr(hedgerow, name).__module__.startswith("hedgerow.")
    assert inspect.getdoc(getattr(hedgerow, name))
    assert name in dir(hedgerow)


async def test_where_there_is_no_server_nothing_is_known_of_it() -> None:
    bus = Bus(LocalTransport())
    assert (bus.client_id, bus.version, bus.broker_name, bus.origin) == (None, None, None, None)


async def test_the_topic_filters_of_a_subscription() -> None:
    subscription = Bus(LocalTransport()).subscribe("a", "b/#")
    assert isinstance(subscription, Subscription)
    assert subscription.topic_filters == ("a", "b/#")
