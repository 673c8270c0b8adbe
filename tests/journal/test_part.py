"""A node's journal, on a live node: what was acknowledged is recorded, and a full disk is waited for."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import hedgerow
import hedgerow.journal
from hedgerow.errors import ConfigError, StoreError
from hedgerow.journal import Writer, check
from hedgerow.journal.config import JournalConfig
from hedgerow.journal.io import node_journal
from hedgerow.journal.io.node_journal import NodeJournal
from hedgerow.journal.part import JournalPart
from hedgerow.kinds import NODE
from hedgerow.log.appender import Appender, FramePlace
from hedgerow.log.files import segments
from hedgerow.log.frame import Group
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import Disconnect, Pingreq, Pingresp, Puback, Publish, Subscribe, Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.config_loading import load_config
from hedgerow.node.metrics import NodeCollector
from hedgerow.node.store import Store
from tests.conftest import StartNode
from tests.journal.plain import read_plain
from tests.node.peers import connected, part_of, port_of, running
from tests.programs import Node
from tests.waiting import until

COUNT = 300
FILE_BYTES = 300_000  # room for some of the messages, not for all
WAIT_S = 10.0  # A test that fails must not keep its node from stopping.
SOURCE = ("mqtt", "client")


class Disk:
    """What a journal is written to: it may stop, and go on."""

    def __init__(self) -> None:
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._commit = Appender.commit

    def stop(self) -> None:
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def commit(self, appender: Appender, groups: list[Group]) -> list[FramePlace]:
        self._goes_on.wait(WAIT_S)
        return self._commit(appender, groups)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(Appender, "commit", lambda *arguments: disk.commit(*arguments))  # noqa: PLW0108 (as a method)
    yield disk
    disk.go_on()


def payloads(directory: Path) -> list[bytes]:
    return [row.payload for row in read_plain(directory)]


@pytest.mark.parametrize("has_store", [False, True])
async def test_an_acknowledgement_waits_for_the_journal(disk: Disk, tmp_path: Path, has_store: bool) -> None:
    config = JournalConfig(("a/#",), tmp_path / "journal")
    data = tmp_path / "data" if has_store else None
    async with running(config, data=data) as server, connected(port_of(server), "client") as client:
        client.send(Publish("a/1", b"first", 1, packet_id=1))
        assert isinstance(await client.receive(), Puback)
        disk.stop()
        client.send(Publish("a/1", b"second", 1, packet_id=2), Publish("b", b"third", 0), Pingreq())
        assert isinstance(await client.receive(), Pingresp)
        assert payloads(config.directory) == [b"first"]
        disk.go_on()
        acknowledged = await client.receive()
        assert isinstance(acknowledged, Puback)
        assert acknowledged.packet_id == 2
        assert payloads(config.directory) == [b"first", b"second"]
        node_id, epoch = server.node_id, server.broker.epoch
    rows = read_plain(config.directory)
    assert {row[2:6] for row in rows} == {(node_id, "mqtt", "client", "a/1")}
    assert [(row.id.origin, row.id.epoch) for row in rows if row.id] == [(node_id, epoch)] * 2


async def test_store_and_journal_are_both_waited_for(disk: Disk, tmp_path: Path) -> None:
    """A session that outlives its connection gets the message too: it is in both, or not acknowledged."""
    config = JournalConfig(("#",), tmp_path / "journal")
    async with running(config, data=tmp_path / "data") as server:
        port = port_of(server)
        async with (
            connected(port, "kept", properties={"session_expiry_interval": 3600}) as kept,
            connected(port, "publisher") as publisher,
        ):
            kept.send(Subscribe(1, [Subscription("#", 1)]))
            await kept.receive()
            disk.stop()
            publisher.send(*(Publish("a", b"%d" % n, 1, packet_id=n) for n in range(1, 51)), Pingreq())
            assert isinstance(await publisher.receive(), Pingresp)
            disk.go_on()
            answers = [await publisher.receive() for _ in range(50)]
            assert all(isinstance(answer, Puback) for answer in answers)
        assert payloads(config.directory) == [b"%d" % n for n in range(1, 51)]


async def test_the_store_is_never_ahead_of_the_journal(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a message that is sent again after a crash is known, acknowledged, and in no journal."""
    commits: list[Store] = []
    commit = Store.commit

    def note_and_commit(store: Store) -> None:
        commits.append(store)
        commit(store)

    monkeypatch.setattr(Store, "commit", note_and_commit)
    config = JournalConfig(("#",), tmp_path / "journal")
    async with (
        running(config, data=tmp_path / "data") as server,
        connected(port_of(server), "kept", properties={"session_expiry_interval": 3600}) as kept,
        connected(port_of(server), "publisher") as publisher,
    ):
        kept.send(Subscribe(1, [Subscription("#", 1)]))
        await kept.receive()
        disk.stop()
        before = len(commits)
        publisher.send(Publish("a", b"1", 1, packet_id=1), Pingreq())
        assert isinstance(await publisher.receive(), Pingresp)
        assert len(commits) == before
        disk.go_on()
        assert isinstance(await publisher.receive(), Puback)
        assert len(commits) > before


