"""The store's promises: what is committed survives, what is refused is untouched, one node at a time."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hedgerow.broker.changes import Changes, SessionRecord
from hedgerow.broker.stored import RETAIN_BIT
from hedgerow.errors import StoreError
from hedgerow.message import Message
from hedgerow.mqtt.outbox import Stage
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.node.store import APPLICATION_ID, FILE_NAME, FORMAT, LOCK_NAME, PageCache, Store, connect
from tests.full_disks import file_size_limit
from tests.node.old_stores import make_older, make_oldest
from tests.node.stored_batches import WINDOW, Feed, last_batch, message, positions


def commit(store: Store, *numbers: int) -> Feed:
    feed = Feed(store)
    feed.commit(*numbers)
    return feed


def digests(directory: Path) -> dict[str, str]:
    """Everything in the directory but the lock and SQLite's index of its log, which holds no data."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and path.stat().st_size and path.name not in (LOCK_NAME, f"{FILE_NAME}-shm")
    }


def copy_of_running(directory: Path, copy: Path) -> None:
    """The files as a power cut would leave them now: the log is not checkpointed."""
    copy.mkdir()
    # Another process reads: in ours, closing the file would drop SQLite's lock on it.
    files = [directory / FILE_NAME, directory / f"{FILE_NAME}-wal", directory / "log"]
    subprocess.run(["cp", "-r", *files, copy], check=True)


# A child finds what we find, installed or not.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run_python(source: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_mistake_behind_a_commit_has_nothing_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would be refused for ever, since it is there: nothing would be acknowledged any more."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("a mistake of ours")

    with closing(Store.open(tmp_path)) as store:
        feed = Feed(store)
        monkeypatch.setattr(store.log, "shrink", fail)
        changes = feed.batch(1)
        changes.sparse.append((1, 2, [(1, 1)]))
        store.write(changes)
        store.commit()
        assert "a mistake of ours" in caplog.text
        assert store.log.next_position == feed.position + 1
        assert not store.shrunk


# Identity


def test_the_epoch_grows_by_one_with_each_opening(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        with closing(Store.open(tmp_path)) as store:
            epochs.append(store.epoch)
    assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2]


def test_a_new_store_does_not_repeat_the_epochs_of_a_lost_one(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "lost", wall_clock=lambda: 1_700_000_000.0)) as store:
        lost = store.epoch
    with closing(Store.open(tmp_path / "new", wall_clock=lambda: 1_700_000_600.0)) as store:
        assert store.epoch > lost


def test_the_first_node_id_is_kept_until_the_user_chooses_another(tmp_path: Path) -> None:
    calls = [("first", None), ("second", None), ("third", "barn"), ("fourth", None), ("fifth", "shed")]
    ids = []
    for default, chosen in calls:
        with closing(Store.open(tmp_path)) as store:
            ids.append(store.node_id(default, chosen))
    assert ids == ["first", "first", "barn", "barn", "shed"]


# One node at a time


def test_a_second_opener_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with (
        closing(Store.open(tmp_path)) as store,
        pytest.raises(StoreError, match=rf"in use by another process \(pid {os.getpid()}\)"),
    ):
        Store.open(tmp_path)
    with closing(Store.open(tmp_path)) as again:
        assert again.epoch == store.epoch + 1


def test_another_process_is_refused_until_the_holder_is_killed(tmp_path: Path) -> None:
    source = (
        "import sys, pathlib; from hedgerow.node.store import Store\n"
        "store = Store.open(pathlib.Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    with run_python(source, tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=rf"pid {holder.pid}"):
            Store.open(tmp_path)
        holder.kill()
    Store.open(tmp_path).close()


def test_other_programs_stay_out_while_the_store_is_open(tmp_path: Path) -> None:
    source = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1], 0)\n"
        "try: connection.execute('DELETE FROM chunks')\n"
        "except sqlite3.OperationalError as error: print(error)"
    )
    with closing(Store.open(tmp_path)) as store:
        commit(store, 1)
        with run_python(source, tmp_path / FILE_NAME) as intruder:
            assert intruder.communicate()[0] == "database is locked\n"


def test_a_file_that_another_program_holds_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="in use by another process"):
            Store.open(tmp_path, busy_timeout_s=0.0)
        other.execute("ROLLBACK")
    Store.open(tmp_path).close()


