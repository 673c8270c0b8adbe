"""What waits at a stock Mosquitto: little, while our disk is slow; and what it drops is told, by its name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import hedgerow
from hedgerow.bridges.config import BridgesConfig
from hedgerow.bridges.part import BridgesPart
from hedgerow.client.urls import parse_url
from hedgerow.federation.interests.events import MOSQUITTO_LINES
from hedgerow.journal.config import JournalConfig
from hedgerow.journal.io.recorder import Recorder, RecorderOptions
from hedgerow.log.appender import Appender
from hedgerow.mqtt.packets import Subscribe, Subscription
from hedgerow.node.handlers import Request
from hedgerow.node.metrics import metrics
from hedgerow.node.server import Server
from hedgerow.node.store import Store
from tests.conftest import StartMosquitto
from tests.faults.federated import sidecar
from tests.journal.plain import read_plain
from tests.node.peers import connected, part_of, running
from tests.waiting import until

BURST = 8_000  # more than Mosquitto keeps for a client: 1,000, behind what is in flight
AT_A_TIME = 500
WAIT_S = 30.0
FEW = 10
SOON = "sys_interval 1"  # how often it counts


class Disk:
    """What is written waits while it stands still."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()

    def wait_before(self, commit: Callable[..., object]) -> Callable[..., object]:
        def commit_later(*arguments: object) -> object:
            self.goes_on.wait(WAIT_S)
            return commit(*arguments)

        return commit_later


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    for kind in (Appender, Store):
        monkeypatch.setattr(kind, "commit", disk.wait_before(kind.commit))
    yield disk
    disk.goes_on.set()


@asynccontextmanager
async def recording(port: int, directory: Path) -> AsyncIterator[Recorder]:
    recorder = Recorder(
        RecorderOptions(parse_url(f"mqtt://127.0.0.1:{port}"), JournalConfig(("a/#",), directory))
    )
    task = asyncio.ensure_future(recorder.run())
    try:
        await until(lambda: recorder.is_recording or task.done(), "the recorder")
        yield recorder
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def bridged(port: int, directory: Path) -> AsyncIterator[Server]:
    """A node with a store, a journal, and a bridge that has `a/#` in."""
    section = directory / "bridge.conf"
    section.write_text(f"connection north\naddress 127.0.0.1:{port}\ntopic a/# in 1\n")
    journal = JournalConfig(("a/#",), directory / "journal")
    async with running(BridgesConfig((section,)), journal, data=directory / "data") as node:
        (bridge,) = part_of(node, BridgesPart).bridges.kept
        await until(lambda: bridge.is_up, "the bridge")
        yield node


async def publish_burst(port: int) -> list[bytes]:
    sent = [b"%d" % number for number in range(BURST)]
    async with hedgerow.connect(f"mqtt://127.0.0.1:{port}") as bus:
        for begin in range(0, BURST, AT_A_TIME):
            await asyncio.gather(
                *(bus.publish("a/b", each, qos=1) for each in sent[begin : begin + AT_A_TIME])
            )
    return sent


async def all_recorded(directory: Path, sent: list[bytes]) -> None:
    await until(lambda: len(read_plain(directory)) >= len(sent), "the rows")
    assert sorted(row.payload for row in read_plain(directory)) == sorted(sent)


async def test_a_burst_does_not_wait_in_the_queue_for_the_recorders_disk(
    mosquitto: StartMosquitto, tmp_path: Path, disk: Disk
) -> None:
    port = mosquitto()
    async with recording(port, tmp_path):
        disk.goes_on.clear()
        sent = await publish_burst(port)
        disk.goes_on.set()
        await all_recorded(tmp_path, sent)


async def test_a_burst_does_not_wait_in_the_queue_for_the_nodes_disk(
    mosquitto: StartMosquitto, tmp_path: Path, disk: Disk
) -> None:
    port = mosquitto()
    async with bridged(port, tmp_path) as node:
        disk.goes_on.clear()
        sent = await publish_burst(port)
        # All of them are here while nothing is stored.
        await until(lambda: node.broker.stats.publish_received >= BURST, "the burst")
        disk.goes_on.set()
        await all_recorded(tmp_path / "journal", sent)


async def have_messages_dropped(port: int) -> None:
    """One client is away, and more comes for it than is kept."""
    async with connected(port, "away", properties={"session_expiry_interval": 3600}) as away:
        away.send(Subscribe(1, [Subscription("lost/#", 1)]))
        await away.receive()
    async with hedgerow.connect(f"mqtt://127.0.0.1:{port}") as bus:
        for number in range(3 * FEW):
            await bus.publish("lost/1", str(number), qos=1)


def says_so(caplog: pytest.LogCaptureFixture, port: int) -> bool:
    return f"127.0.0.1:{port} dropped {2 * FEW} messages" in caplog.text


LINES = (SOON, f"max_queued_messages {FEW}", "max_inflight_messages 1")


async def test_a_bridge_tells_what_was_dropped_there(
    mosquitto: StartMosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = mosquitto(*LINES)
    async with bridged(port, tmp_path) as node:
        part = part_of(node, BridgesPart)
        (bridge,) = part.bridges.kept
        await until(lambda: bridge.dropped_there.is_heard, "the count before")
        await have_messages_dropped(port)
        await until(lambda: says_so(caplog, port), "the warning")
        assert "max_queued_messages 0" in caplog.text
        (link,) = part.status()["links"]
        assert link["in"]["dropped_there"] == 2 * FEW
        assert link["round_trip_ms"] > 0
        text = metrics(node)(Request("GET", "/metrics", {})).body.decode()
        assert f'hedgerow_bridge_far_messages_dropped_total{{bridge="north"}} {2.0 * FEW}' in text


async def test_a_sidecar_tells_what_was_dropped_there(
    mosquitto: StartMosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    port = mosquitto(*LINES, *MOSQUITTO_LINES)
    async with sidecar("s", port) as node:
        home = part_of(node, BridgesPart).home
        assert home is not None
        await until(lambda: home.dropped_there.is_heard, "the count before")
        await have_messages_dropped(port)
        await until(lambda: says_so(caplog, port), "the warning")
        (link,) = part_of(node, BridgesPart).status()["links"]
        assert link["in"]["dropped_there"] == 2 * FEW


async def test_a_recorder_tells_what_was_dropped_there(
    mosquitto: StartMosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = mosquitto(*LINES)
    async with recording(port, tmp_path) as recorder:
        await until(lambda: recorder.dropped_there.is_heard, "the count before")
        await have_messages_dropped(port)
        await until(lambda: says_so(caplog, port), "the warning")
        assert recorder.dropped_there.total == 2 * FEW
    assert read_plain(tmp_path) == []