async def test_packets_in_a_row_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra spark is not installed")
    config = JournalConfig(("#",), tmp_path)
    async with running(config) as server, connected(port_of(server), "client") as client:
        client.send(*(Publish(f"a/{n // 20}", b"%03d" % n) for n in range(60)), Publish("b", b""))
        client.send(Publish("c", b"last", 1, packet_id=1))
        await client.receive()
        figures = part_of(server, JournalPart).status()["journal"]
        families = {family.name: family for family in NodeCollector(server).collect()}
    assert figures["messages/recorded"] == figures["messages/durable"] == 62
    assert figures["bytes/recorded"] == 60 * 3 + 4
    assert families["hedgerow_journal_messages"].samples[0].value == 62
    batches = list(hedgerow.journal.JournalReader(tmp_path).batches(0))
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["topic"], row["payload"]) for row in found] == [
        *((f"a/{n // 20}", b"%03d" % n) for n in range(60)),
        ("b", b""),
        ("c", b"last"),
    ]
    sequences = [row["sequence"] for row in found]
    assert sequences == list(range(sequences[0], sequences[0] + 62))


async def test_nothing_acknowledged_is_missing_after_kill_9(hedgerow_node: StartNode, tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    node = hedgerow_node("--journal", "a/#", "--journal-dir", str(directory))
    acknowledged: list[int] = []

    async with hedgerow.connect(node.urls["mqtt"], client_id="publisher") as bus:

        async def publish(lane: int) -> None:
            for number in range(lane, COUNT, 10):
                await bus.publish(f"a/{lane}", b"%d" % number, qos=1)
                acknowledged.append(number)

        async with asyncio.TaskGroup() as lanes:
            for lane in range(10):
                lanes.create_task(publish(lane))
            await until(lambda: len(acknowledged) > COUNT // 3, "acknowledgements")
            node.kill9()
            before = len(acknowledged)
            found = {int(payload) for payload in payloads(directory)}
            assert set(acknowledged) <= found
            assert before < COUNT
            await asyncio.to_thread(node.start)
    assert {int(payload) for payload in payloads(directory)} == set(range(COUNT))
    assert check(directory).is_whole


def health(node: Node) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{node.urls['http']}/health", timeout=20) as answer:
            return answer.status, json.load(answer)["status"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["status"]


async def test_a_full_disk_holds_acknowledgements_until_there_is_room(
    hedgerow_node: StartNode, tmp_path: Path
) -> None:
    directory = tmp_path / "journal"
    node = hedgerow_node("--journal", "a", "--journal-dir", str(directory), "--http", "127.0.0.1:0")
    assert node.process is not None
    limits = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY))
    async with hedgerow.connect(node.urls["mqtt"], client_id="publisher") as bus:
        futures = [bus.publish_nowait("a", b"%d " % n + bytes(2_000), qos=1) for n in range(COUNT)]
        await until(lambda: "nothing is durable until" in node.log, "the log to say that the journal fails")
        assert not futures[-1].done()
        status, reason = await asyncio.to_thread(health, node)
        assert status == 503
        assert "cannot write to the journal" in reason
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, limits)
        await asyncio.gather(*futures)
    assert await asyncio.to_thread(health, node) == (200, "ok")
    assert [int(payload.split()[0]) for payload in payloads(directory)] == list(range(COUNT))


