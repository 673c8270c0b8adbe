"""Clients go from one mobile broker to another, and these from one domain to another, while brokers are
killed and links are cut: each subscriber gets each event, and gets it once.

A failure names its seed, which is the test's parameter.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Puback, Publish
from tests.federation.clients import Inbox
from tests.federation.hosts import Host, Node
from tests.mobility.domain import DOMAIN, Domain, FixedHost, MobileHost
from tests.mobility.test_sessions_that_follow import MOBILES, Wanderer

OTHER = "farm/sector2"
FIXED = ("f", "g")
TOPICS = ("t/a", "t/b", "t/c")
RIGHTS = (
    "\n".join(
        f"""\
user {name}
topic write $hedgerow/bridge
topic write {DOMAIN}/{name}/#
topic write {OTHER}/{name}/#
topic readwrite t/+
topic write $hedgerow/guest/alice
"""
        for name in MOBILES
    )
    + """
user alice
topic readwrite t/+

user neighbour
topic readwrite #
topic readwrite $hedgerow/#
"""
)
STEPS = 40


class FederatedFixedHost(FixedHost, Node):
    """A fixed broker that has a neighbour."""

    def start(self, *, is_empty: bool = False) -> None:
        Host.start(self, is_empty=is_empty)
        self._take_role()
        self.federate()
        self.settle()

    @property
    def deadline(self) -> float:
        theirs: float = Node.deadline.__get__(self)
        return min(self._node_at, theirs)


class Speaker:
    """A client that publishes at one broker, and knows what was acknowledged."""

    def __init__(self, domain: Domain, at: str) -> None:
        self.domain = domain
        self.at = at
        self.count = 0
        self.said: dict[int, tuple[str, bytes]] = {}
        self.acknowledged: dict[bytes, str] = {}
        self.said_at: dict[bytes, float] = {}
        self._inbox: Inbox | None = None

    def speak(self, topic: str) -> None:
        host = self.domain[self.at]
        if host.is_gone:
            self._inbox = None
            return
        if self._inbox is None or self._inbox.connection.link is None:
            self._inbox = Inbox(host, f"speaker-{self.at}", kept=False, username="alice")
            self.said.clear()
        self.count += 1
        payload = f"{self.at}-{topic}-{self.count}".encode()
        packet_id = self.count % 60_000 + 1
        self.said[packet_id] = topic, payload
        self.said_at[payload] = self.domain.now
        self._inbox.send(Publish(topic, payload, 1, packet_id=packet_id))
        self.note()

    def note(self) -> None:
        for answer in self._inbox.answers if self._inbox is not None else ():
            if isinstance(answer, Puback) and answer.packet_id in self.said:
                topic, payload = self.said.pop(answer.packet_id)
                self.acknowledged[payload] = topic

    def lose(self) -> None:
        self.note()
        self._inbox = None


class Play:
    def __init__(self, seed: int, durable: bool, **settings: Any) -> None:
        self.random = Random(seed)
        self.domain = Domain(seed)
        access = Access(Acl.parse(RIGHTS, "acl"))
        options: dict[str, Any] = {"access": access, "verifies_passwords": True, "durable": durable}
        for name, other, domain in (("f", "g", DOMAIN), ("g", "f", OTHER)):
            self.domain.hosts[name] = FederatedFixedHost(
                self.domain, name, domain=domain, neighbours=[other], username="neighbour", **options
            )
            self.domain[name].settle()
        for name in MOBILES:
            self.domain.add_mobile(
                name, "f", settings={"moves_clients": False, **settings}, username=name, **options
            )
        self.domain.advance(3)
        self.with_ = dict.fromkeys(MOBILES, "f")
        self.speakers = [Speaker(self.domain, at) for at in (*FIXED, *MOBILES)]
        self.clients = [
            Wanderer(self.domain, "m1", "panel", "t/+", version=MQTT_3_1_1),
            Wanderer(self.domain, "m2", "gauge", "t/a", "t/b", version=MQTT_5),
        ]
        self.plots = {"panel": "f", "gauge": "f"}
        """The fixed broker in whose domain a client is."""
        self.apart: dict[str, list[tuple[float, float]]] = {name: [] for name in MOBILES}
        """From when to when a mobile broker was out of its fixed broker's reach."""
        self.apart_since: dict[str, float] = {}
        self.restored_at = 0.0
        self.domain.advance(1)

    # What may happen

    def speak(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.random.choice(self.speakers).speak(self.random.choice(TOPICS))

    def wander(self) -> None:
        client = self.random.choice(self.clients)
        places = [
            name
            for name in MOBILES
            if self.with_[name] == self.plots[client.client_id] and not self.domain[name].is_gone
        ]
        client.lose()
        if places and self.random.random() < 0.8:
            client.go(self.random.choice(places))

    def leave(self) -> None:
        self.random.choice(self.clients).lose()

    def wait(self) -> None:
        self.domain.advance(self.random.choice([0.001, 0.003, 0.01, 0.1, 0.5, 1.5]))

    def part(self, *mobiles: str) -> None:
        for mobile in mobiles:
            self.apart_since.setdefault(mobile, self.domain.now)

    def note_who_is_back(self) -> None:
        for mobile in [name for name in self.apart_since if self.is_with(name)]:
            self.apart[mobile].append((self.apart_since.pop(mobile), self.domain.now))

    def was_apart(self, payload: bytes) -> bool:
        """Was it published where nobody else could be told of it at once?"""
        for speaker in self.speakers:
            at = speaker.said_at.get(payload)
            if at is not None and speaker.at in MOBILES:
                return any(begin - 0.5 <= at <= end + 0.5 for begin, end in self.apart[speaker.at])
        return False

    def cut(self) -> None:
        mobile = self.random.choice(MOBILES)
        self.part(mobile)
        self.domain.cut(mobile, self.with_[mobile])

    def close(self) -> None:
        mobile = self.random.choice(MOBILES)
        self.part(mobile)
        self.domain.close(mobile, self.with_[mobile])

    def mend(self) -> None:
        for mobile in MOBILES:
            self.domain.mend(mobile, self.with_[mobile])

    def kill(self) -> None:
        name = self.random.choice([*MOBILES, *FIXED])
        host = self.domain[name]
        if host.is_gone:
            return
        for speaker in self.speakers:
            if speaker.at == name:
                speaker.lose()
        host.kill()
        self.part(*(mobile for mobile in MOBILES if name in (mobile, self.with_[mobile])))
        for client in self.clients:
            if client.at == name:
                client.lose()

    def start(self) -> None:
        for name in (*MOBILES, *FIXED):
            if self.domain[name].is_gone:
                self.domain[name].start()
                if name in MOBILES:
                    self.point(name)

    def point(self, name: str) -> None:
        mobile = self.domain[name]
        mobile.node.set_fixed([f"mqtt://{self.with_[name]}:1883"], self.domain.now)
        mobile.settle()

    def go_to_another_plot(self) -> None:
        """All that is on its way arrives before; clients that are with it go along."""
        self.heal()
        self.domain.advance(8)
        name = self.random.choice(MOBILES)
        self.with_[name] = FIXED[FIXED.index(self.with_[name]) - 1]
        self.point(name)
        for client in self.clients:
            if client.at == name:
                self.plots[client.client_id] = self.with_[name]
        self.domain.wait_for(lambda: self.is_with(name), 20)
        self.domain.advance(3)

    def is_with(self, name: str) -> bool:
        mobile = self.domain[name]
        assert isinstance(mobile, MobileHost)
        if mobile.is_gone or self.domain.is_apart(name, self.with_[name]):
            return False
        machine = mobile.node.machine
        return (
            machine.may_send_clients
            and machine.current is not None
            and (machine.current.fixed_id == self.with_[name])
        )

    def heal(self) -> None:
        self.domain.heal()
        self.start()
        self.domain.advance(8)

    # What must be

    def end(self) -> None:
        self.heal()
        for mobile in MOBILES:
            self.domain.wait_for(lambda mobile=mobile: self.is_with(mobile), 20)  # type: ignore[misc]
        self.domain.advance(10)
        for client in self.clients:
            places = [name for name in MOBILES if self.with_[name] == self.plots[client.client_id]]
            if not places:
                self.with_["m1"] = self.plots[client.client_id]
                self.point("m1")
                self.domain.wait_for(lambda: self.is_with("m1"), 20)
                places = ["m1"]
            client.lose()
            self.domain.advance(2)
            client.go(places[0])
            self.domain.advance(5)
        self.domain.advance(10)
        self.restored_at = self.domain.now
        for speaker in self.speakers:
            for topic in TOPICS:
                speaker.speak(topic)
        self.domain.advance(5)
        for speaker in self.speakers:
            speaker.note()
        self.note_who_is_back()

    def is_old(self, payload: bytes) -> bool:
        """Was it published before all brokers were there again?"""
        return all(speaker.said_at.get(payload, 0.0) < self.restored_at for speaker in self.speakers)

    def check(self, *, is_ordered: bool, were_killed: bool = False, is_forgetful: bool = False) -> None:
        """`were_killed`: brokers were; `is_forgetful`: those without stores."""
        sent = {
            payload: topic for speaker in self.speakers for payload, topic in speaker.acknowledged.items()
        }
        for client in self.clients:
            wanted = TOPICS if "t/+" in client.asked else tuple(client.asked)
            tally = client.tally
            lost = [each for each, topic in sent.items() if topic in wanted and not tally[each]]
            unmarked = {each: tally[each] - client.marked.count(each) for each in tally}
            doubled = [each for each, count in unmarked.items() if count > 1]
            if were_killed:
                # One that it had at a broker which could not tell anyone, a fixed broker that was killed does
                # not know to have come before.
                doubled = [each for each in doubled if not self.was_apart(each)]
            if is_forgetful:
                lost, doubled = ([one for one in each if not self.is_old(one)] for each in (lost, doubled))
            assert not lost, f"{client.client_id} {client.moves}: lost {lost[:5]} of {len(sent)}"
            assert not doubled, f"{client.client_id} {client.moves}: doubled {doubled[:5]}"
            if is_ordered:
                self.check_order(client)

    def check_order(self, client: Wanderer) -> None:
        """Of what came for the first time."""
        last: dict[str, int] = {}
        for payload in dict.fromkeys(client.payloads):
            line, _, number = payload.decode().rpartition("-")
            assert last.get(line, 0) < int(number), f"{client.client_id}: {payload!r} after {last.get(line)}"
            last[line] = int(number)


def play(seed: int, durable: bool, acts: dict[str, int], **settings: Any) -> Play:
    scene = Play(seed, durable, **settings)
    names, weights = list(acts), list(acts.values())
    for _ in range(STEPS):
        getattr(scene, scene.random.choices(names, weights)[0])()
        scene.domain.advance(scene.random.choice([0.0, 0.002, 0.02]))
        scene.note_who_is_back()
    scene.end()
    return scene


CALM = {"speak": 10, "wander": 5, "leave": 1, "wait": 6}
CUTS = {"cut": 1, "close": 1, "mend": 2}
KILLS = {"kill": 2, "start": 2}
PLOTS = {"go_to_another_plot": 1}
BUSY = {"x_s": 0.2, "y_s": 0.6}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("durable", [False, True])
def test_calm(seed: int, durable: bool) -> None:
    play(seed, durable, CALM | PLOTS, delegates=False).check(is_ordered=True)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("durable", [False, True])
def test_delegations_and_cuts(seed: int, durable: bool) -> None:
    play(seed, durable, CALM | CUTS | PLOTS, **BUSY).check(is_ordered=False)


@pytest.mark.parametrize("seed", range(30))
def test_kills_with_stores(seed: int) -> None:
    play(seed, True, CALM | CUTS | KILLS | PLOTS, **BUSY).check(is_ordered=False, were_killed=True)


@pytest.mark.parametrize("seed", range(15))
def test_kills_without_stores(seed: int) -> None:
    """What a broker without a store had acknowledged and told nobody is lost with it."""
    scene = play(seed, False, CALM | CUTS | KILLS, **BUSY)
    scene.check(is_ordered=False, were_killed=True, is_forgetful=True)
