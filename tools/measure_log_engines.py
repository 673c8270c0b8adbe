"""Prints the figures of docs/decisions/0014-one-durable-log.md: engines that could hold the one durable log.

    python -m venv /tmp/engines && /tmp/engines/bin/pip install -e '.[spark]' lmdb rocksdict
    /tmp/engines/bin/python tools/measure_log_engines.py [--messages 100000] [--engines sqlite,frames]
        [--parts append,read,...] [--runs 3] [--directory DIRECTORY] [--pause-file FILE]

The engines are in log_engines.py and get the same messages. `append` runs on the loop's thread, `commit` on
a helper's, as in a node. Every figure is the median of the runs, but for what is called slowest, which is
the worst of all. The part "full" mounts a small file system in a namespace of its own and needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module, metadata
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from log_engines import ENGINES, PACKAGES, SIZES, TOPICS, Engine, Record, batches, record

GROUPS = (1, 10, 100, 1_000)
PAGE = 500  # messages that a reader takes at once
STEP = 1_000  # messages that are deleted at once
MAX_COMMITS = 1_000
BACKLOG = 10  # times --messages
KILLS = 20
FULL_MIB, OTHER_MIB = 64, 16
SWITCH_INTERVAL_S = 0.0005  # as `hedgerow up` sets it

Figures = dict[str, float | str]
Rows = dict[str, Figures]


def timed(action: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    action()
    return time.perf_counter() - started_at


def fill(engine: Engine, messages: int, group: int = 1_000, size: int = SIZES[0]) -> None:
    for batch in batches(engine.next_position, messages, group, size):
        engine.append(batch)
        engine.commit()


def disk_mib(directory: Path) -> float:
    return sum(path.stat().st_blocks for path in directory.rglob("*")) * 512 / 2**20


def check(engine: Engine, name: str, start: int, end: int, size: int = SIZES[0]) -> None:
    """All from `start` to before `end` are there, and are what they were."""
    at = start
    while at < end:
        found = engine.read(at, min(PAGE, end - at))
        wanted = [record(position, size) for position in range(at, at + len(found))]
        if name == "journal":
            wanted = [record._replace(readers=0) for record in wanted]
        if not found or found != wanted:
            raise AssertionError(f"{name}: position {at} is not what was committed")
        at += len(found)


@contextmanager
def beside(action: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """What `action` sends from a process of its own, which is killed in the end, whatever it does."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=action, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


# The parts. Each gives rows of figures for one engine in one run.


