"""Stock clients that are at their Mosquittos before there is a federator: what is published reaches them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from hedgerow.federation.interests import log_lines
from hedgerow.federation.interests.events import MOSQUITTO_LINES
from tests.cli.serving import Serving
from tests.interop.conftest import Reach
from tests.interop.paho_peer import Paho, paho
from tests.programs import end, need_program, run_mosquitto, wait_until

WITHIN_S = 2.0  # of the federators' start
SOON = "sys_interval 1"
NAMES = ("barn", "house", "mill")
# What mosquitto_sub is told, and a topic that no other kind of client gets.
KINDS = {
    "plain": (("-V", "311", "-t", "farm/plain"), "farm/plain"),
    "persistent": (("-V", "311", "-c", "-q", "1", "-t", "farm/persistent"), "farm/persistent"),
    "five": (("-V", "5", "-q", "2", "-t", "farm/five"), "farm/five"),
    "wildcard": (("-V", "311", "-t", "+/wild/#"), "farm/wild/7/soil"),
    "shared": (("-V", "5", "-q", "1", "-t", "$share/group/farm/shared"), "farm/shared"),
}
AWAY = ("-V", "311", "-c", "-q", "1", "-t", "farm/away")


class House:
    """A Mosquitto with its clients, and later a federator."""

    def __init__(self, directory: Path, name: str, running: ExitStack, *lines: str) -> None:
        self.directory = directory / name
        self.directory.mkdir()
        self.name = name
        self._running = running
        self.port = running.enter_context(run_mosquitto(self.directory, *MOSQUITTO_LINES, *lines))
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self.federator: Serving | None = None

    def subscribe(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Returns when the broker has the subscription."""
        command = [need_program("mosquitto_sub"), "-p", str(self.port), "-i", name, *words]
        with self.output(name).open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        self._running.callback(end_anyhow, process)
        log = self.directory / "mosquitto.log"
        wait_until(lambda: f"Sending SUBACK to {name}".encode() in log.read_bytes(), f"{name} to subscribe")
        return process

    def output(self, name: str) -> Path:
        return self.directory / f"of-{name}"

    def heard(self, name: str) -> list[str]:
        return self.output(name).read_text().splitlines()

    def federate(self, *words: str) -> None:
        directory = self.directory / "federator"
        directory.mkdir(exist_ok=True)
        self.federator = Serving(directory, "federate", "--broker", self.url, "--id", self.name, *words)
        self._running.callback(self.federator.end)

    def is_listened_to(self) -> bool:
        """Will the federator hear of who subscribes here? It serves before it has come so far."""
        line = f"hedgerow-federation-{self.name}-home 1 {log_lines.TOPICS[-1]}"
        return line in (self.directory / "mosquitto.log").read_text()

    def has_left_everything(self) -> bool:
        """Has the federator unsubscribed from `#` here?"""
        unsubscribed = f"Received UNSUBSCRIBE from hedgerow-federation-{self.name}-home"
        lines = (self.directory / "mosquitto.log").read_text().splitlines()
        return any(unsubscribed in line and after.endswith("\t#") for line, after in pairwise(lines))

    @property
    def log(self) -> str:
        assert self.federator is not None
        return self.federator.log


def end_anyhow(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        end(process)


@contextmanager
def publishing(house: House) -> Iterator[Paho]:
    with paho(Reach("mqtt", house.port, Path()), "5", f"publisher-{house.name}") as peer:
        yield peer


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def federate(houses: list[House]) -> float:
    """One federator beside each, in a line. Returns when the last of them ran."""
    for at, house in enumerate(houses):
        house.federate(*(("--neighbour", houses[at - 1].url) if at else ()))
    for house in houses:
        assert house.federator is not None
        house.federator.wait()
    return time.monotonic()


def test_what_is_published_reaches_clients_that_were_there_first(tmp_path: Path, running: ExitStack) -> None:
    houses = [House(tmp_path, name, running) for name in NAMES]
    for house in houses:
        for kind, (words, _) in KINDS.items():
            house.subscribe(f"{kind}-{house.name}", *words)
        house.subscribe(f"away-{house.name}", *AWAY, "-E").wait()
    publishers = [running.enter_context(publishing(house)) for house in houses]
    started = federate(houses)

    def all_have_heard() -> bool:
        for publisher, origin in zip(publishers, houses, strict=True):
            for topic in (*(topic for _, topic in KINDS.values()), AWAY[-1]):
                publisher.publish(topic, f"{origin.name} {time.monotonic()}", 1)
        return all(
            any(line.startswith(origin.name) for line in house.heard(f"{kind}-{house.name}"))
            for house in houses
            for kind in KINDS
            for origin in houses
        )

    wait_until(all_have_heard, "every client to hear of every house")
    assert time.monotonic() - started < WITHIN_S
    for house in houses:
        assert f"everything (#) goes to the broker at {house.url} until we know" in house.log
        house.subscribe(f"away-{house.name}", *AWAY)
        wait_until(
            lambda house=house: {line.split()[0] for line in house.heard(f"away-{house.name}")} == {*NAMES},  # type: ignore[misc]
            "what was published while it was away",
        )


@pytest.mark.parametrize("words", [("-t", "farm/plain"), ("-V", "5", "-t", "$share/group/farm/plain")])
def test_one_client_is_enough_to_be_told_of_at_once(
    tmp_path: Path, running: ExitStack, words: tuple[str, ...]
) -> None:
    house = House(tmp_path, "barn", running, SOON)
    house.subscribe("only", *words)
    house.federate()
    wait_until(lambda: "everything (#) goes to the broker" in house.log, "what is federated")
    wait_until(lambda: "has 1 subscription that we do not know" in house.log, "the warning")
    assert "we know all" not in house.log


def test_in_the_end_no_more_is_federated_than_is_wanted_and_nothing_is_lost(
    tmp_path: Path, running: ExitStack
) -> None:
    houses = [House(tmp_path, name, running, SOON) for name in NAMES]
    barn, _, mill = houses
    old = barn.subscribe("old", "-t", "farm/old")
    federate(houses)
    wait_until(barn.is_listened_to, "the federator to hear of clients")
    barn.subscribe("steady", "-q", "1", "-t", "farm/+/soil")
    publisher = running.enter_context(publishing(mill))
    watcher = running.enter_context(paho(Reach("mqtt", barn.port, Path()), "5", "watcher"))
    watcher.subscribe("hedgerow/federation/state/barn")
    said = 0

    def say() -> None:
        nonlocal said
        said += 1
        publisher.publish("farm/7/soil", str(said), 1)

    def holds(condition: Callable[[], bool]) -> Callable[[], bool]:
        def look() -> bool:
            say()
            return condition()

        return look

    def filters() -> set[str]:
        return set(json.loads(watcher.inbox[-1].payload)["filters"]) if watcher.inbox else set()

    wait_until(holds(lambda: bool(barn.heard("steady"))), "the first message")
    wait_until(holds(lambda: "#" in filters()), "everything to be wanted")
    end(old)
    barn.subscribe("old-again", "-t", "farm/old")
    wait_until(holds(lambda: "we know all that the clients" in barn.log), "all to be known")
    wait_until(holds(lambda: filters() == {"farm/old", "farm/+/soil"}), "only that to be wanted")
    # What everything had come by leaves a little later, at the neighbours and at their brokers.
    wait_until(holds(mill.has_left_everything), "the old way to be gone")
    wait_until(lambda: barn.heard("steady")[-1:] == [str(said)], "the last message")
    heard = [int(line) for line in barn.heard("steady")]
    assert heard == list(range(heard[0], said + 1))
