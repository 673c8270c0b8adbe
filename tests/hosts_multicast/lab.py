"""Programs on the hosts of a test's own network, and what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.hosts import Host, network
from tests.programs import wait_until
from tests.waiting import PATIENCE_S

HERE = Path(__file__).parent
NO_SERVER = "multicast://"


class Program:
    """One process. What it prints goes to files, so that it never waits for the test to read."""

    def __init__(self, host: Host, directory: Path, name: str, command: Sequence[str | Path]) -> None:
        self.name = name
        self._output, self._errors = directory / f"{name}.output", directory / f"{name}.errors"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = host.run(
                command, stdin=subprocess.PIPE, stdout=output, stderr=errors, cwd=directory
            )

    @property
    def output(self) -> bytes:
        return self._output.read_bytes()

    @property
    def lines(self) -> list[str]:
        """The whole ones."""
        return [line.decode() for line in self.output.split(b"\n")[:-1]]

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def say(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait_for_lines(self, count: int) -> list[str]:
        self.wait_for(lambda: len(self.lines) >= count, f"{count} lines")
        return self.lines

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """A condition that is waited for in vain once the program has ended."""
        wait_until(lambda: condition() or self.process.poll() is not None, f"{what} of {self.name}")
        assert condition(), f"{self.name} ended before {what}: {self.errors}"

    def wait(self) -> int:
        """The exit status, when it has ended by itself."""
        return self.process.wait(PATIENCE_S)


class Device(Program):
    """A `device.py`; `open` has to be waited for before anything is asked of it."""

    def __init__(self, host: Host, directory: Path, name: str, *arguments: str) -> None:
        super().__init__(host, directory, name, [sys.executable, HERE / "device.py", *arguments])
        self._answers = 0

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [each for each in self.told if "topic" in each]

    def payloads(self, topic: str | None = None) -> list[str]:
        return [each["payload"] for each in self.messages if topic in (None, each["topic"])]

    def wait_for_payloads(self, payloads: list[str], topic: str | None = None) -> None:
        """Exactly these, in this order."""
        self.wait_for(lambda: len(self.payloads(topic)) >= len(payloads), f"{len(payloads)} messages")
        assert self.payloads(topic) == payloads

    def open(self) -> None:
        self._take_answer()

    def ask(self, do: str, **command: object) -> dict[str, Any]:
        self.begin(do, **command)
        return self._take_answer()

    def begin(self, do: str, **command: object) -> None:
        """Without waiting until it is done: `finish` does that."""
        self.say(json.dumps({"do": do, **command}))

    def finish(self) -> None:
        self._take_answer()

    def _take_answer(self) -> dict[str, Any]:
        self._answers += 1
        self.wait_for(lambda: len(self._all_answers) >= self._answers, "an answer")
        return self._all_answers[self._answers - 1]

    @property
    def _all_answers(self) -> list[dict[str, Any]]:
        return [each for each in self.told if "topic" not in each]

    @property
    def stats(self) -> dict[str, int]:
        stats: dict[str, int] = self.ask("stats")["stats"]
        return stats


class Lab:
    def __init__(self, hosts: list[Host], directory: Path) -> None:
        self.hosts = hosts
        self.directory = directory
        self._programs: list[Program] = []

    def run(self, host: int, *command: str | Path) -> Program:
        program = Program(self.hosts[host], self.directory, self._name(host), command)
        self._programs.append(program)
        return program

    def hedgerow(self, host: int, *arguments: str) -> Program:
        return self.run(host, sys.executable, "-m", "hedgerow", *arguments)

    def publish(self, host: int, *arguments: str) -> None:
        """`hedgerow pub`, to its end."""
        publisher = self.hedgerow(host, "pub", *arguments)
        assert publisher.wait() == 0, publisher.errors

    def subscribe(self, host: int, *arguments: str) -> Program:
        """`hedgerow sub`, not yet waited for: `subscribed` does that, for several at once."""
        return self.hedgerow(host, "sub", "-d", *arguments)

    def subscribed(self, *subscribers: Program) -> None:
        for each in subscribers:
            each.wait_for(partial(_is_subscribed, each), "its subscription")

    def devices(self, *hosts: int, url: str = NO_SERVER, group: str | None = None) -> list[Device]:
        """A device on each host, all of them open."""
        return self.opened(*(self.device(host, url, *([group] if group else [])) for host in hosts))

    def device(self, host: int, *arguments: str) -> Device:
        device = Device(self.hosts[host], self.directory, self._name(host), *arguments)
        self._programs.append(device)
        return device

    def opened(self, *devices: Device) -> list[Device]:
        for device in devices:
            device.open()
        return list(devices)

    def call(self, host: int, *command: str) -> str:
        """Run a short command to its end, which must be a success."""
        done = subprocess.run(
            [*self.hosts[host].wrapper, *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def end(self) -> None:
        """All at once: each lingers for a moment. None may have stumbled."""
        for program in self._programs:
            program.process.terminate()
        for program in self._programs:
            program.wait()
        for program in self._programs:
            assert "Traceback" not in program.errors, program.errors

    def _name(self, host: int) -> str:
        return f"program{len(self._programs) + 1}-host{host}"


def _is_subscribed(subscriber: Program) -> bool:
    return "subscribed to" in subscriber.errors


@contextmanager
def lab(directory: Path, count: int, *, ip: int | None = None) -> Iterator[Lab]:
    """Hosts 0 to count - 1 that can do both IP versions, or this one."""
    with network(count, ipv4=ip != 6, ipv6=ip != 4) as net:
        rooms = Lab(net.hosts, directory)
        try:
            yield rooms
        finally:
            rooms.end()


def numbered(word: str, count: int) -> list[str]:
    return [f"{word} {number}" for number in range(count)]
