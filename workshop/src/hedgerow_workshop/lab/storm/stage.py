"""The programs of a run: a fixed and a mobile node, the link between them, and the subscribers."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hedgerow.node.authority import authority
from hedgerow_workshop.lab.harness.brokers import Hedgerow
from hedgerow_workshop.lab.harness.programs import LabProgram
from hedgerow_workshop.lab.storm.record import SubscriberKind, Tally, read_tallies
from hedgerow_workshop.lab.storm.settings import DOMAIN, StormSettings

READY_S = 60.0
WRITE_S = 30.0


class StormNode(Hedgerow):
    @property
    def has_traceback(self) -> bool:
        return b"Traceback (most recent call last)" in self.log.read_bytes() + self.output.read_bytes()


def make_fixed(directory: Path, settings: StormSettings) -> StormNode:
    node = StormNode("fixed", directory / "fixed")
    node.is_durable = settings.durable
    node.options = ("--role", "fixed", "--domain", DOMAIN, "--takeover-after", f"{settings.takeover_s:g}s")
    return node


def make_mobile(
    directory: Path, settings: StormSettings, uplink: tuple[str, int], fixed: StormNode
) -> StormNode:
    """`uplink` leads to the fixed node; clients have a way of their own there."""
    node = StormNode("mobile", directory / "mobile")
    node.is_durable = settings.durable
    x = f"{settings.x_s:g}s"
    node.options = (
        *("--role", "mobile", "--domain", DOMAIN, "--fixed", f"mqtt://{authority(*uplink)}"),
        *("--fixed-clients-at", f"{fixed.host}:{fixed.port}"),
        *("--hot-every", x, "--hot-window", x, "--move-after", "0"),
        *("--takeover-after", f"{settings.takeover_s:g}s"),
    )
    return node


class SubscribersProgram(LabProgram):
    def __init__(self, kind: SubscriberKind, directory: Path, url: str, topics: Sequence[str]) -> None:
        super().__init__(f"{kind} subscribers", directory / f"subscribers-{kind}")
        self.kind = kind
        self.topics = topics
        self.url = url
        self._file = self.directory / "tallies.json"

    def start(self) -> None:
        words = [self.kind, self.url, str(self._file), *self.topics]
        self.launch([sys.executable, "-m", "hedgerow_workshop.lab.storm.subscribers", *words])

    async def wait_until_ready(self) -> None:
        await self.wait_until(lambda: b"ready\n" in self.output.read_bytes(), "subscriptions", READY_S)

    @property
    def have(self) -> tuple[int, int]:
        """How many publications have come, and how many different ones."""
        for line in reversed(self.output.read_text().splitlines()):
            match line.split():
                case ["have", arrived, distinct]:
                    return int(arrived), int(distinct)
        return 0, 0

    async def take_tallies(self) -> list[Tally]:
        self.send(signal.SIGUSR1)
        await self.wait_until(self._file.exists, "record", WRITE_S)
        return read_tallies(self._file)

    def end(self) -> None:
        """Nobody needs their farewells."""
        self.kill()