def append(name: str, directory: Path, messages: int) -> Rows:
    rows: Rows = {}
    with ThreadPoolExecutor(1) as helper:
        helper.submit(int).result()
        for size in SIZES:
            for group in GROUPS:
                where = directory / f"{size}-{group}"
                count = min(messages // group, MAX_COMMITS) * group
                ready = list(batches(0, count, group, size))
                engine = ENGINES[name](where)
                loop_s, all_s = time.thread_time(), time.process_time()
                commits = []
                for batch in ready:
                    engine.append(batch)
                    commits.append(helper.submit(timed, engine.commit).result())
                loop_s = time.thread_time() - loop_s
                engine.close()
                all_s = time.process_time() - all_s
                rows[f"{size} bytes, groups of {group}"] = {
                    "µs CPU, loop": loop_s / count * 1e6,
                    "µs CPU, all": all_s / count * 1e6,
                    "ms a commit": median(commits) * 1e3,
                    "slowest": max(commits) * 1e3,
                    "bytes": disk_mib(where) / count * 2**20,
                }
    return rows


def busy(name: str, directory: Path, messages: int) -> Rows:
    """A group of 1,000 beside a loop that never rests."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    engine = ENGINES[name](directory / "log")
    times = []
    with ThreadPoolExecutor(1) as helper:
        for batch in batches(0, 50_000, 1_000):
            started_at = time.perf_counter()
            engine.append(batch)
            future = helper.submit(engine.commit)
            while not future.done():
                sum(range(100))
            times.append(time.perf_counter() - started_at)
    sys.setswitchinterval(usual_s)
    engine.close()
    return {"": {"ms a group": median(times) * 1e3, "slowest": max(times) * 1e3}}


def read(name: str, directory: Path, messages: int) -> Rows:
    rows: Rows = {}
    for size in SIZES:
        for group in (10, 1_000):
            engine = ENGINES[name](directory / f"{size}-{group}")
            fill(engine, messages, group, size)
            wall, cpu = time.perf_counter(), time.process_time()
            at = 0
            while found := engine.read(at, PAGE):
                at = found[-1].position + 1
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            assert at == messages
            one_topic = time.perf_counter()
            at = 0
            while found := engine.read(at, PAGE, TOPICS[7]):
                at = found[-1].position + 1
            one_topic = time.perf_counter() - one_topic
            chance = random.Random(1)  # noqa: S311 (the same positions for all)
            lookups = [timed(partial(engine.read, chance.randrange(messages - 1), 1)) for _ in range(100)]
            rows[f"{size} bytes, written in groups of {group}"] = {
                "k messages/s": messages / wall / 1e3,
                "µs CPU": cpu / messages * 1e6,
                "k/s passed over for one topic of 100": messages / one_topic / 1e3,
                "µs to find a position": median(lookups) * 1e6,
            }
            engine.close()
    return rows


def both(name: str, directory: Path, messages: int) -> Rows:
    """A backlog is read while groups of 100 are committed."""
    engine = ENGINES[name](directory / "log")
    fill(engine, messages, 100)
    at = 0
    pages, commits = [], []
    with ThreadPoolExecutor(1) as helper:
        for batch in batches(messages, messages // 4, 100):
            engine.append(batch)
            future = helper.submit(timed, engine.commit)
            started_at = time.perf_counter()
            at = engine.read(at, PAGE)[-1].position + 1
            pages.append(time.perf_counter() - started_at)
            commits.append(future.result())
            at = at if at < messages - PAGE else 0
    engine.close()
    return {
        "": {
            "ms a page": median(pages) * 1e3, "slowest page": max(pages) * 1e3,
            "ms a commit": median(commits) * 1e3, "slowest commit": max(commits) * 1e3,
        }
    }  # fmt: skip


def delete(name: str, directory: Path, messages: int) -> Rows:
    engine = ENGINES[name](directory)
    chance = random.Random(1)  # noqa: S311 (the same positions for all)
    half = messages // 2
    fill(engine, messages)
    figures: Figures = {"MiB": disk_mib(directory)}
    cpu, wall = time.process_time(), time.perf_counter()
    for position in range(STEP, half + 1, STEP):
        engine.delete_before(position)
    figures["µs CPU, first half"] = (time.process_time() - cpu) / half * 1e6
    figures["µs"] = (time.perf_counter() - wall) / half * 1e6
    figures["MiB after it"] = disk_mib(directory)
    fill(engine, half)
    figures["MiB refilled"] = disk_mib(directory)
    positions = chance.sample(range(half, half + messages), messages * 9 // 10)
    try:
        cpu, wall = time.process_time(), time.perf_counter()
        for at in range(0, len(positions), STEP):
            engine.delete_some(positions[at : at + STEP])
        figures["µs CPU, 90 % scattered"] = (time.process_time() - cpu) / len(positions) * 1e6
        figures["µs "] = (time.perf_counter() - wall) / len(positions) * 1e6
        figures["MiB after that"] = disk_mib(directory)
        left = sorted({*range(half, half + messages)} - {*positions})
        found, at = [], half
        while page := engine.read(at, PAGE):
            found += [record.position for record in page]
            at = found[-1] + 1
        assert found == left, "something else was deleted"
        fill(engine, len(positions))
        figures["MiB refilled "] = disk_mib(directory)
    except NotImplementedError:
        figures |= dict.fromkeys(("µs CPU, 90 % scattered", "µs ", "MiB after that", "MiB refilled "), "–")
    engine.close()
    return {"": figures}


def memory_mib() -> tuple[float, float]:
    """What the process holds of its own, and of files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(lines[key].split()[0]) / 1024 for key in ("RssAnon", "RssFile"))  # type: ignore[return-value]


def write_backlog(connection: Connection, name: str, directory: Path, messages: int) -> None:
    engine = ENGINES[name](directory)
    fill(engine, 10_000)  # what writing takes at all
    own, of_files = memory_mib()
    fill(engine, messages - 10_000)
    own_after, of_files_after = memory_mib()
    connection.send((own_after - own, of_files_after - of_files))
    connection.recv()  # to be killed


def open_backlog(connection: Connection, name: str, directory: Path, messages: int) -> None:
    for package in PACKAGES.get(name, ()):
        import_module(package)
    own, of_files = memory_mib()
    started_at = time.perf_counter()
    engine = ENGINES[name](directory)
    assert engine.next_position == messages
    opened_s = time.perf_counter() - started_at
    assert len(engine.read(0, PAGE)) == PAGE
    read_s = time.perf_counter() - started_at
    own_after, of_files_after = memory_mib()
    connection.send((opened_s, read_s, own_after - own, of_files_after - of_files))
    connection.recv()


