"""`hedgerow.connect_sync`: the same bus for scripts, notebooks and threads."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

import hedgerow
from hedgerow.client.mqtt_transport import CLOSE_TIMEOUT_S
from hedgerow.mqtt.packets import Connack, Connect, Disconnect, Packet, Subscribe
from hedgerow.mqtt.reasons import Reason
from hedgerow_workshop.programs import free_udp_port
from tests.client.scripted import polite, scripted
from tests.conftest import StartMosquitto
from tests.programs import wait_until
from tests.waiting import PATIENCE_S


@pytest.fixture
def url(mosquitto: StartMosquitto) -> str:
    return f"mqtt://127.0.0.1:{mosquitto()}"


def bus_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hedgerow bus"]


def test_publish_and_subscribe(url: str) -> None:
    with hedgerow.connect_sync(url, client_id="script") as bus:
        assert (bus.client_id, bus.version, bus.state) == ("script", 5, hedgerow.State.CONNECTED)
        with bus.subscribe("home/+/status", qos=1) as messages:
            bus.publish("home/vacuum/status", "done")
            bus.publish("home/mop/status", b"\0", qos=2)
            bus.send(hedgerow.Message("home/door/status", b"open", 1))
            found = list(islice(messages, 3))
        assert [(message.topic, message.payload, message.qos) for message in found] == [
            ("home/vacuum/status", b"done", 0),
            ("home/mop/status", b"\0", 1),
            ("home/door/status", b"open", 1),
        ]
    assert bus.closed
    assert not bus_threads()


def test_a_loop_subscribes_and_unsubscribes_by_itself(url: str) -> None:
    with hedgerow.connect_sync(url) as bus:
        bus.publish("kept", "value", qos=1, retain=True)
        for message in bus.subscribe("kept", timeout=PATIENCE_S):
            assert (message.payload, message.retain) == (b"value", True)
            break
        with bus.subscribe("other") as messages:
            bus.publish("kept", "nobody hears it", qos=1)
            bus.publish("other", "x", qos=1)
            assert messages.get(PATIENCE_S).topic == "other"


def test_a_loop_ends_when_nothing_comes_in_time(url: str) -> None:
    with hedgerow.connect_sync(url) as bus, bus.subscribe("a", timeout=0.2) as messages:
        for payload in ("1", "2"):
            bus.publish("a", payload, qos=1)
        assert [message.payload for message in messages] == [b"1", b"2"]
        with pytest.raises(TimeoutError):
            messages.get(timeout=0.05)
        bus.publish("a", "3", qos=1)
        assert messages.get(timeout=PATIENCE_S).payload == b"3"


def test_what_was_not_taken_in_one_loop_is_there_for_the_next(url: str) -> None:
    with hedgerow.connect_sync(url) as bus, bus.subscribe("a", qos=1) as messages:
        for number in range(10):
            bus.publish("a", str(number), qos=1)
        first = [int(message.payload) for message in islice(messages, 4)]
        rest = [int(messages.get(PATIENCE_S).payload) for _ in range(6)]
        assert first + rest == list(range(10))


def test_many_messages_come_in_order(url: str) -> None:
    with hedgerow.connect_sync(url) as bus, bus.subscribe("a", timeout=PATIENCE_S) as messages:
        for number in range(2_000):
            bus.publish("a", b"%d" % number)
        for number, message in enumerate(messages):
            assert message.payload == b"%d" % number
            if number == 1_999:
                break
        assert messages.dropped == 0
        assert messages.topic_filters == ("a",)


def test_threads_share_a_bus(url: str) -> None:
    with (
        hedgerow.connect_sync(url) as bus,
        bus.subscribe("a", qos=1) as messages,
        ThreadPoolExecutor(8) as threads,
    ):

        def take() -> bytes:
            return messages.get(PATIENCE_S).payload

        def publish(number: int) -> None:
            bus.publish("a", b"%d" % number, qos=1 + number % 2)

        taking = [threads.submit(take) for _ in range(4)]
        list(threads.map(publish, range(200)))
        taken = [each.result() for each in taking] + [take() for _ in range(196)]
        assert sorted(taken, key=int) == [b"%d" % number for number in range(200)]


async def test_it_works_where_a_loop_runs_already(url: str) -> None:
    """As in a notebook, whose cells run in the loop."""
    asyncio.get_running_loop()
    with hedgerow.connect_sync(url) as bus, bus.subscribe("a") as messages:
        bus.publish("a", "x")
        assert messages.get(PATIENCE_S).payload == b"x"


def test_other_transports() -> None:
    url = f"multicast://lo:{free_udp_port()}?ip=4"
    with hedgerow.connect_sync(url) as bus, bus.subscribe("a", qos=1) as messages:
        bus.publish("a", "x", qos=1)
        assert messages.get(PATIENCE_S).payload == b"x"
        assert bus.client_id is None


def test_errors_are_raised_where_they_are_made(url: str) -> None:
    with pytest.raises(hedgerow.ConfigError, match="no transport"):
        hedgerow.connect_sync("amqp://host")
    with pytest.raises(hedgerow.ConfigError, match="without TLS"):
        hedgerow.connect_sync("mqtt://host", ca_file="ca.pem")
    with pytest.raises(hedgerow.ConnectError, match="connection refused"):
        hedgerow.connect_sync("mqtt://127.0.0.1:1")
    assert not bus_threads()
    with hedgerow.connect_sync(url) as bus:
        with pytest.raises(hedgerow.TopicError):
            bus.publish("a/#")
        with pytest.raises(hedgerow.TopicError):
            bus.subscribe("a#")
        bus.publish("a", qos=1)


async def test_a_server_that_does_not_answer_is_not_waited_for_longer_than_allowed() -> None:
    def use(url: str) -> None:
        with hedgerow.connect_sync(url) as bus:
            bus.publish("a")
            with pytest.raises(TimeoutError):
                bus.publish("a", qos=1, timeout=0.1)
            with pytest.raises(TimeoutError):
                bus.subscribe("b").get(timeout=0.1)
            raise ZeroDivisionError  # What was published is then not waited for either.

    async with scripted(lambda packet: [Connack()] if isinstance(packet, Connect) else []) as server:
        began_at = time.monotonic()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(use, server.url)
        assert time.monotonic() - began_at < CLOSE_TIMEOUT_S
        await server.until_received(Disconnect)


async def test_a_bus_that_its_server_closes_for_good_says_why() -> None:
    def use(url: str) -> None:
        with hedgerow.connect_sync(url) as bus:
            with pytest.raises(hedgerow.ConnectError, match="session taken over"):
                for _ in bus.subscribe("a"):
                    pass
            with pytest.raises(hedgerow.ConnectError, match="session taken over"):
                bus.publish("a", qos=1)

    def answer(packet: Packet) -> list[Packet] | None:
        return (
            [*polite(packet), Disconnect(Reason.SESSION_TAKEN_OVER)]
            if isinstance(packet, Subscribe)
            else polite(packet)
        )

    async with scripted(answer) as server:
        await asyncio.to_thread(use, server.url)


def test_what_waits_ends_with_the_bus(url: str) -> None:
    bus = hedgerow.connect_sync(url)
    heard: list[bytes | None] = []

    def listen() -> None:
        heard.extend(message.payload for message in messages)
        heard.append(None)

    with bus.subscribe("a") as messages:
        listening = threading.Thread(target=listen)
        listening.start()
        bus.publish("a", "x", qos=1)
        wait_until(lambda: heard == [b"x"], "the message")
        bus.close()
        listening.join(PATIENCE_S)
        assert heard == [b"x", None]
        assert list(messages) == []
        with pytest.raises(hedgerow.HedgerowError, match="the subscription has ended"):
            messages.get()
    bus.close()
    for use in (lambda: bus.publish("a"), lambda: bus.subscribe("a").get(), lambda: bus.unsubscribe("a")):
        with pytest.raises(hedgerow.HedgerowError, match="the bus is closed"):
            use()


def test_unsubscribing_and_closing_end_a_loop(url: str) -> None:
    with hedgerow.connect_sync(url) as bus:
        with bus.subscribe("a") as messages:
            bus.publish("a", "x", qos=1)
            bus.unsubscribe("a")
            assert [message.payload for message in messages] == [b"x"]
        with bus.subscribe("a", qos=1) as messages:
            bus.publish("a", "x", qos=1)
            messages.close()
            assert list(messages) == []


def test_what_was_not_acknowledged_by_hand_comes_again(url: str) -> None:
    options: dict[str, Any] = {"client_id": "recorder", "clean_start": False, "manual_acknowledgement": True}
    with hedgerow.connect_sync(url, **options) as bus, bus.subscribe("a", qos=1, keep=True) as messages:
        for payload in ("0", "1"):
            bus.publish("a", payload, qos=1)
        bus.acknowledge(messages.get(PATIENCE_S))
        assert messages.get(PATIENCE_S).payload == b"1"
    with hedgerow.connect_sync(url, **options) as bus, bus.subscribe("a", qos=1, keep=True) as messages:
        assert messages.get(PATIENCE_S).payload == b"1"


def test_the_bus_is_told_of_and_not_waited_for_on_its_own_thread(url: str) -> None:
    seen: list[object] = []

    def note(change: hedgerow.StateChange) -> None:
        seen.append(threading.current_thread().name)
        if change.state is hedgerow.State.CLOSED:
            try:
                bus.publish("a")
            except RuntimeError as error:
                seen.append(str(error))

    with hedgerow.connect_sync(url, on_state=note) as bus:
        pass
    assert set(seen[:-1]) == {"hedgerow bus"}
    assert "cannot wait for itself" in str(seen[-1])


def test_a_bus_that_nobody_has_any_more_is_closed(url: str) -> None:
    bus: hedgerow.SyncBus | None = hedgerow.connect_sync(url)
    assert bus is not None
    messages: hedgerow.SyncSubscription | None = bus.subscribe("a")
    bus = None
    gc.collect()
    assert len(bus_threads()) == 1  # The subscription has it.
    messages = None
    gc.collect()
    wait_until(lambda: not bus_threads(), "the thread to end")
    assert messages is None


def test_in_a_fork_it_is_closed(url: str) -> None:
    with hedgerow.connect_sync(url) as bus:
        child = os.fork()
        if not child:
            status = 1
            try:
                bus.publish("a")
            except hedgerow.HedgerowError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        bus.publish("a", qos=1)


def test_it_takes_the_options_of_connect_and_explains_them() -> None:
    assert (
        inspect.signature(hedgerow.connect_sync).parameters == inspect.signature(hedgerow.connect).parameters
    )
    assert inspect.signature(hedgerow.connect_sync).return_annotation == "SyncBus"
    for function in (hedgerow.connect, hedgerow.connect_sync):
        words = set(re.findall(r"\w+", function.__doc__ or ""))
        assert set(inspect.signature(function).parameters) <= words


def test_it_has_the_calls_of_a_bus() -> None:
    public = {name for name in dir(hedgerow.Bus) if name[0] != "_"}
    assert {name for name in dir(hedgerow.SyncBus) if name[0] != "_"} == public - {
        "publish_nowait",
        "send_nowait",
        "wait_closed",
    }


# How programs end.

SCRIPT = """
import signal, sys, hedgerow
signal.signal(signal.SIGINT, signal.default_int_handler)  # also below nohup
bus = hedgerow.connect_sync(sys.argv[1], will=hedgerow.Message("will", b"vanished", 1))
"""
ENDS = {
    "without closing": 'bus.publish("ready", qos=1)',
    "with an error": 'bus.publish("ready", qos=1); raise ZeroDivisionError',
    "by Ctrl-C in a loop": """
with bus, bus.subscribe("nothing") as messages:
    bus.publish("ready", qos=1)
    for message in messages: pass
""",
    "by Ctrl-C without closing": """
with bus.subscribe("nothing") as messages:
    bus.publish("ready", qos=1)
    messages.get()
""",
}


@pytest.mark.parametrize("ending", ENDS)
def test_however_a_program_ends_the_server_hears_of_it(url: str, ending: str) -> None:
    """A client that vanishes has its will published."""
    with hedgerow.connect_sync(url) as watcher, watcher.subscribe("ready", "will", qos=1) as messages:
        words = [sys.executable, "-c", SCRIPT + ENDS[ending], url]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as program:
            assert messages.get(PATIENCE_S).topic == "ready"
            if "Ctrl-C" in ending:
                program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=PATIENCE_S)
        watcher.publish("will", "not yet", qos=1)
        assert messages.get(PATIENCE_S).payload == b"not yet"
    expected = {"without closing": "", "with an error": "ZeroDivisionError"}.get(ending, "KeyboardInterrupt")
    assert errors.strip().rpartition("\n")[2] == expected
    assert errors.count("Traceback") == bool(expected)
