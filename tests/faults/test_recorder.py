"""A recorder that is killed, stopped, without its broker or without room has each message once."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.journal.io.files import durable_position
from hedgerow.pipeline.program import Program
from hedgerow_workshop.programs import free_port
from tests.client.scripted import Cable
from tests.conftest import StartMosquitto, StartNode
from tests.faults.test_full_disk import in_small_file_system
from tests.journal.plain import read_plain
from tests.programs import end, need_program, start_mosquitto
from tests.waiting import until

MESSAGES = 800
KILLS = 4
STEP = 25


class RecorderProgram(Program):
    def __init__(
        self,
        directory: Path,
        url: str,
        *options: str,
        wrapper: tuple[str, ...] = (),
        topic_filter: str = "#",
    ) -> None:
        super().__init__("recorder", directory)
        self.journal = directory / "journal"
        self._filter = topic_filter
        command = [sys.executable, "-m", "hedgerow", "record", "--broker", url, "--filter", topic_filter]
        self._command = [*wrapper, *command, "--journal", str(self.journal), *options]
        self._begins = 0

    def start(self) -> None:
        self._begins = self.log.stat().st_size if self.log.exists() else 0
        self.launch(self._command)

    @property
    def said(self) -> str:
        """Since it was last started."""
        return self.log.read_bytes()[self._begins :].decode()

    async def until_recording(self) -> None:
        await until(
            lambda: f"recording {self._filter}" in self.said or self.has_ended, "the recorder to record"
        )
        assert not self.has_ended, self.said

    @property
    def rows(self) -> int:
        return durable_position(self.journal) or 0

    async def until_rows(self, count: int) -> None:
        await until(lambda: self.rows >= count, f"{count} rows")

    def contents(self) -> Counter[bytes]:
        return Counter(row.payload for row in read_plain(self.journal))


@contextmanager
def recorder_of(
    tmp_path: Path, url: str, *options: str, wrapper: tuple[str, ...] = (), topic_filter: str = "#"
) -> Iterator[RecorderProgram]:
    directory = tmp_path / "recorder"
    with RecorderProgram(directory, url, *options, wrapper=wrapper, topic_filter=topic_filter) as recorder:
        yield recorder
    assert "Traceback" not in recorder.log.read_text(), recorder.log.read_text()


def content(number: int) -> bytes:
    """Every content comes several times: one message must not be taken for another of the same."""
    return b"%d" % (number // 7)


EXPECTED = Counter(content(number) for number in range(MESSAGES))


async def publish(bus: hedgerow.Bus, numbers: range) -> None:
    """QoS 1 and 2 in turn, as fast as it goes in steps."""
    for first in range(numbers.start, numbers.stop, STEP):
        step = range(first, first + STEP)
        await asyncio.gather(
            *(bus.publish_nowait("a/b", content(number), qos=1 + number % 2) for number in step)
        )
        await asyncio.sleep(0.02)


async def publish_all(url: str, done: asyncio.Event, **options: Any) -> None:
    async with hedgerow.connect(url, max_in_flight=50, reconnect_delay=(0.05, 0.2), **options) as bus:
        await publish(bus, range(MESSAGES))
    done.set()


@contextmanager
def published(url: str, **options: Any) -> Iterator[asyncio.Event]:
    done = asyncio.Event()
    publishing = asyncio.ensure_future(publish_all(url, done, **options))
    try:
        yield done
    finally:
        publishing.cancel()


def kinds(*ordinary: tuple[str, str], names: tuple[str, str]) -> list[Any]:
    """Both brokers or versions, with and without ids of the publisher's; what is not ordinary, in a soak."""
    return [
        pytest.param(
            name,
            origin,
            id=f"{name}-{kind}",
            marks=() if (name, kind) in ordinary else pytest.mark.soak,
        )
        for name in names
        for kind, origin in (("plain", None), ("identified", "press"))
    ]


@pytest.mark.parametrize(
    ("broker", "origin"),
    kinds(("mosquitto", "plain"), ("node", "identified"), names=("mosquitto", "node")),
)
async def test_killed_again_and_again_it_has_each_message_once(
    broker: str, origin: str | None, mosquitto: StartMosquitto, hedgerow_node: StartNode, tmp_path: Path
) -> None:
    if broker == "mosquitto":
        url = f"mqtt://127.0.0.1:{mosquitto('max_queued_messages 0', 'max_inflight_messages 200')}"
    else:
        url = hedgerow_node().urls["mqtt"]
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    with recorder_of(tmp_path, url) as recorder:
        recorder.start()
        await recorder.until_recording()
        async with hedgerow.connect(url, max_in_flight=50, origin=origin) as bus:
            part = MESSAGES // KILLS
            for first in range(0, MESSAGES, part):
                publishing = asyncio.ensure_future(publish(bus, range(first, first + part)))
                await until(lambda first=first: recorder.rows > first, "something new to be recorded")  # type: ignore[misc]
                await asyncio.sleep(chance.uniform(0.0, 0.1))
                recorder.kill()
                recorder.start()
                await publishing
        await until(lambda: recorder.rows >= MESSAGES, f"{MESSAGES} rows")
        recorder.end()
        assert recorder.contents() == EXPECTED
        ids = Counter(row.id for row in read_plain(recorder.journal))
        assert max(ids.values()) == 1