def backlog(name: str, directory: Path, messages: int) -> Rows:
    messages *= BACKLOG
    with beside(write_backlog, name, directory, messages) as connection:
        written = connection.recv()
    for path in directory.rglob("*"):  # out of the page cache: as after a restart of the machine
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    with beside(open_backlog, name, directory, messages) as connection:
        cold_s, cold_read_s, own, of_files = connection.recv()
    with beside(open_backlog, name, directory, messages) as connection:
        warm_s, _, _, _ = connection.recv()
    return {
        "": {
            "MiB of memory to write": written[0], "of files": written[1], "s to open, killed, cold": cold_s,
            "and read a page": cold_read_s, "s to open, warm": warm_s, "MiB opened": own,
            "of files ": of_files, "MiB on disk": disk_mib(directory),
        }
    }  # fmt: skip


def commit_on(connection: Connection, name: str, directory: Path) -> None:
    engine = ENGINES[name](directory)
    while True:
        for batch in batches(engine.next_position, 300, random.randint(1, 300)):  # noqa: S311 (no secret)
            engine.append(batch)
            engine.commit()
            connection.send(batch[-1].position + 1)


def crash(name: str, directory: Path, messages: int) -> Rows:
    committed, beyond = 0, 0
    for _ in range(KILLS):
        before = committed
        with beside(commit_on, name, directory) as connection:
            connection.recv()
            time.sleep(random.random() / 2)  # noqa: S311 (no secret)
        with suppress(EOFError):
            while True:
                committed = connection.recv()
        engine = ENGINES[name](directory)
        assert engine.next_position >= committed, f"{name} lost what was committed"
        beyond += engine.next_position - committed
        committed = engine.next_position
        check(engine, name, before, committed)
        engine.close()
    engine = ENGINES[name](directory)
    check(engine, name, 0, committed)
    engine.close()
    return {"": {"kills": KILLS, "messages committed": committed, "lost": 0, "there, not yet told": beyond}}


# A full disk. In a mount namespace of its own, which `full` enters by way of unshare(1).


