"""Mobile and fixed brokers with stores, killed at any moment: nothing that was acknowledged is lost.

What comes twice after a crash is marked as such (DUP).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest

from hedgerow.mobility.roles import KEPT_PREFIX
from hedgerow.mqtt.packets import MQTT_5, Packet, Puback, Pubcallback, Publish
from tests.federation.clients import Inbox
from tests.mobility.domain import Domain, Line, Roamer
from tests.mobility.traffic import Traffic, steady

STAYING = {"moves_clients": False}


class Subscriber(Roamer):
    """One that notes what was marked, and can be made to acknowledge nothing."""

    def __init__(self, domain: Domain, home: str, client_id: str, *filters: str) -> None:
        self.unmarked: Counter[bytes] = Counter()
        self.is_deaf = False
        super().__init__(domain, home, client_id, MQTT_5, *filters)

    def take(self, line: Line, packet: Publish | Pubcallback) -> list[Packet]:
        assert isinstance(packet, Publish)
        self.unmarked[packet.payload] += not packet.dup
        answers = super().take(line, packet)
        return [] if self.is_deaf else answers

    def reconnect(self, at: str | None = None) -> None:
        self.lose()
        self.go(at or self.home)

    def check(self, payloads: Iterable[bytes]) -> None:
        tally = self.tally
        lost = [payload for payload in payloads if payload not in tally]
        assert not lost, f"{self.client_id}: {len(lost)} lost: {lost[:5]} moves {self.moves}"
        doubled = [payload for payload, times in self.unmarked.items() if times > 1]
        assert not doubled, f"{self.client_id}: {len(doubled)} doubled: {doubled[:5]} moves {self.moves}"


class Publisher:
    """Counts what was acknowledged."""

    def __init__(self, domain: Domain, at: str) -> None:
        self._domain = domain
        self.at = at
        self._numbers = count(1)
        self._sent: dict[int, bytes] = {}
        self._topics: dict[bytes, str] = {}
        self._before: list[bytes] = []
        self.connect()

    def connect(self) -> None:
        self._before = self.acknowledged() if self._sent else []
        self._sent = {}
        self._inbox = Inbox(self._domain[self.at], f"publisher-{self.at}", kept=True)

    def publish(self, topic: str) -> bytes:
        number = next(self._numbers)
        payload = f"{self.at}-{topic}-{number}".encode()
        self._sent[number], self._topics[payload] = payload, topic
        self._inbox.send(Publish(topic, payload, 1, packet_id=number))
        return payload

    def acknowledged(self, *topics: str) -> list[bytes]:
        answers = self._inbox.answers
        new = [self._sent[each.packet_id] for each in answers if isinstance(each, Puback)]
        return [each for each in self._before + new if not topics or self._topics[each] in topics]


def make(**settings: Any) -> Domain:
    domain = Domain()
    domain.add_fixed("f", durable=True)
    domain.add_mobile("m", "f", settings=settings or STAYING, durable=True)
    domain.advance(0.5)
    return domain


@pytest.fixture
def domain() -> Domain:
    return make()


def delegate_cold(domain: Domain) -> Traffic:
    """Until "cold" is matched by the fixed broker."""
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: domain["m"].delegated == {"cold"}, 5)
    domain.advance(0.2)
    traffic.stop()
    domain.advance(0.2)
    return traffic


def stored_for_brokers(domain: Domain, name: str) -> list[str]:
    store = domain[name].store
    names = {key: record.client_id for key, record in store.sessions.items()}
    return [names[key] for key, _ in store.waits if names[key].startswith(KEPT_PREFIX)]


def test_a_mobile_broker_dies_with_events_that_the_fixed_one_was_to_match(domain: Domain) -> None:
    inside = [Subscriber(domain, "m", "a", "cold"), Subscriber(domain, "m", "b", "hot", "cold")]
    outside = Subscriber(domain, "f", "o", "cold")
    delegate_cold(domain)
    publisher = Publisher(domain, "m")
    domain.cut("m", "f")
    payloads = [publisher.publish("cold") for _ in range(5)]
    assert publisher.acknowledged() == payloads
    assert not set(payloads) & set(inside[0].payloads)
    domain["m"].kill()
    for each in inside:
        each.lose()
    domain["m"].start()
    for each in inside:
        each.reconnect()
    domain.advance(0.1)
    for each in inside:
        each.check(payloads)
        assert not any(each.unmarked[payload] for payload in payloads)
    assert not set(payloads) & set(outside.payloads)
    domain.mend("m", "f")
    domain.advance(10)
    for each in (*inside, outside):
        each.check(payloads)
        assert all(each.tally[payload] == 1 for payload in payloads)
    assert not stored_for_brokers(domain, "m")


def test_a_filter_that_is_recovered_meanwhile_is_still_that_of_the_fixed_broker(domain: Domain) -> None:
    inside = Subscriber(domain, "m", "a", "cold", "hot")
    delegate_cold(domain)
    publisher = Publisher(domain, "m")
    domain.cut("m", "f")
    payload = publisher.publish("cold")
    node = domain["m"].node
    node.machine.recover(["cold"], domain.now)
    node.sync_delegated()
    later = publisher.publish("cold")
    domain["m"].settle()
    assert later in inside.payloads
    assert payload not in inside.payloads
    domain["m"].kill()
    inside.lose()
    domain["m"].start()
    inside.reconnect()
    domain.advance(0.1)
    inside.check([payload, later])


@pytest.mark.parametrize("at", ["m", "f"])
def test_a_publisher_waits_until_what_is_written_to_the_other_broker_is_stored(
    domain: Domain, at: str
) -> None:
    Subscriber(domain, "m", "a", "cold", "hot")
    delegate_cold(domain)
    publisher = Publisher(domain, at)
    domain.cut("m", "f")
    domain[at].commits = False
    payload = publisher.publish("cold")
    assert not publisher.acknowledged()
    domain[at].commits = True
    domain[at].settle()
    assert publisher.acknowledged() == [payload]


def test_a_fixed_broker_dies_with_events_for_a_mobile_one_that_is_away(domain: Domain) -> None:
    inside = [Subscriber(domain, "m", "a", "cold", "other"), Subscriber(domain, "m", "b", "hot")]
    delegate_cold(domain)
    publisher = Publisher(domain, "f")
    domain.cut("m", "f")
    topics = ["cold", "hot", "other", "cold"]
    payloads = [publisher.publish(topic) for topic in topics]
    domain.advance(0.5)
    assert publisher.acknowledged() == payloads
    domain["f"].crash()
    # It knows what the mobile broker had asked for before that one tells it again.
    publisher.connect()
    payloads.append(publisher.publish("cold"))
    assert payloads[-1] in publisher.acknowledged()
    domain["f"].crash()
    domain.mend("m", "f")
    domain.advance(12)
    inside[0].check(publisher.acknowledged("cold", "other"))
    inside[1].check(publisher.acknowledged("hot"))
    assert all(inside[0].tally[payload] == 1 for payload in publisher.acknowledged("cold", "other"))
    assert not stored_for_brokers(domain, "f")


def test_both_die(domain: Domain) -> None:
    inside = Subscriber(domain, "m", "a", "cold", "hot")
    outside = Subscriber(domain, "f", "o", "cold", "hot")
    delegate_cold(domain)
    publishers = [Publisher(domain, "m"), Publisher(domain, "f")]
    domain.cut("m", "f")
    for publisher in publishers:
        for topic in ("cold", "hot", "cold"):
            publisher.publish(topic)
    for name in ("m", "f"):
        domain[name].kill()
    inside.lose()
    outside.lose()
    for name in ("f", "m"):
        domain[name].start()
    inside.reconnect()
    outside.reconnect()
    domain.mend("m", "f")
    domain.advance(12)
    for publisher in publishers:
        assert len(publisher.acknowledged()) == 3
        for subscriber in (inside, outside):
            subscriber.check(publisher.acknowledged())
            assert all(subscriber.tally[payload] == 1 for payload in publisher.acknowledged())


def test_what_a_mobile_broker_wants_no_more_is_let_go(domain: Domain) -> None:
    inside = Subscriber(domain, "m", "a", "x", "y")
    domain.advance(0.5)
    publisher = Publisher(domain, "f")
    domain.cut("m", "f")
    publisher.publish("x")
    inside.unsubscribe("x")
    domain["f"].crash()
    assert stored_for_brokers(domain, "f")
    domain.mend("m", "f")
    domain.advance(80)
    assert not stored_for_brokers(domain, "f")
    assert "x" not in domain["f"].broker.sessions[f"{KEPT_PREFIX}for-m"].subscriptions


def test_what_waits_for_a_mobile_broker_that_never_comes_back_is_forgotten_in_a_day(domain: Domain) -> None:
    Subscriber(domain, "m", "a", "x")
    domain.advance(0.5)
    publisher = Publisher(domain, "f")
    domain["m"].kill()
    publisher.publish("x")
    domain["f"].crash()
    assert stored_for_brokers(domain, "f")
    domain["f"].now = domain.now = domain.now + 24 * 3_600 + 10
    domain["f"].settle()
    assert not stored_for_brokers(domain, "f")
    assert not any(name.startswith(KEPT_PREFIX) for name in domain["f"].broker.sessions)


@pytest.mark.parametrize("at", ["m", "f"])
def test_a_fixed_broker_dies_with_what_a_guest_has_not_acknowledged(at: str) -> None:
    domain = make(move_after_s=0.3)
    guest = Subscriber(domain, "m", "g", "cold")
    stays = Subscriber(domain, "m", "s", "cold", "hot")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: guest.at == "f", 6)
    domain.advance(1)
    guest.is_deaf = True
    publisher = Publisher(domain, at)
    payloads = [publisher.publish("cold") for _ in range(3)]
    domain.advance(7)  # Longer than the mobile broker keeps what guests do not acknowledge.
    assert publisher.acknowledged() == payloads
    domain["f"].kill()
    traffic.stop()
    guest.lose()
    guest.is_deaf = False
    got_before = len(guest.payloads)
    domain["f"].start()
    guest.reconnect("m")
    domain.advance(5)
    assert set(payloads) <= set(guest.payloads[got_before:])
    guest.check(payloads)
    stays.check(payloads)
    assert not stored_for_brokers(domain, "f")


def test_a_mobile_broker_dies_with_a_guest_at_the_fixed_one() -> None:
    domain = make(move_after_s=0.3)
    guest = Subscriber(domain, "m", "g", "cold")
    Subscriber(domain, "m", "s", "cold", "hot")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: guest.at == "f", 6)
    domain.advance(1)
    traffic.stop()
    domain.advance(0.3)
    publisher = Publisher(domain, "m")
    domain.cut("m", "f")
    payloads = [publisher.publish("cold") for _ in range(3)]
    assert publisher.acknowledged() == payloads
    domain["m"].crash(0.1)
    domain.mend("m", "f")
    domain.advance(15)
    guest.check(payloads)


class Storm:
    """Brokers that die at random moments, while clients publish and move."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.domain = domain = make(move_after_s=0.3) if seed % 2 else make()
        self.subscribers = [
            Subscriber(domain, "m", "a", "cold"),
            Subscriber(domain, "m", "b", "hot", "cold"),
            Subscriber(domain, "m", "c", "+"),
            Subscriber(domain, "f", "o", "hot", "cold"),
        ]
        self.publishers = {name: Publisher(domain, name) for name in ("m", "f")}
        self.hot, self.is_on = "hot", True
        self.uncommitted: set[str] = set()  # brokers that died with a batch that was not written
        self._publish()

    def _publish(self) -> None:
        if not self.is_on:
            return
        for name, publisher in self.publishers.items():
            if not self.domain[name].is_gone:
                cold = "cold" if self.hot == "hot" else "hot"
                publisher.publish(self.hot)
                if self.random.random() < 0.2:
                    publisher.publish(cold)
        self.domain.later(0.05, self._publish)

    def kill(self, name: str) -> None:
        domain, host = self.domain, self.domain[name]
        here = [each for each in self.subscribers if each.at == name]
        if self.random.random() < 0.5:
            self.uncommitted.add(name)
            host.commits = False
            domain.advance(self.random.uniform(0, 0.05))
        host.kill()
        host.commits = True
        for each in here:
            each.lose()
        domain.advance(self.random.choice([0.0, 0.2, 4.0]))
        host.start()
        self.publishers[name].connect()
        for each in here:
            domain.later(self.random.uniform(0.01, 0.5), partial(each.reconnect, each.home))

    def run(self) -> None:
        domain = self.domain
        for _ in range(4):
            domain.advance(self.random.uniform(0.5, 3))
            match self.random.choice(["hot", "cut", "close", "none"]):
                case "hot":
                    self.hot = "cold" if self.hot == "hot" else "hot"
                case "cut":
                    domain.cut("m", "f")
                    domain.advance(self.random.uniform(0.01, 1.5))
                case "close":
                    domain.close("m", "f")
            for name in self.random.choice([["m"], ["f"], ["m", "f"]]):
                self.kill(name)
            domain.mend("m", "f")
        domain.advance(3)
        self.is_on = False
        domain.advance(12)


@pytest.mark.parametrize("seed", range(4))
def test_brokers_that_die_at_random(seed: int) -> None:
    storm = Storm(seed)
    storm.run()
    for publisher in storm.publishers.values():
        acknowledged = publisher.acknowledged()
        assert len(acknowledged) > 50
        for subscriber in storm.subscribers:
            topics = subscriber.filters if "+" not in subscriber.filters else ("hot", "cold")
            if subscriber.home == "f" and "f" in storm.uncommitted:
                # As of any publisher that sends again what was not acknowledged: the second is a new message.
                subscriber.unmarked.clear()
            subscriber.check(publisher.acknowledged(*topics))