class DeafCable(Cable):
    """While `deaf`, what the near end says does not reach the far one."""

    deaf = False

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_upstream = writer.get_extra_info("peername")[1] == self.target
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if not (is_upstream and self.deaf):
                    writer.write(data)
                    await writer.drain()
        writer.close()


@pytest.mark.parametrize(
    ("version", "origin"), kinds(("5", "identified"), ("311", "plain"), names=("5", "311"))
)
async def test_killed_when_no_acknowledgement_has_arrived(
    version: str, origin: str | None, mosquitto: StartMosquitto, tmp_path: Path
) -> None:
    """All is in the journal, and the broker sends all of it again."""
    port = mosquitto("max_queued_messages 0", "max_inflight_messages 100")
    cable = DeafCable(port)
    listener = await asyncio.start_server(cable.accept, "127.0.0.1", 0)
    cable.port = listener.sockets[0].getsockname()[1]
    number = 0
    try:
        with recorder_of(tmp_path, cable.url, "-V", version) as recorder:
            recorder.start()
            await recorder.until_recording()
            async with hedgerow.connect(f"mqtt://127.0.0.1:{port}", origin=origin) as bus:
                for _ in range(2):
                    cable.deaf = True
                    for _ in range(30):
                        await bus.publish("a", content(number), qos=1 + number % 2)
                        number += 1
                    await until(lambda: recorder.rows >= number, "its rows")  # noqa: B023
                    recorder.kill()
                    cable.cut()
                    cable.deaf = False
                    recorder.start()
                    await recorder.until_recording()
                await bus.publish("a", content(number), qos=1)
            await until(lambda: recorder.rows > number, "the last row")
            recorder.end()
            assert recorder.contents() == Counter(content(each) for each in range(number + 1))
    finally:
        listener.close()
        await cable.close()


async def test_stopped_for_a_while(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto('max_queued_messages 0')}"
    with recorder_of(tmp_path, url) as recorder:
        recorder.start()
        await recorder.until_recording()
        with published(url) as done:
            await until(lambda: recorder.rows > 100, "a hundred rows")
            recorder.send(signal.SIGSTOP)
            assert recorder.process is not None
            state = Path(f"/proc/{recorder.process.pid}/stat")
            await until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "it to be stopped")
            rows = recorder.rows
            await asyncio.wait_for(done.wait(), 60)
            assert recorder.rows == rows
            recorder.send(signal.SIGCONT)
        await until(lambda: recorder.rows >= MESSAGES, f"{MESSAGES} rows")
        assert recorder.contents() == EXPECTED


async def test_a_node_is_killed_and_comes_back(hedgerow_node: StartNode, tmp_path: Path) -> None:
    """The publisher gives ids: what it sends again, in doubt, is dropped."""
    node = hedgerow_node("--data", str(tmp_path / "data"))
    url = node.urls["mqtt"]
    with recorder_of(tmp_path, url) as recorder:
        recorder.start()
        await recorder.until_recording()
        with published(url, origin="press") as done:
            await until(lambda: recorder.rows > 100, "a hundred rows")
            node.kill9()
            node.start()
            await asyncio.wait_for(done.wait(), 60)
        await until(lambda: recorder.rows >= MESSAGES, f"{MESSAGES} rows")
        recorder.end()
        assert recorder.contents() == EXPECTED


async def test_mosquitto_is_restarted(tmp_path: Path) -> None:
    program, port = need_program("mosquitto"), free_port()
    lines = ("persistence true", "max_queued_messages 0", f"persistence_location {tmp_path}/")
    url = f"mqtt://127.0.0.1:{port}"
    broker = start_mosquitto(program, tmp_path, port, lines)
    assert broker is not None
    try:
        with recorder_of(tmp_path, url, "--broker-name", "barn") as recorder:
            recorder.start()
            await recorder.until_recording()
            async with hedgerow.connect(url) as bus:
                recorder.kill()
                for number in range(50):
                    await bus.publish("a", content(number), qos=1 + number % 2)
            end(broker)
            recorder.start()  # with no broker there
            await until(lambda: "connecting again" in recorder.said, "it to try")
            broker = start_mosquitto(program, tmp_path, port, lines)
            assert broker is not None
            await until(lambda: recorder.rows >= 50, "50 rows")
            recorder.end()
            assert recorder.contents() == Counter(content(number) for number in range(50))
            assert {row.broker for row in read_plain(recorder.journal)} == {"barn"}
    finally:
        if broker is not None and broker.poll() is None:
            end(broker)


async def test_a_full_disk_is_a_slow_disk(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare")
    url = f"mqtt://127.0.0.1:{mosquitto('max_queued_messages 0')}"
    data = tmp_path / "recorder" / "journal"
    data.mkdir(parents=True)
    with recorder_of(tmp_path, url, wrapper=in_small_file_system(data, "1m")) as recorder:
        recorder.start()
        await recorder.until_recording()
        assert recorder.process is not None
        recorder.journal = Path(f"/proc/{recorder.process.pid}/root{data}")
        ballast = recorder.journal / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        with published(url) as done:
            await until(lambda: "nothing is durable until" in recorder.said, "the disk to be full")
            rows = recorder.rows
            await asyncio.sleep(0.3)
            assert recorder.rows == rows < MESSAGES
            ballast.unlink()
            await asyncio.wait_for(done.wait(), 60)
            await until(lambda: recorder.rows >= MESSAGES, f"{MESSAGES} rows")
        assert recorder.contents() == EXPECTED