def full(name: str, directory: Path, messages: int) -> Rows:
    image, mounted = directory / "image", directory / "mounted"
    mounted.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(FULL_MIB << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    command = [sys.executable, __file__, "--full", name, "--directory", str(mounted)]
    script = 'mount -o loop "$0" "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, image, mounted, *command],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    answers: Figures = {}
    for line in done.stdout.splitlines():
        label, _, answers[label] = line.partition(" = ")
    return {"": answers}


class Positions:
    """What stays in SQLite beside the log, on the same disk: where each reader is."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS positions (reader INTEGER PRIMARY KEY, position)"
        )

    def store(self, position: int) -> None:
        """For a thousand readers. As in the store, what fails is tried again behind a checkpoint."""
        rows = [(reader, position) for reader in range(1_000)]
        for is_last in (False, True):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?)", rows)
                self._connection.execute("COMMIT")
                return
            except sqlite3.Error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if is_last:
                    raise
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


def commit_until_full(engine: Engine) -> tuple[str, int, list[Record]]:
    """The error, how many were committed, and what was not."""
    at = engine.next_position
    while True:
        batch = next(batches(at, 100, 100, SIZES[1]))
        try:
            engine.append(batch)
            engine.commit()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            for _ in range(3):  # The first may have found room for the next.
                with suppress(Exception):
                    engine.commit()
                    break
            else:
                return failure, at, batch
        at = batch[-1].position + 1


def goes_on(name: str, engine: Engine, directory: Path, batch: list[Record]) -> tuple[str, Engine]:
    """Does it take what it could not take before?"""
    give_up_at = time.monotonic() + 10
    why: object = None
    while time.monotonic() < give_up_at:
        try:
            engine.commit()
            return "yes", engine
        except Exception as error:
            why = error
            time.sleep(0.2)
    try:
        with suppress(Exception):  # RocksDB reports the first failure once more.
            engine.close()
        engine = ENGINES[name](directory)
        if engine.next_position <= batch[0].position:
            engine.append(batch)
            engine.commit()
        return "opened anew", engine
    except Exception as error:
        return f"no: {why}; nor opened anew: {error}", engine


def on_full_disk(connection: Connection, name: str, mounted: Path) -> None:
    say = partial(_say, connection)
    other, log = mounted / "other", mounted / "log"
    other.write_bytes(bytes(OTHER_MIB << 20))
    positions = Positions(mounted / "positions.db")
    for position in range(1_000):  # past its first checkpoint
        positions.store(position)
    engine = ENGINES[name](log)
    error, committed, batch = commit_until_full(engine)
    say("error", error.replace(str(mounted), "").replace("\n", " "))
    check(engine, name, 0, committed, SIZES[1])
    say("all there", "yes")
    other.unlink()
    answer, engine = goes_on(name, engine, log, batch)
    say("goes on with room", answer)
    _, committed, batch = commit_until_full(engine)
    check(engine, name, 0, committed, SIZES[1])
    with suppress(OSError), (mounted / "rest").open("wb", buffering=0) as rest:
        while rest.write(bytes(512)):  # to the last block
            pass
    say("MiB of payload taken", f"{committed * SIZES[1] / 2**20:.0f}")
    connection.send(("committed", str(committed)))
    connection.recv()


def after_full_disk(connection: Connection, name: str, mounted: Path, committed: int) -> None:
    say = partial(_say, connection)
    log = mounted / "log"
    try:
        engine = ENGINES[name](log)
        assert engine.next_position >= committed
        check(engine, name, 0, committed, SIZES[1])
    except Exception as error:
        say("opens when full", f"no: {error}")
        return
    say("opens when full", "yes, all there")
    batch = next(batches(engine.next_position, 100, 100, SIZES[1]))
    with suppress(Exception):
        engine.append(batch)
        engine.commit()
    try:
        positions = Positions(mounted / "positions.db")
        positions.store(STEP)
        say("positions are stored when full", "yes")
    except Exception as error:
        say("positions are stored when full", f"no: {error}")
    try:
        for position in range(STEP, committed * 3 // 4, STEP):
            engine.delete_before(position)
        say("can be emptied when full", "yes")
    except Exception as error:
        say("can be emptied when full", f"no: {error}")
    answer, engine = goes_on(name, engine, log, batch)
    say("and then goes on", answer)
    check(engine, name, committed * 3 // 4, committed, SIZES[1])


def _say(connection: Connection, label: str, text: str) -> None:
    connection.send((label, text))


def inside_full(name: str, mounted: Path) -> None:
    committed = 0
    for action in (on_full_disk, after_full_disk):
        arguments = (name, mounted) if action is on_full_disk else (name, mounted, committed)
        with beside(action, *arguments) as connection, suppress(EOFError):
            while True:
                label, text = connection.recv()
                if label == "committed":
                    committed = int(text)
                    break
                print(f"{label} = {text}")


PARTS: dict[str, Callable[[str, Path, int], Rows]] = {
    "append": append, "busy": busy, "read": read, "both": both, "delete": delete, "backlog": backlog,
    "crash": crash, "full": full,
}  # fmt: skip
ONCE = {"crash", "full"}


def sizes(engines: Sequence[str]) -> None:
    print("\n## size of packages, MiB\n")
    for name in engines:
        for package in PACKAGES.get(name, ()):
            found = metadata.files(package) or []
            size = sum(file.size or 0 for file in found) / 2**20
            print(f"- {name}: {package} {metadata.version(package)}, {size:.1f}")


def summary(values: list[float | str], label: str) -> str:
    if not values:
        return "–"
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        return " / ".join(dict.fromkeys(map(str, values)))
    number = max(numbers) if label.startswith("slowest") else median(numbers)
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def show(part: str, gathered: dict[tuple[str, str], list[Figures]]) -> None:
    labels = list(dict.fromkeys(label for runs in gathered.values() for run in runs for label in run))
    print(f"\n## {part}\n\n| engine | {' | '.join(labels)} |\n|{' --- |' * (1 + len(labels))}")
    for (row, name), runs in sorted(gathered.items(), key=lambda item: list(ENGINES).index(item[0][1])):
        cells = [summary([run[label] for run in runs if label in run], label) for label in labels]
        print(f"| {', '.join(filter(None, (name, row)))} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="the backlog has ten times as many")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="on the disk that counts")
    parser.add_argument("--pause-file", type=Path, help="wait before each run while this file is there")
    parser.add_argument("--full", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.full:
        inside_full(options.full, options.directory)
        return
    engines = options.engines.split(",")
    print(f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, load {os.getloadavg()[0]:.1f}")
    sizes(engines)
    for package in (package for name in engines for package in PACKAGES.get(name, ())):
        import_module(package)  # Now, and not within what is measured.
    for part in options.parts.split(","):
        gathered: dict[tuple[str, str], list[Figures]] = {}
        for _ in range(1 if part in ONCE else options.runs):
            for name in engines:
                while options.pause_file and options.pause_file.exists():
                    time.sleep(1)
                with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                    try:
                        rows = PARTS[part](name, Path(directory) / "it", options.messages)
                    except Exception as error:
                        # One engine that fails is a result, and no reason to measure no other.
                        print(f"{part} of {name}: {type(error).__name__}: {error}", file=sys.stderr)
                        continue
                for row, figures in rows.items():
                    gathered.setdefault((row, name), []).append(figures)
        if gathered:
            show(part, gathered)
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
