"""How much of the disk waiting messages may have, and what becomes of publishers when it is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hedgerow.broker.limits import MIB, LogBounds
from hedgerow.mqtt.packets import Pingreq, Pingresp, Puback, Publish, Subscribe, Subscription
from hedgerow.node.committer import Committer
from hedgerow.node.config import Config
from hedgerow.node.log_room import LogRoom, free_bytes, log_bounds
from hedgerow.node.message_log import DiskLog
from tests.node.peers import connected, part_of, port_of, running, with_part
from tests.waiting import until


class Disk:
    """A file system of some size."""

    def __init__(self, size: int, free: int) -> None:
        self.size = size
        self.free = free
        self.asked = 0

    def statvfs(self, path: Path | int) -> os.statvfs_result:
        self.asked += 1
        blocks = self.size // 4096
        free = self.free // 4096
        return os.statvfs_result((4096, 4096, blocks, free + 5, free, 0, 0, 0, 0, 255))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DiskLog]:
    opened = DiskLog.open(tmp_path / "log")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("free", "size"), [(1000 * MIB, 500 * MIB), (100 * MIB, 64 * MIB), (40 * MIB, 40 * MIB), (0, 0)]
)
def test_where_nothing_is_said_it_is_half_of_what_is_free(log: DiskLog, free: int, size: int) -> None:
    statvfs = Disk(2000 * MIB, free).statvfs
    assert log_bounds(Config(), log, statvfs) == LogBounds(size, 0.0, drops_oldest=False)


def test_what_is_said_counts(log: DiskLog) -> None:
    config = Config(data_bytes=7 * MIB, data_full="drop-oldest", data_age_s=60.0)
    assert log_bounds(config, log) == LogBounds(7 * MIB, 60.0, drops_oldest=True)


@pytest.mark.parametrize(
    ("size", "reserve"), [(100_000 * MIB, 2000 * MIB), (200 * MIB, 8 * MIB), (16 * MIB, 2 * MIB)]
)
def test_a_reserve_is_left(tmp_path: Path, size: int, reserve: int) -> None:
    disk = Disk(size, reserve + 4096)
    room = LogRoom(tmp_path, disk.statvfs)
    assert not room.check(1.0)
    disk.free = reserve
    assert not room.check(1.5)  # It is not asked so often.
    assert disk.asked == 1
    assert room.has_room
    assert room.check(1.6, written_bytes=MIB)
    assert not room.has_room
    assert not room.check(1.7, written_bytes=2 * MIB - 1)
    assert disk.asked == 2
    assert not room.check(3.0)
    disk.free += 4096
    assert room.check(4.0)
    assert room.has_room


def test_what_was_written_since_the_disk_was_asked_is_room_no_more(tmp_path: Path) -> None:
    room = LogRoom(tmp_path, Disk(200 * MIB, 9 * MIB).statvfs)
    room.check(1.0, written_bytes=100)
    assert room.batch_bytes == 5 * MIB, "half of the reserve is left"
    room.check(1.1, written_bytes=100 + 1000)
    assert room.batch_bytes == 5 * MIB - 1000


def test_a_full_disk_is_asked_again_when_the_log_has_let_go_of_something(tmp_path: Path) -> None:
    disk = Disk(2000 * MIB, 0)
    room = LogRoom(tmp_path, disk.statvfs)
    assert room.check(1.0, 100, 100)
    disk.free = 100 * MIB
    assert not room.check(1.1, 100, 100)
    assert room.check(1.2, 100, 50)
    assert room.has_room


def test_free_bytes(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0


def test_a_disk_that_does_not_answer_has_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    room = LogRoom(tmp_path / "gone")
    assert not room.check(1.0)
    assert room.has_room
    assert "No such file" in caplog.text


class OnSomeDisk(Committer):
    """It looks at the disk, which is `disk`, all the time."""

    room_interval_s = 0.01

    def room_in(self, directory: Path) -> LogRoom:
        self.disk = Disk(200 * MIB, 100 * MIB)
        return LogRoom(directory, self.disk.statvfs, interval_s=0.0)


async def test_publishers_wait_until_there_is_room(tmp_path: Path) -> None:
    async with running(data=tmp_path / "data", table=with_part("store", OnSomeDisk)) as server:
        port, disk = port_of(server), part_of(server, OnSomeDisk).disk
        async with connected(port, "kept", properties={"session_expiry_interval": 3600}) as kept:
            kept.send(Subscribe(1, [Subscription("#", 1)]))
            await kept.receive()
        async with connected(port, "publisher") as publisher:
            publisher.send(Publish("a", b"1", 1, packet_id=1))
            assert isinstance(await publisher.receive(), Puback)
            disk.free = 0
            publisher.send(Pingreq())
            assert isinstance(await publisher.receive(), Pingresp)
            await until(
                lambda: not server.broker.durability.has_disk, "the node to see that the disk is full"
            )
            publisher.send(Publish("a", b"2", 1, packet_id=2), Pingreq())
            assert isinstance(await publisher.receive(), Pingresp)
            disk.free = 100 * MIB
            assert isinstance(await publisher.receive(), Puback)
