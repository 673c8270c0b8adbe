"""A publisher and a subscriber that talk to each other, and an attacker who can send any datagram from any
address, and has recorded everything that was sent.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from hedgerow.message import Message
from hedgerow.multicast.keys import Keyring
from hedgerow.multicast.limits import MulticastLimits
from hedgerow.multicast.member import Member
from hedgerow.multicast.stats import MulticastStats
from tests.multicast.lan import START_AT, Host, Lan

KEY, OTHER_KEY = f"1 {'ab' * 32}", f"1 {'cd' * 32}"
TOPIC = "home/vacuum"

REFUSALS = (
    "malformed", "other_topic", "forged", "clear", "sealed", "replayed", "unproven", "duplicates",
    "too_large", "dropped",
)  # fmt: skip


def ring(text: str = KEY) -> Keyring:
    return Keyring.parse(text, "keys")


def refused(stats: MulticastStats) -> int:
    return sum(getattr(stats, name) for name in REFUSALS)


class Scene:
    def __init__(self, key: str | None = None, **own_limits: Any) -> None:
        self.key = key
        self.lan = Lan()
        self.publisher = self.host(**own_limits)
        self.subscriber = self.host(**own_limits)
        self.subscriber.subscribe("home/#", TOPIC)
        self.published: list[bytes] = []
        self.talk()

    def host(self, **own_limits: Any) -> Host:
        return self.lan.host(ring(self.key) if self.key else None, MulticastLimits(**own_limits))

    def talk(self) -> None:
        """One message each way of sending it."""
        for qos in (0, 1):
            self.published.append(b"%d at %d" % (len(self.published), qos))
            self.publisher.publish(TOPIC, self.published[-1], qos)
            self.lan.run(0.2)

    def attack(self, data: bytes, to: Host | None = None, **how: Any) -> None:
        to = to or self.subscriber
        to.member.receive_datagram(data, self.lan.now, **how)
        self.lan.drain(to)

    def is_unharmed(self) -> bool:
        self.talk()
        self.lan.run(2.0)
        return self.subscriber.payloads == self.published


class Target:
    """A member that is asked, and what it says."""

    def __init__(self, **own_limits: Any) -> None:
        self.now = START_AT
        self.member = Member(self.now, random.Random(1), limits=MulticastLimits(**own_limits))

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        self.member.publish(Message(topic, payload, qos, retain), self.now)
        self.member.flush(self.now)

    def ask(self, data: bytes, **how: Any) -> None:
        self.member.receive_datagram(data, self.now, **how)

    def run(self, duration_s: float) -> None:
        end = self.now + duration_s
        while self.member.deadline <= end:
            self.now = max(self.now, self.member.deadline)
            self.member.handle_timer(self.now)
        self.now = end

    def said(self) -> list[bytes]:
        return [data for _, data in self.member.take_to_groups()] + [
            data for _, data in self.member.take_to_peers()
        ]


def steps_of(action: Callable[[], None]) -> int:
    """How many lines of Python it takes: time, but the same on every machine."""
    steps = 0

    def count_step(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        return count_step

    before = sys.gettrace()
    sys.settrace(count_step)
    try:
        action()
    finally:
        sys.settrace(before)
    return steps
