"""For `bench multicast`: a publisher and its subscribers, each a process, and the rounds they go through.

The processes are ended however the block is left, and end by themselves when this one is gone: their
standard input is a pipe from here.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.pipeline.program import default_signals
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.multicast_participant import LOOPBACK, ROUND_S

READY_S = 20.0
_STOP_S = 5.0
# How soon after a lost mark the next one comes; a round of half a second is longer by no more than this.
_MARK_AGAIN_S = 0.005
_READ_BYTES = 65_536


@dataclass(frozen=True)
class RoundLoad:
    size: int
    qos: int = 0
    complete: bool = False
    """Nothing may be lost: a round ends when all has arrived, and to lose or double a message is an error."""


@dataclass(frozen=True)
class Round:
    sent: int
    seconds: float
    """From the first message's sending to the moment when the last subscriber had all of its own."""
    received: list[int]
    """By subscriber."""
    latencies: list[int]
    """Nanoseconds, of all subscribers; none unless the round was paced."""

    @property
    def rate(self) -> float:
        """Deliveries a second."""
        return sum(self.received) / self.seconds


class _Process:
    def __init__(self, kind: str, role: str, port: int, log: Path) -> None:
        self.name = log.name
        self._log = log
        self._heard = b""
        with log.open("wb") as errors:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "hedgerow_workshop.bench.multicast_participant",
                    kind,
                    role,
                    str(port),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the bench, which ends this process itself.
                preexec_fn=default_signals,  # noqa: PLW1509 - it makes a few system calls
            )

    def fileno(self) -> int:
        assert self._child.stdout is not None
        return self._child.stdout.fileno()

    def tell(self, command: str, *arguments: object) -> None:
        assert self._child.stdin is not None
        line = json.dumps([command, *arguments]) + "\n"
        try:
            os.write(self._child.stdin.fileno(), line.encode())
        except BrokenPipeError:
            raise self._ended() from None

    def hear(self, within_s: float) -> dict[str, Any]:
        """The next answer."""
        give_up_at = time.monotonic() + within_s
        while b"\n" not in self._heard:
            readable, _, _ = select.select([self], (), (), max(0.0, give_up_at - time.monotonic()))
            if not readable:
                raise BenchError(f"{self.name} did not answer within {within_s:g} s")
            data = os.read(self.fileno(), _READ_BYTES)
            if not data:
                raise self._ended()
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"{self.name}: {answer['error']}")
        return answer

    def _ended(self) -> BenchError:
        self.stop()
        said = self._log.read_text(errors="replace").strip().splitlines()
        status = self._child.returncode
        return BenchError(
            f"{self.name} ended with status {status}: {said[-1] if said else 'it said nothing'}"
        )

    def begin_stop(self) -> None:
        """Let it leave in order, beside the others."""
        assert self._child.stdin is not None
        self._child.stdin.close()

    def stop(self) -> None:
        self.begin_stop()
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()


class Team:
    def __init__(self, publisher: _Process, subscribers: list[_Process]) -> None:
        self._publisher = publisher
        self._subscribers = subscribers
        self._rounds = 0

    def play(self, load: RoundLoad, seconds: float, rate: int | None = None) -> Round:
        """One round: without a rate as fast as it goes, with one so many messages a second, each with
        the time of its sending in it."""
        self._rounds += 1
        number = self._rounds
        for subscriber in self._subscribers:
            subscriber.tell("collect", number, rate is not None, load.complete)
        for subscriber in self._subscribers:
            subscriber.hear(READY_S)
        self._publisher.tell("publish", number, load.size, load.qos, seconds, rate)
        published = self._publisher.hear(seconds + ROUND_S)
        collected = self._collect(number, published["sent"], load)
        return outcome(load, published["sent"], published["started_at"], collected)

    def _collect(self, number: int, sent: int, load: RoundLoad) -> list[dict[str, Any]]:
        waiting = list(self._subscribers)
        collected = []
        give_up_at = time.monotonic() + ROUND_S
        while waiting:
            readable, _, _ = select.select(waiting, (), (), _MARK_AGAIN_S)
            for subscriber in readable:
                collected.append(subscriber.hear(ROUND_S))
                waiting.remove(subscriber)
            if not readable:
                if time.monotonic() > give_up_at:
                    raise BenchError(f"{len(waiting)} subscribers did not end a round within {ROUND_S:g} s")
                self._publisher.tell("mark", number, sent, load.qos)
                self._publisher.hear(READY_S)
        return collected


def outcome(load: RoundLoad, sent: int, started_at: int, collected: list[dict[str, Any]]) -> Round:
    """What the subscribers' answers come to."""
    received = [each["count"] for each in collected]
    if load.complete and set(received) != {sent}:
        raise BenchError(f"of {sent} messages the subscribers received {received}")
    ended_at = max(each["ended_at"] for each in collected)
    latencies = [latency for each in collected for latency in each["latencies"]]
    return Round(sent, (ended_at - started_at) / 1e9, received, latencies)


@contextmanager
def team(kind: str, subscribers: int, directory: Path) -> Iterator[Team]:
    """So many subscribers and a publisher that they all hear; logs are left in an empty `directory`
    that this makes."""
    directory.mkdir(parents=True)
    port = _free_port()
    with ExitStack() as stack:
        processes: list[_Process] = []

        def start(role: str, name: str) -> _Process:
            process = _Process(kind, role, port, directory / name)
            processes.append(process)
            stack.callback(process.stop)
            return process

        publisher = start("publisher", "publisher")
        publisher.hear(READY_S)
        others = [start("subscriber", f"subscriber-{number}") for number in range(1, subscribers + 1)]
        # Undone before each is waited for, so that all leave at the same time.
        for process in processes:
            stack.callback(process.begin_stop)
        for process in others:
            process.hear(READY_S)
        made = Team(publisher, others)
        # With no messages in it, a round takes until the last subscriber hears the publisher.
        made.play(RoundLoad(size=64), seconds=0.0)
        yield made


def _free_port() -> int:
    """A port that is free for UDP and TCP alike: the kinds use the one or the other."""
    while True:
        with ExitStack() as stack:
            port = 0
            try:
                for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                    probe = stack.enter_context(socket.socket(socket.AF_INET, kind))
                    probe.bind((LOOPBACK, port))
                    port = probe.getsockname()[1]
            except OSError:
                continue
            return port