@dataclass
class Recording:
    journal: NodeJournal

    def record(self, payload: bytes, qos: int, sequence: int) -> bool:
        message = Message("a", payload, qos, id=MessageId("n", 1, sequence))
        return self.journal.record(message, SOURCE, 1.0)


async def test_qos_0_leaves_half_of_the_buffer_to_the_others(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = await NodeJournal.open(JournalConfig(("#",), tmp_path), "node", buffer_bytes=20_000)
    recording = Recording(journal)
    disk.stop()
    sequence = 0
    with caplog.at_level(logging.WARNING):
        while recording.record(bytes(1_000), 0, sequence):
            sequence += 1
        assert 8 <= sequence <= 12
        packets = (b"head" + bytes(96)) * 10
        first_id = MessageId("n", 1, 10_000)
        assert not journal.record_packets("a", packets, 100, 4, first_id, SOURCE, 1.0)
        assert journal.missed == 11
        assert journal.has_room(1_000)
        while journal.has_room(1_000):
            assert recording.record(bytes(1_000), 1, sequence)
            sequence += 1
        assert sequence >= 16
        assert journal.is_behind
        assert not recording.record(bytes(1_000), 1, sequence)
        assert [text for text in caplog.messages if "misses messages" in text] == caplog.messages
        assert len(caplog.messages) == 1
        disk.go_on()
        await until(lambda: not journal.is_behind, "the journal to be written")
        assert journal.record_packets("a", packets, 100, 4, first_id, SOURCE, 1.0)
        assert "it missed 12 messages" in caplog.messages[-1]
    await journal.close()
    assert payloads(tmp_path) == [bytes(1_000)] * sequence + [bytes(96)] * 10


async def test_what_was_said_to_fit_fits_in_pieces_too(disk: Disk, tmp_path: Path) -> None:
    """A run of another broker, some of whose messages were here: each piece takes more than its payload."""
    journal = await NodeJournal.open(JournalConfig(("#",), tmp_path), "node", buffer_bytes=20_000)
    disk.stop()
    assert journal.has_room(200 * 100)
    for number in range(200):
        message_id = MessageId("far", 1, 2 * number)
        assert journal.record_run("a", [bytes(100)], message_id, 1, SOURCE, 1.0)
    assert not journal.has_room(1)
    assert not journal.record_run("a", [bytes(100)], MessageId("far", 2, 1), 0, SOURCE, 1.0)
    assert journal.failure == "the journal misses messages: its disk is slower than what comes"
    disk.go_on()
    await until(lambda: not journal.is_behind, "the journal to be written")
    assert journal.failure is None
    await journal.close()
    assert not journal.record_run("a", [b"late"], MessageId("far", 3, 1), 1, SOURCE, 1.0)
    assert len(payloads(tmp_path)) == 200


async def test_a_publisher_that_finds_no_room_is_disconnected(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = NodeJournal.open

    async def open_small(config: JournalConfig, node_id: str) -> NodeJournal:
        return await opened(config, node_id, buffer_bytes=20_000)

    monkeypatch.setattr(NodeJournal, "open", open_small)
    async with (
        running(JournalConfig(("a",), tmp_path)) as server,
        connected(port_of(server), "publisher") as publisher,
        connected(port_of(server), "subscriber") as subscriber,
    ):
        subscriber.send(Subscribe(1, [Subscription("#", 0)]))
        await subscriber.receive()
        disk.stop()
        packets = [Publish("a", b"%d " % n + bytes(1_000), 1, packet_id=n) for n in range(1, 31)]
        publisher.send(*packets[:15], Pingreq())
        assert isinstance(await publisher.receive(), Pingresp)
        publisher.send(*packets[15:])
        answer = await publisher.receive()
        assert isinstance(answer, Disconnect)
        assert answer.reason_code == Reason.SERVER_BUSY
        async with connected(port_of(server), "other") as other:
            other.send(Publish("b", b"goes on"))
            received: list[bytes] = []
            while not received or received[-1] != b"goes on":
                packet = await subscriber.receive()
                assert isinstance(packet, Publish)
                received.append(packet.payload)
        disk.go_on()
    assert received[:-1] == [packet.payload for packet in packets[:15]]
    assert payloads(tmp_path) == received[:-1]


async def test_what_is_old_is_removed(tmp_path: Path) -> None:
    config = JournalConfig(("#",), tmp_path, max_bytes=1 << 20)
    async with (
        running(config) as server,
        connected(port_of(server), "client") as client,
        asyncio.TaskGroup() as tasks,
    ):
        retaining = tasks.create_task(node_journal.retain_for_ever(config, every_s=0.02))
        for packet_id in range(1, 31):
            client.send(Publish("a", bytes(100_000), 1, packet_id=packet_id))
            await client.receive()

        def size() -> int:
            """Segments may go between the listing and the look."""
            sizes = []
            for segment in segments(tmp_path):
                with suppress(FileNotFoundError):
                    sizes.append(segment.path.stat().st_size)
            return sum(sizes)

        await until(lambda: size() <= 1 << 20, "the oldest segments to be gone")
        retaining.cancel()
        assert len(payloads(tmp_path)) >= 5


async def test_a_journal_in_use_is_waited_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = JournalConfig(("#",), tmp_path)
    other = Writer(tmp_path, "other")
    with monkeypatch.context() as patched:
        patched.setattr(node_journal, "IN_USE_S", 0.1)
        with pytest.raises(StoreError, match="stop it, or give this one a directory of its own"):
            async with running(config):
                pass
    asyncio.get_running_loop().call_later(0.15, other.close)
    async with running(config) as server:
        assert server.find(JournalPart) is not None


def test_configuration(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        'data = "data"\n[journal]\ntopics = ["a/#", "b"]\nmax_bytes = "1 GiB"\nmax_age = "7 d"\n'
        "drop_committed = true\n"
    )
    config = load_config(path, {}, NODE).of(JournalConfig)
    assert config == JournalConfig(("a/#", "b"), tmp_path / "data/journal", 1 << 30, 7 * 86_400.0, True)
    own = load_config(path, {"journal.directory": str(tmp_path / "j"), "journal.max_age": "never"}, NODE).of(
        JournalConfig
    )
    assert (own.directory, own.max_age_s, own.retains_all) == (tmp_path / "j", None, False)
    assert load_config(None, {}, NODE).of(JournalConfig) == JournalConfig()


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            {"journal.topics": ["#"]},
            r"--journal: where is the journal to be\? .*--journal-dir DIR.*--data DIR",
        ),
        ({"journal.directory": "j"}, r"--journal-dir: needs journal.topics too \(--journal FILTER\)"),
        ({"journal.topics": ["a#"]}, "--journal: '#' is not alone"),
        ({"journal.topics": ["$share/g/a"]}, "--journal: .*no shared subscriptions"),
        ({"journal.topics": []}, "--journal: 1 to 1,000 topic filters, not 0"),
        (
            {"journal.topics": ["a"], "data": "d", "journal.max_bytes": "1 KiB"},
            '--journal-max-bytes: "1 KiB" is',
        ),
        ({"journal.topics": ["a"], "data": "d", "journal.max_age": "0.1"}, '--journal-max-age: "0.1" is not'),
    ],
)
def test_mistakes_are_told(overrides: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}"):
        load_config(None, overrides, NODE)
