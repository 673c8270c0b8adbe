"""Nodes without a new interpreter each: a process that has imported Hedgerow forks.

To import a node takes 0.2 s of processor time, three quarters of all that a short test with a node costs, and
a test run starts hundreds. So the first `start_hedgerow` of a test process starts a helper, which imports and
waits. For each command it forks twice: whose parent has ended becomes a child of the test process, which is
a subreaper (tests/conftest.py), and which so waits for it as for any process that it started itself.

What a new interpreter does otherwise is done here: streams, signals, environment and directory are those of
the test process. Only the command line that others see in /proc is the helper's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

_REQUEST_BYTES = 1 << 20
# All that many nodes need, and nothing that starts a thread: of several, a fork would take one along.
IMPORTED = (
    "uvloop",
    "hedgerow.cli.parsing",
    "hedgerow.cli.up",
    "hedgerow.bridges.part",
    "hedgerow.federation.part",
    "hedgerow.mobility.part",
    "hedgerow.node.store",
    "hedgerow.web.dashboard",
)


def start_hedgerow(
    words: list[str], *, stdout: IO[bytes], stderr: IO[bytes], cwd: Path
) -> subprocess.Popen[bytes]:
    """`hedgerow WORDS`, forked where the system has subreapers."""
    if sys.platform == "linux":
        return _Forked(words, stdout, stderr, cwd)
    command = [sys.executable, "-m", "hedgerow", *words]
    return subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=cwd)


class _Forked(subprocess.Popen[bytes]):
    def __init__(self, words: list[str], stdout: IO[bytes], stderr: IO[bytes], cwd: Path) -> None:
        self._files = [stdout.fileno(), stderr.fileno()]
        self._request = {"words": words, "cwd": str(cwd), "environment": dict(os.environ)}
        super().__init__(words)

    def _execute_child(self, *_: Any) -> None:
        """All that a process is started by; what waits for it and ends it is as it was."""
        reading, writing = os.pipe()  # of this start alone: a test may be interrupted before the answer
        with os.fdopen(reading, "rb") as answer:
            try:
                request = json.dumps(self._request).encode()
                socket.send_fds(helper()[0], [request], [*self._files, writing])
            finally:
                os.close(writing)
            self.pid = int(answer.read())
        self._child_created = True


@cache
def helper() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """It ends when the other end of its socket is closed: with the test process, however that ends."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(its.fileno())]
    with its:
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=nothing, stdout=nothing, pass_fds=[its.fileno()])
    return ours, process


def helpers() -> set[int]:
    """The process that outlives the test that needed it first."""
    return {helper()[1].pid} if helper.cache_info().currsize else set()


def end_helper() -> None:
    if helper.cache_info().currsize:
        ours, process = helper()
        ours.close()
        process.wait()


def serve(control: socket.socket) -> list[str]:
    """Fork for each request; returns in each process that is to run a command."""
    while True:
        data, files, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 3)
        if not data:
            _leave()
        answer = files.pop()
        reading, writing = os.pipe()
        if os.fork() == 0:
            pid = os.fork()
            if pid == 0:
                for each in (reading, writing, answer, control.detach()):
                    os.close(each)
                return _become(json.loads(data), files)
            os.write(writing, b"%d" % pid)
            _leave()
        os.wait()  # When the first has ended, the second is the test process's.
        with suppress(BrokenPipeError):
            os.write(answer, os.read(reading, 20))
        for each in (reading, writing, answer, *files):
            os.close(each)


def _leave() -> NoReturn:
    """Without what Python does at its end, which is the test process's to do."""
    os._exit(0)


def _become(request: dict[str, Any], files: list[int]) -> list[str]:
    for each, standard in zip(files, (1, 2), strict=True):
        os.dup2(each, standard)
        os.close(each)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    words: list[str] = request["words"]
    return words


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests.
    from hedgerow.cli import main

    for name in IMPORTED:
        import_module(name)
    sys.exit(main(serve(socket.socket(fileno=int(sys.argv[1])))))