# What cannot be used is refused, and left as it is


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """The directory of a store with rows on many pages."""
    directory = tmp_path / "data"
    with closing(Store.open(directory)) as store:
        commit(store, *range(1, WINDOW + 1))
    return directory


def assert_refused(directory: Path, reason: str) -> None:
    before = digests(directory)
    with pytest.raises(StoreError, match=reason) as refusal:
        Store.open(directory)
    assert str(directory / FILE_NAME) in str(refusal.value)
    assert digests(directory) == before
    with pytest.raises(StoreError, match=reason):
        Store.open(directory)  # The lock was given back, and the answer is the same.


@pytest.mark.parametrize(
    "content", [b"", b"not a database", os.urandom(20_000)], ids=["empty", "text", "noise"]
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert_refused(tmp_path, "is not a Hedgerow store")
    assert (tmp_path / FILE_NAME).read_bytes() == content


@pytest.mark.parametrize("journal_mode", ["DELETE", "WAL"])
def test_the_database_of_another_program_is_refused(tmp_path: Path, journal_mode: str) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute(f"PRAGMA journal_mode = {journal_mode}")
        other.execute("CREATE TABLE photos (id)")
    assert_refused(tmp_path, "is not a Hedgerow store")


def test_a_newer_format_is_refused(filled: Path) -> None:
    with closing(sqlite3.connect(filled / FILE_NAME, isolation_level=None)) as newer:
        newer.execute(f"PRAGMA user_version = {FORMAT + 1}")
    assert_refused(filled, f"has format {FORMAT + 1}, written by a newer Hedgerow")


def test_a_newer_format_that_stands_only_in_the_log_is_refused(filled: Path, tmp_path: Path) -> None:
    """Closing a refused file must not move its log into it."""
    with closing(sqlite3.connect(filled / FILE_NAME, isolation_level=None)) as newer:
        newer.execute(f"PRAGMA user_version = {FORMAT + 1}")
        copy_of_running(filled, tmp_path / "copy")
    assert f"{FILE_NAME}-wal" in digests(tmp_path / "copy")
    assert_refused(tmp_path / "copy", "written by a newer Hedgerow")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A store of format 2, whose session waits for one message in flight at QoS 2 and others before it."""
    with closing(Store.open(tmp_path)) as store:
        store.write(Changes(sessions={1: SessionRecord(1, "barn", None, MQTT_5, 60.0, None)}))
        store.commit()
    messages = {10 * number: message(number) for number in range(1, WINDOW + 1)}
    deliveries = [(1, key, 0, 2, b"") for key in messages if key != 10 * WINDOW]
    make_older(tmp_path, messages, [*deliveries, (1, 10 * WINDOW, 7, 2 | Stage.SENT << 3, b"")])
    make_oldest(tmp_path)
    return tmp_path


def test_an_older_format_is_taken_up_with_all_that_it_holds(older: Path) -> None:
    assert last_batch(older, at=None) == WINDOW
    with closing(Store.open(older)) as store:
        assert store.load().kept == {}
        pages = {("barn", 1, 0): bytearray(b"\x01" * 256), ("barn", 1, 1): bytearray(b"\x02" * 256)}
        store.write(Changes(kept={("bridges", "north"): "connection north"}, seen=dict(pages)))
        store.commit()
        store.write(Changes(seen={("barn", 1, 1): None}))
        store.commit()
    with closing(Store.open(older)) as store:
        loaded = store.load()
        assert loaded.kept == {("bridges", "north"): "connection north"}
        assert loaded.seen == [(("barn", 1, 0), b"\x01" * 256)]
    with closing(sqlite3.connect(older / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    assert ("messages",) not in tables
    assert last_batch(older, at=None) == WINDOW


def test_what_was_in_flight_in_an_older_format_stays_so(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        sessions = {key: SessionRecord(key, f"c{key}", None, MQTT_5, 60.0, None) for key in (1, 2)}
        store.write(Changes(sessions=dict(sessions)))
        store.commit()
    messages = {key: message(key) for key in (3, 5, 8, 9)}
    sent, released = Stage.SENT << 3, Stage.RELEASED << 3
    first = [(1, 3, 7, 1 | sent, b""), (1, 5, 6, 2 | released, b"\0\0\0\x09"), (1, 8, 0, 1 | 4, b"")]
    make_older(tmp_path, messages, [*first, (2, 8, 1, 2 | sent, b""), (2, 9, 0, 2, b""), (3, 9, 0, 1, b"")])
    Store.open(tmp_path).close()
    with closing(Store.open(tmp_path)) as store:
        snapshot = store.load()
        read, _ = store.log.read([(1, 4)], 1 << 20)
    assert [each.message for each in read] == list(messages.values())
    assert [
        (key, chunk.flags, chunk.identifiers, positions(chunk), chunk.sent) for key, chunk in snapshot.chunks
    ] == [(1, 1, (), [1], 1), (1, 2, (9,), [2], 2), (1, 1 | RETAIN_BIT, (), [3], 0), (2, 2, (), [3, 4], 3)]
    assert [
        (key, each.position, each.packet_id, each.stage, each.subscription_identifiers, each.message)
        for key, each in snapshot.deliveries
    ] == [(1, 2, 6, Stage.RELEASED, (9,), messages[5]), (2, 3, 1, Stage.SENT, (), messages[8])]
    assert snapshot.next_position == 5


def test_what_was_in_flight_is_not_forgotten_where_it_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store.open(tmp_path)) as store:
        store.write(Changes(sessions={1: SessionRecord(1, "c1", None, MQTT_5, 60.0, None)}))
        store.commit()
    make_older(tmp_path, {3: message(3)}, [(1, 3, 7, 2 | Stage.SENT << 3, b"")])
    Store.open(tmp_path).close()

    open_file, scanned = os.open, set[Path]()

    def has_no_descriptor(path: Path, flags: int, *arguments: Any) -> int:
        """Once a segment was scanned, none of its messages can be read."""
        if path in scanned:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if path.suffix and not flags & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY):
            scanned.add(path)
        return open_file(path, flags, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", has_no_descriptor)
        with pytest.raises(StoreError, match="cannot read"):
            Store.open(tmp_path)
    with closing(Store.open(tmp_path)) as store:
        assert [each.packet_id for _, each in store.load().deliveries] == [7]


TAKE_UP = """
import os, sys, pathlib
from hedgerow.node.store import Store
from hedgerow.node.message_log import DiskLog
steps = int(sys.argv[2])
def step(*arguments):
    global steps
    steps -= 1
    if not steps:
        os.kill(os.getpid(), 9)
sync = os.fdatasync
os.fdatasync = lambda file: (step(), sync(file), step())
confirm = DiskLog.confirm
DiskLog.confirm = lambda log: (step(), confirm(log), step())
events = "os.remove", "os.mkdir", "sqlite3.connect"
sys.addaudithook(lambda event, arguments: step() if event in events else None)
Store.open(pathlib.Path(sys.argv[1]))
step()
print("done")
"""


def test_an_older_format_survives_kill_while_it_is_taken_up(older: Path, tmp_path_factory: Path) -> None:
    for steps in range(1, 100):
        copy = older / f"copy-{steps}"
        copy.mkdir()
        shutil.copy(older / FILE_NAME, copy)
        with run_python(TAKE_UP, copy, steps) as taker:
            is_done = taker.communicate()[0] == "done\n"
        assert last_batch(copy, at=None) == WINDOW
        if is_done:
            break
    assert steps > 5


# A role was some bits of the protocol version and, by case, the beginning of the client id.
OLD_ROLES = {
    (5, "barn"): "client",
    (5, "hedgerow-federation-barn"): "neighbour",
    (5, "HEDGEROW-FEDERATION-barn"): "client",
    (5, "hedgerow-mobile-van"): "mobile broker",
    (5, "Hedgerow-Mobile-van"): "client",
    (4 | 64, "north"): "bridge",
    (4 | 64, "hedgerow-kept-van"): "kept",
    (4 | 64, "hedgerow-kept-north"): "bridge",  # of the section below
    (4 | 64, "hedgerow-fixed-van"): "fixed broker",
    (5 | 32, "south.north"): "far bridge",
    (5 | 128, "sensor"): "identified",
}


def test_sessions_of_format_5_keep_their_roles(tmp_path: Path) -> None:
    sessions = {
        key: SessionRecord(key, client_id, None, MQTT_5, 60.0, None)
        for key, (_, client_id) in enumerate(OLD_ROLES, 1)
    }
    with closing(Store.open(tmp_path)) as store:
        store.write(Changes(sessions=dict(sessions)))
        store.commit()
    section = "connection north\nlocal_clientid hedgerow-kept-north\ntopic # out 1"
    make_older(tmp_path, {}, [])
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("DROP TABLE kept")
        connection.execute("ALTER TABLE sessions DROP COLUMN role")
        connection.execute("ALTER TABLE sessions DROP COLUMN owner")
        connection.execute("CREATE TABLE bridges (name TEXT PRIMARY KEY, section TEXT NOT NULL) STRICT")
        connection.execute("INSERT INTO bridges VALUES ('north', ?)", (section,))
        for version, client_id in OLD_ROLES:
            connection.execute(
                "UPDATE sessions SET protocol_version = ? WHERE client_id = ?", (version, client_id)
            )
        connection.execute("PRAGMA user_version = 5")
    with closing(Store.open(tmp_path)) as store:
        loaded = store.load()
    assert {session.client_id: session.role for session in loaded.sessions} == {
        client_id: role for (_, client_id), role in OLD_ROLES.items()
    }
    assert loaded.kept == {("bridges", "north"): section}


def test_what_belongs_to_nothing_in_an_older_format_is_removed(older: Path) -> None:
    with closing(sqlite3.connect(older / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("DELETE FROM deliveries WHERE message_key <= 30")
        connection.execute("DELETE FROM messages WHERE key = 40")
        connection.execute("INSERT INTO deliveries VALUES (9, 50, 0, 2, x'')")
    with closing(Store.open(older)) as store:
        snapshot = store.load()
        assert snapshot.next_position == WINDOW - 4 + 1
        assert [(key, chunk.count) for key, chunk in snapshot.chunks] == [(1, WINDOW - 4)]
        read, _ = store.log.read([(1, 1)], 1)
        assert read[0].message == message(5)


def test_a_damaged_file_of_an_older_format_is_left_as_it_is(older: Path) -> None:
    overwrite(older / FILE_NAME, 2 * 4096, b"\xff" * 4096)
    assert_refused(older, "is damaged")


def test_a_format_of_our_own_that_never_was_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    assert_refused(tmp_path, "is damaged")


@pytest.mark.parametrize("page", range(1, 11))
def test_a_damaged_page_is_refused(filled: Path, page: int) -> None:
    """The pages after the schema are the roots of the tables."""
    overwrite(filled / FILE_NAME, page * 4096, b"\xff" * 4096)
    assert_refused(filled, "is damaged")


def test_a_truncated_file_is_refused(filled: Path) -> None:
    os.truncate(filled / FILE_NAME, 5 * 4096)
    assert_refused(filled, "is damaged")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sessions SET client_id = CAST(x'ff' AS TEXT)",
        "UPDATE chunks SET runs = x'01'",
        "UPDATE chunks SET runs = x'0100010000000100'",
        "UPDATE chunks SET runs = x'01000000'",
        "UPDATE chunks SET runs = x'ffffffff'",
        "UPDATE chunks SET identifiers = x'01'",
        "UPDATE chunks SET base = -1",
        "UPDATE deliveries SET flags = 255",
        "UPDATE deliveries SET identifiers = x'01'",
        "DELETE FROM node",
        "DROP TABLE received",
        "DROP TABLE kept",
    ],
)
def test_rows_that_cannot_be_understood_are_refused(filled: Path, statement: str) -> None:
    with closing(sqlite3.connect(filled / FILE_NAME, isolation_level=None)) as connection:
        connection.execute(statement)
    assert_refused(filled, "is damaged")


def test_no_damage_causes_anything_but_a_refusal(filled: Path, tmp_path: Path) -> None:
    """Noise inside a payload goes unseen, since SQLite keeps no checksums; but nothing else escapes."""
    seed = random.randrange(2**32)
    generator = random.Random(seed)
    size = (filled / FILE_NAME).stat().st_size
    for attempt in range(60):
        copy = tmp_path / f"copy-{attempt}"
        shutil.copytree(filled, copy)
        for _ in range(generator.randint(1, 20)):
            overwrite(
                copy / FILE_NAME, generator.randrange(size), generator.randbytes(generator.randint(1, 9))
            )
        before = digests(copy)
        try:
            Store.open(copy).close()
        except StoreError:
            assert digests(copy) == before, f"seed {seed}, attempt {attempt}"


def test_a_log_without_its_file_is_refused(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "data")) as store:
        commit(store, 1)
        copy_of_running(tmp_path / "data", tmp_path / "copy")
    (tmp_path / "copy" / FILE_NAME).unlink()
    assert_refused(tmp_path / "copy", "is missing, but its log")


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for directory in tmp_path / "file", tmp_path / "file" / "data":
        with pytest.raises(StoreError, match=r"cannot use .* as the data directory"):
            Store.open(directory)


def test_an_old_sqlite_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"needs SQLite 3\.37; this Python has 3\.36\.0$"):
        Store.open(tmp_path, sqlite_version=(3, 36, 0))


# Making a store


def test_a_making_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}.new").write_bytes(b"half")
    (tmp_path / f"{FILE_NAME}.new-journal").write_bytes(b"half")
    Store.open(tmp_path).close()
    assert not list(tmp_path.glob("*.new*"))
    assert last_batch(tmp_path) == 0


def test_the_directory_may_have_any_name_and_is_for_the_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "100% #1? ä"
    with closing(Store.open(directory)) as store:
        commit(store, 1)
        modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
        modes |= {path.name: path.stat().st_mode & 0o777 for path in (directory / "log").iterdir()}
    assert directory.stat().st_mode & 0o777 == modes.pop("log") == 0o700
    assert {FILE_NAME, f"{FILE_NAME}-wal", LOCK_NAME} < modes.keys()
    assert set(modes.values()) == {0o600}
    assert last_batch(directory) == 1


# Writing


def test_the_commit_may_run_in_another_thread(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        store.write(Feed(store).batch(1))
        thread = threading.Thread(target=store.commit)
        thread.start()
        thread.join()
    assert last_batch(tmp_path) == 1


def test_what_was_not_committed_is_not_there(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        store.write(commit(store, 1).batch(2))
    assert last_batch(tmp_path) == 1


def test_misuse_is_an_error_at_once(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        feed = Feed(store)
        with pytest.raises(RuntimeError, match="loaded already"):
            store.load()
        store.write(feed.batch(1))
        with pytest.raises(RuntimeError, match="not committed yet"):
            store.write(feed.batch(2))
        store.commit()
        store.close()  # A second time does nothing.
    assert last_batch(tmp_path) == 1


def test_changes_that_cannot_be_stored_leave_nothing_behind(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        feed = commit(store, 1)
        impossible = feed.batch(2)
        impossible.retained["z"] = Message("z", b"", properties={"topic_alias": 1 << 20})
        with pytest.raises(ValueError):
            store.write(impossible)
        with pytest.raises(StoreError, match="cannot commit"):
            store.commit()
        feed.commit(2)
    assert last_batch(tmp_path) == 2


def test_each_commit_is_synced(tmp_path: Path) -> None:
    """No test can cut the power; 2 is FULL, the mode in which SQLite syncs the log at every commit."""
    Store.open(tmp_path).close()
    with closing(connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


# Disks that fail


def test_a_failed_commit_can_be_tried_again(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        feed = commit(store, 1)
        again = feed.batch(2)
        for limit, path in (10_000, tmp_path / FILE_NAME), (100, tmp_path / "log"):
            with file_size_limit(limit):
                for _ in range(3):
                    store.write(again)
                    with pytest.raises(StoreError, match=rf"cannot write to {path}: "):
                        store.commit()
        assert store.log.read([(feed.position, 1)], 1) == ([], feed.position)
        feed.commit(2, 3)
    assert last_batch(tmp_path) == 3


def test_a_failed_write_of_a_large_batch_can_be_tried_again(tmp_path: Path) -> None:
    """What does not fit into the page cache goes to SQLite's log before the commit, and may fail there."""
    with closing(Store.open(tmp_path, page_cache=PageCache(kib=64, spill_pages=20))) as store:
        feed = commit(store, 1)
        large = feed.batch(2)
        large.retained["large"] = Message("large", bytes(500_000), 1)
        with file_size_limit(200_000), pytest.raises(StoreError, match="cannot write to"):
            store.write(large)
        store.write(large)
        store.commit()
    assert last_batch(tmp_path) == 2


def test_a_store_that_cannot_be_made_leaves_no_half_of_it(tmp_path: Path) -> None:
    with file_size_limit(10_000), pytest.raises(StoreError, match="cannot create"):
        Store.open(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()
    Store.open(tmp_path).close()


FULL_DISK = """
import sys, pathlib
from tests.node.stored_batches import Feed, Store, last_batch
from hedgerow.errors import StoreError
directory = pathlib.Path(sys.argv[1])
store = Store.open(directory)
feed = Feed(store)
feed.commit(1)
ballast = (directory / "ballast").open("wb", buffering=0)
try:
    while True:
        ballast.write(bytes(4096))
except OSError:
    pass
done, failed = 1, 0
while failed < 5 and done < 3000:
    changes = feed.batch(done + 1)
    store.write(changes)
    try:
        store.commit()
        feed.committed(changes)
        done += 1
        failed = 0
    except StoreError as error:
        failed += 1
        reason = str(error)
print("full:", reason)
for finished in range(1, 1001):  # Readers go on, and that is stored.
    changes = feed.finished()
    for attempt in range(2):
        store.write(changes)
        try:
            store.commit()
            break
        except StoreError:
            assert not attempt
(directory / "ballast").unlink()
ballast.close()
feed.commit(*range(done + 1, done + 200))
store.close()
assert last_batch(directory) == done + 199
print("recovered")
"""


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """A file system of 4 MiB, filled to the last byte, in a mount namespace that ends with its process."""
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=4m none {tmp_path}"
    if shutil.which("unshare") is None or subprocess.call([*enter, mount], stderr=subprocess.DEVNULL):
        pytest.skip("mount namespaces are not permitted here")
    result = subprocess.run(
        [*enter, f'{mount} && exec "$0" -c "$@"', sys.executable, FULL_DISK, str(tmp_path)],
        check=False,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    refused, recovered = result.stdout.splitlines()
    assert refused == f"full: cannot write to {tmp_path / 'log'}: No space left on device"
    assert recovered == "recovered"


def test_a_store_whose_log_cannot_grow_opens_again(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "store")) as store:
        commit(store, *range(1, 21))
        copy_of_running(tmp_path / "store", tmp_path / "copy")
    with file_size_limit((tmp_path / "copy" / f"{FILE_NAME}-wal").stat().st_size):
        Store.open(tmp_path / "copy").close()
    assert last_batch(tmp_path / "copy") == 20


def test_a_failed_commit_makes_room_in_the_log(tmp_path: Path) -> None:
    """Small commits go on where the log cannot grow, because it is written from its start again."""
    with closing(Store.open(tmp_path)) as store:
        feed = commit(store, *range(1, 21))
        failures = 0
        with file_size_limit((tmp_path / f"{FILE_NAME}-wal").stat().st_size):
            for number in range(21, 121):
                try:
                    feed.commit(number)
                except StoreError:
                    failures += 1
                    feed.commit(number)
    assert failures > 0
    assert last_batch(tmp_path) == 120


# Sudden ends

WRITER = """
import sys, pathlib
from tests.node.stored_batches import Feed, Store
feed = Feed(Store.open(pathlib.Path(sys.argv[1])))
for number in range(int(sys.argv[2]), 1_000_000):
    feed.commit(number)
    print(number, flush=True)
"""


def test_what_was_committed_survives_kill(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    generator = random.Random(seed)
    last = 0
    for _ in range(8):
        with run_python(WRITER, tmp_path, last + 1) as writer:
            assert writer.stdout is not None
            reported = last
            for _ in range(generator.randint(1, 300)):
                reported = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            reported = max([reported, *map(int, writer.stdout.read().splitlines())])
        last = last_batch(tmp_path)
        assert reported <= last <= reported + 1, f"seed {seed}"


def test_a_torn_log_keeps_what_was_committed_before(tmp_path: Path) -> None:
    """A log that ends anywhere, or in noise, opens with the batches that it still holds whole."""
    seed = random.randrange(2**32)
    generator = random.Random(seed)
    log = f"{FILE_NAME}-wal"
    sizes = []
    with closing(Store.open(tmp_path / "data")) as store:
        feed = Feed(store)
        for number in range(1, 31):
            feed.commit(number)
            sizes.append((tmp_path / "data" / log).stat().st_size)
        copy_of_running(tmp_path / "data", tmp_path / "torn")
    for attempt in range(25):
        copy = tmp_path / f"copy-{attempt}"
        shutil.copytree(tmp_path / "torn", copy)
        size = generator.randrange(sizes[0], sizes[-1] + 1)
        os.truncate(copy / log, size)
        if attempt % 2:
            overwrite(copy / log, size, generator.randbytes(5000))
        whole = sum(end <= size for end in sizes)
        assert last_batch(copy) == whole, f"seed {seed}, attempt {attempt}"
        assert last_batch(copy) == whole
