"""Publications on several topics, at rates that change; and whether each of them came to everyone once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tests.mobility.domain import Domain, Roamer

Rates = Mapping[str, float]
"""Topic → publications a second."""


class Traffic:
    """`rates(seconds since the begin)` says what is published; at QoS 1, by a part of the host `at`."""

    TICK_S = 0.02

    def __init__(self, domain: Domain, at: str, rates: Callable[[float], Rates]) -> None:
        self.domain = domain
        self.at = at
        self.sent: dict[bytes, str] = {}
        self._rates = rates
        self._begun_at = domain.now
        self._owed: dict[str, float] = {}
        self._is_on = True
        self._tick()

    def stop(self) -> None:
        self._is_on = False

    def _tick(self) -> None:
        if not self._is_on:
            return
        for topic, rate in self._rates(self.domain.now - self._begun_at).items():
            self._owed[topic] = self._owed.get(topic, 0.0) + rate * self.TICK_S
            while self._owed[topic] >= 1:
                self._owed[topic] -= 1
                self._publish(topic)
        self.domain.later(self.TICK_S, self._tick)

    def _publish(self, topic: str) -> None:
        if self.domain[self.at].is_gone:
            return
        payload = f"{self.at}-{len(self.sent)}".encode()
        self.sent[payload] = topic
        self.domain[self.at].publish(topic, payload)

    def check(self, roamers: Iterable[Roamer], *, may_double: bool = False) -> None:
        for roamer in roamers:
            tally = roamer.tally
            due = [payload for payload, topic in self.sent.items() if topic in roamer.filters]
            lost = [payload for payload in due if payload not in tally]
            doubled = [payload for payload in due if tally[payload] > 1]
            where = f"{roamer.client_id} (version {roamer.version}, moves {roamer.moves})"
            assert due, where
            assert not lost, f"{where}: {len(lost)} of {len(due)} lost: {lost[:5]}"
            assert may_double or not doubled, f"{where}: {len(doubled)} of {len(due)} doubled: {doubled[:5]}"


def steady(**rates: float) -> Callable[[float], Rates]:
    return lambda seconds: rates


def alternating(topic: str, rival: str, every_s: float) -> Callable[[float], Rates]:
    """Two topics of which each is the busier one in turn."""

    def rates(seconds: float) -> Rates:
        is_hot = int(seconds / every_s) % 2 == 0
        return {topic: 60.0 if is_hot else 10.0, rival: 10.0 if is_hot else 60.0}

    return rates
