"""Brokers as child processes: found or not, ready or not, and always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.peers import (
    BROKERS,
    READY_S,
    BrokerKind,
    Child,
    aedes_version,
    program_version,
    running,
)
from tests.programs import wait_until

CEILING = BROKERS["ceiling"]


def is_running(pid: int) -> bool:
    """Not gone, and not a zombie that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: not is_running(pid), f"process {pid} to end")


def starting(*code: str) -> BrokerKind:
    """A broker that is this Python program, with the port as its argument."""
    return replace(
        CEILING, command=lambda port, directory: [sys.executable, "-c", "\n".join(code), str(port)]
    )


def test_it_answers_when_it_is_ready(forwarder: Child) -> None:
    forwarder.dialect.connect(forwarder.port).close()
    assert 0 < forwarder.ready_s < READY_S
    assert forwarder.resident_bytes() > 1 << 20
    assert forwarder.processor_s() > 0


def test_it_is_ended_when_the_block_fails(tmp_path: Path) -> None:
    pids = []

    def interrupted() -> None:
        with running(CEILING, tmp_path / "broker") as child:
            pids.append(child.pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_running(*pids)


def test_it_is_ended_though_it_ignores_sigterm(tmp_path: Path) -> None:
    stubborn = starting(
        "import runpy, signal",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "runpy.run_module('hedgerow_workshop.bench.forwarder', run_name='__main__')",
    )
    with running(stubborn, tmp_path / "broker", stop_s=0.2) as child:
        pid = child.pid
    assert not is_running(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_it_is_ended_when_the_bench_is_killed(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; from hedgerow_workshop.bench.peers import BROKERS, running\n"
        "with running(BROKERS['ceiling'], pathlib.Path(sys.argv[1])) as child:\n"
        "    print(child.pid, flush=True); time.sleep(60)"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "broker")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as bench:
        assert bench.stdout is not None
        pid = int(bench.stdout.readline())
        assert is_running(pid)
        bench.kill()
    wait_until_gone(pid)


def test_one_that_ends_at_once_says_why(tmp_path: Path) -> None:
    broken = starting("import sys; sys.exit('no such option: --hedge')")
    with (
        pytest.raises(BenchError, match="ended with status 1: no such option: --hedge"),
        running(broken, tmp_path / "broker"),
    ):
        pass


def test_a_port_that_was_taken_in_between_is_not_the_end(tmp_path: Path) -> None:
    flag = tmp_path / "tried"
    second_time = starting(
        "import pathlib, runpy, sys",
        f"flag = pathlib.Path({str(flag)!r})",
        "if not flag.exists(): flag.touch(); sys.exit('address in use')",
        "runpy.run_module('hedgerow_workshop.bench.forwarder', run_name='__main__')",
    )
    with running(second_time, tmp_path / "broker") as child:
        child.dialect.connect(child.port).close()


def test_one_that_never_listens_is_given_up(tmp_path: Path) -> None:
    silent = starting("import time; print('thinking', flush=True); time.sleep(60)")
    with (
        pytest.raises(BenchError, match=r"not ready within 0.3 s"),
        running(silent, tmp_path / "broker", ready_s=0.3),
    ):
        pass


def test_ours_says_which_port_it_got(tmp_path: Path) -> None:
    with running(BROKERS["hedgerow"], tmp_path / "broker") as child:
        assert child.port > 0
        child.dialect.connect(child.port).close()


def test_what_is_not_installed_has_no_version(tmp_path: Path) -> None:
    assert program_version("no-such-broker", "--version") is None
    assert aedes_version(caches=(tmp_path,)) is None


def test_the_open_files_limit_is_raised_to_the_hard_one() -> None:
    code = (
        "from resource import RLIMIT_NOFILE, getrlimit, setrlimit\n"
        "from hedgerow_workshop.bench.peers import raise_open_files\n"
        "_, hard = getrlimit(RLIMIT_NOFILE); setrlimit(RLIMIT_NOFILE, (99, hard))\n"
        "assert raise_open_files() == hard; assert getrlimit(RLIMIT_NOFILE) == (hard, hard)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


def test_descendants_count_as_the_broker(tmp_path: Path) -> None:
    """A broker whose work is done by a child process of its own is measured whole."""
    parent = starting(
        "import subprocess, sys",
        "words = [sys.executable, '-m', 'hedgerow_workshop.bench.forwarder', sys.argv[1]]",
        "with subprocess.Popen(words) as child:",
        "    print(child.pid, flush=True)",
        "    child.wait()",
    )
    with running(parent, tmp_path / "broker") as child:
        grandchild = int((tmp_path / "broker/output").read_text())
        alone = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert child.resident_bytes() > alone
        os.kill(grandchild, signal.SIGKILL)
