"""Fixtures for every test: live programs to talk to, and a watch over what a test leaves behind."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import hypothesis
import pytest

from hedgerow import native
from tests.forks import end_helper, helpers
from tests.order import in_order, needs_spark
from tests.programs import Node, run_mosquitto, run_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long an example takes says nothing on a machine that runs live brokers beside it. They are
# the same each time: no change is stopped by what chance finds elsewhere. `make soak` tries new ones.
hypothesis.settings.register_profile("new examples", deadline=None, print_blob=True)
hypothesis.settings.register_profile("same examples", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("same examples")

# Each Spark that a test starts is small and soon ended: compiling it well costs more than running it, and to
# verify Spark's own classes takes a fifth of its start. The quick compiler's code takes more room.
QUICK_JAVA = " ".join(
    (
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-XX:TieredStopAtLevel=1",
        "-XX:ReservedCodeCacheSize=240m",
        "-XX:+UseSerialGC",
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:-BytecodeVerificationRemote",
    )
)

SPARK_TEST_S = 180  # The first test of a process has Spark started, and each has its queries compiled.
GRACE_S = 3.0  # For what is ending already: a killed process, a thread whose loop was stopped.


class StartMosquitto(Protocol):
    def __call__(self, *lines: str) -> int: ...


class StartNode(Protocol):
    def __call__(self, *arguments: str) -> Node: ...


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[StartMosquitto]:
    """`port = mosquitto("persistence false", ...)` starts a Mosquitto with these configuration lines."""
    with ExitStack() as running:

        def start(*lines: str) -> int:
            return running.enter_context(run_mosquitto(_new_folder(tmp_path, "mosquitto"), *lines))

        yield start


@pytest.fixture
def hedgerow_node(tmp_path: Path) -> Iterator[StartNode]:
    """`node = hedgerow_node("--data", "DIR", ...)` starts `hedgerow up` with these arguments."""
    with ExitStack() as running:

        def start(*arguments: str) -> Node:
            return running.enter_context(run_node(_new_folder(tmp_path, "node"), *arguments))

        yield start


def _new_folder(parent: Path, name: str) -> Path:
    folder = parent / f"{name}-{sum(1 for _ in parent.glob(f'{name}-*')) + 1}"
    folder.mkdir()
    return folder


def pytest_report_header() -> str:
    return f"hedgerow: {native.STATE}"


def pytest_configure() -> None:
    # The key that nodes of one user share is made at first need: not in the home of whoever runs tests.
    os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="hedgerow-tests-")
    os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    gc.disable()  # Ten thousand tests are about to be found, and none of what is made for that is garbage.
    if sys.platform == "linux":
        # PR_SET_CHILD_SUBREAPER: what a program under test leaves running becomes our child, not init's.
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def pytest_unconfigure() -> None:
    end_helper()


@pytest.hookimpl(trylast=True)  # after what `-m` leaves out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if needs_spark(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TEST_S))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items[:] = in_order(items, processes)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One for all tests of a process: it takes seconds to start.

    Its Java process is there before the first test that asks for it, and so is nothing that a test leaves
    behind; what Java calls Python with belongs to it too (`_serves_java`).
    """
    from pyspark.logger import PySparkLogger

    from hedgerow.pipeline.session import open_session

    session = open_session("tests", "local[2]")
    with pytest.MonkeyPatch.context() as patch:
        # A logger of PySpark's makes every handler it gets write JSON, and pytest gives the handler behind
        # `caplog` to all that do not propagate: the log of each later test of this process would be JSON.
        patch.setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)
        yield session
    session.stop()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves a process or a thread running. Set up first, so it looks last."""
    children, threads = _children(), set(threading.enumerate())
    yield
    give_up_at = time.monotonic() + GRACE_S
    while (left := _left(children, threads)) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    for pid in _children() - children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if left:
        pytest.fail("left running: " + ", ".join(left))


def _left(children: set[int], threads: set[threading.Thread]) -> list[str]:
    left = [f"process {pid} ({_command(pid)})" for pid in _children() - children if not _reaped(pid)]
    new = set(threading.enumerate()) - threads
    return left + [f"thread {thread.name}" for thread in new if not _serves_java(thread)]


def _serves_java(thread: threading.Thread) -> bool:
    """Java calls Python (`foreachBatch`, listeners) on threads of py4j's that stay for as long as Spark does.
    A test cannot end them: closing a connection that a thread reads from waits for ever."""
    target = getattr(thread, "_target", None)
    return any(
        type(each).__module__.startswith("py4j.") for each in (thread, getattr(target, "__self__", None))
    )


def _children() -> set[int]:
    pids: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # The thread ended meanwhile; its children are another's now.
            pids.update(map(int, path.read_text().split()))
    return pids - helpers()


def _reaped(pid: int) -> bool:
    """Whether the process has ended; an orphan that became our child has nobody else to ask."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return "ended"
