"""A client leaves the coverage of one mobile broker, and another one has its session when it comes there."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.session import Session
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Connect, Packet, Pubcallback, Publish
from tests.mobility.domain import DOMAIN, PASSWORD, Domain, Line, Roamer

MOBILES = ("m1", "m2")
RULES = (
    "\n".join(
        f"""\
user {name}
topic write $hedgerow/bridge
topic write {DOMAIN}/{name}/#
topic readwrite t/+
topic readwrite fed/#
topic write $hedgerow/guest/alice
"""
        for name in MOBILES
    )
    + """
user alice
topic readwrite t/+

user bob
topic readwrite t/+
"""
)


class Wanderer(Roamer):
    """A client that is now here, now there. It notes what came, in order, and what of it was marked."""

    def __init__(self, domain: Domain, home: str, client_id: str, *filters: str, **options: Any) -> None:
        self.marked: list[bytes] = []
        self.is_deaf = False
        self.is_clean = False
        self.asked = filters
        options.setdefault("username", "alice")
        super().__init__(domain, home, client_id, options.pop("version", MQTT_3_1_1), *filters, **options)

    def go(self, name: str) -> None:
        line = Line(self, self.domain[name])
        self.lines.append(line)
        self.moves.append(name)
        properties: Any = {"session_expiry_interval": 300} if self.version == MQTT_5 else {}
        password = PASSWORD if self.username is not None else None
        line.send(
            Connect(
                self.client_id, self.version, self.is_clean, 0, self.username, password, properties=properties
            )
        )

    def move(self, name: str) -> None:
        """Out of the coverage of the one, and into that of the other."""
        self.lose()
        self.go(name)

    def take(self, line: Line, packet: Publish | Pubcallback) -> list[Packet]:
        assert isinstance(packet, Publish)
        if packet.dup:
            self.marked.append(packet.payload)
        answers = super().take(line, packet)
        return [] if self.is_deaf else answers

    def ended(self, line: Line) -> None:
        """It does not look for another broker by itself."""
        if line in self.lines:
            self.lines.remove(line)


def make(durable: bool = False, rules: str = RULES, **settings: Any) -> Domain:
    domain = Domain()
    access = Access(Acl.parse(rules, "acl"))
    domain.add_fixed("f", access=access, verifies_passwords=True, durable=durable)
    for name in MOBILES:
        domain.add_mobile(
            name,
            "f",
            settings={"moves_clients": False} | settings,
            username=name,
            verifies_passwords=True,
            durable=durable,
        )
    domain.advance(0.5)
    return domain


@pytest.fixture(params=[False, True], ids=["memory", "stores"])
def domain(request: pytest.FixtureRequest) -> Domain:
    return make(durable=request.param)


def session_at(domain: Domain, name: str, client_id: str = "panel") -> Session | None:
    found: Session | None = domain[name].broker.sessions.get(client_id)
    return found


def publish(domain: Domain, at: str, *numbers: int) -> list[bytes]:
    payloads = [f"{at}-{number}".encode() for number in numbers]
    for payload in payloads:
        domain[at].publish("t/a", payload)
    return payloads


def numbered(panel: Wanderer, origin: str) -> list[int]:
    pairs = [payload.decode().split("-") for payload in panel.payloads]
    return [int(number) for name, number in pairs if name == origin]


def check(panel: Wanderer, sent: list[bytes]) -> None:
    assert sorted(panel.payloads) == sorted(sent)
    for origin in ("f", "m1", "m2"):
        assert numbered(panel, origin) == sorted(numbered(panel, origin)), panel.payloads


def test_the_fixed_broker_keeps_what_was_missed_and_another_mobile_broker_brings_it(domain: Domain) -> None:
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    sent = [each for name in ("f", "m1", "m2") for each in publish(domain, name, 1, 2)]
    domain.advance(0.2)
    panel.lose()
    sent += [each for name in ("f", "m1", "m2") for each in publish(domain, name, 3)]
    domain.advance(2)
    held = session_at(domain, "f")
    assert held is not None
    assert (held.username, held.connection, list(held.subscriptions or ())) == ("alice", None, ["t/+"])
    assert session_at(domain, "m1") is None
    sent += [each for name in ("f", "m1", "m2") for each in publish(domain, name, 4, 5)]
    domain.advance(0.2)
    panel.filters.clear()  # It does not ask again.
    panel.go("m2")
    sent += [each for name in ("f", "m1", "m2") for each in publish(domain, name, 6)]
    domain.advance(0.5)
    sent += [each for name in ("f", "m1", "m2") for each in publish(domain, name, 7)]
    domain.advance(0.5)
    check(panel, sent)
    assert not panel.marked
    assert session_at(domain, "f") is None
    assert list((session_at(domain, "m2") or held).subscriptions or ()) == ["t/+"]


def test_it_goes_to_and_fro_faster_than_anyone_notices(domain: Domain) -> None:
    panel = Wanderer(domain, "m1", "panel", "t/+")
    sent: list[bytes] = []
    for number in range(1, 30):
        sent += [each for name in ("f", "m1", "m2") for each in publish(domain, name, number)]
        if number % 5 == 0:
            panel.move(MOBILES[number // 5 % 2])
        domain.advance(0.05 if number % 3 else 0.001)
    domain.advance(3)
    check(panel, sent)


def test_what_it_received_at_the_first_and_did_not_acknowledge_is_marked(domain: Domain) -> None:
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    panel.is_deaf = True
    (payload,) = publish(domain, "f", 1)
    domain.advance(0.2)
    panel.is_deaf = False
    panel.move("m2")
    domain.advance(2)
    assert panel.payloads == [payload, payload]
    assert panel.marked == [payload]


@pytest.mark.parametrize("durable", [False, True])
def test_the_one_that_it_has_left_is_killed(durable: bool) -> None:
    domain = make(durable=durable)
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    sent = publish(domain, "f", 1)
    domain.advance(0.2)
    panel.lose()
    sent += [*publish(domain, "f", 2), *publish(domain, "m1", 1)]
    domain.advance(2)
    domain["m1"].kill()
    sent += publish(domain, "f", 3)
    domain.advance(0.3)
    panel.go("m2")
    sent += publish(domain, "f", 4)
    domain.advance(0.5)
    check(panel, sent)
    domain["m1"].start()
    domain.advance(10)
    check(panel, sent)
    assert not panel.marked
    assert session_at(domain, "m1") is None


def test_the_one_that_it_has_left_is_killed_before_it_has_said_anything() -> None:
    """With its store it gives what it has when it is back, and nothing of it twice."""
    domain = make(durable=True)
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    panel.lose()
    missed = [*publish(domain, "f", 1), *publish(domain, "m1", 1)]
    domain.advance(0.1)
    domain["m1"].kill()
    missed += publish(domain, "f", 2)
    domain.advance(0.3)
    panel.go("m2")
    domain.advance(0.3)
    live = publish(domain, "f", 3)
    domain.advance(0.3)
    assert panel.payloads == live
    domain["m1"].start()
    domain.advance(10)
    assert sorted(panel.payloads) == sorted([*missed, *live])
    assert numbered(panel, "f") == [3, 1, 2]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("after_s", [0.0, 0.003, 0.006, 0.01, 0.5])
def test_the_one_where_it_arrives_is_killed(durable: bool, after_s: float) -> None:
    """Without a store, the fixed broker still has what that one had not acknowledged."""
    domain = make(durable=durable)
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    panel.lose()
    sent = publish(domain, "f", 1, 2)
    domain.advance(2)
    panel.go("m2")
    domain.advance(after_s)
    domain["m2"].kill()
    panel.lose()
    domain["m2"].start()
    domain.advance(3)
    panel.go("m2")
    domain.advance(3)
    sent += publish(domain, "f", 3)
    domain.advance(1)
    assert sorted(set(panel.payloads)) == sorted(sent)
    assert all(panel.tally[each] == 1 or each in panel.marked for each in sent)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("after_s", [0.0, 0.004, 0.5, 1.004, 2.0])
def test_the_fixed_broker_is_killed(durable: bool, after_s: float) -> None:
    domain = make(durable=durable)
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    sent = publish(domain, "m1", 1)
    domain.advance(0.2)
    panel.lose()
    sent += publish(domain, "m1", 2, 3)
    domain.advance(after_s)
    domain["f"].kill()
    domain["f"].start()
    domain.advance(8)
    sent += publish(domain, "m1", 4)
    domain.advance(0.2)
    panel.go("m2")
    domain.advance(3)
    if durable or after_s < 1:
        assert sorted(set(panel.payloads)) == sorted(sent)
        assert all(panel.tally[each] == 1 or each in panel.marked for each in sent)


def test_what_cannot_be_reached_comes_later(domain: Domain) -> None:
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    panel.lose()
    sent = publish(domain, "m1", 1, 2)
    domain.advance(1.005)
    domain.cut("m1", "f")
    domain.advance(4)
    sent += publish(domain, "m1", 3)
    panel.go("m2")
    domain.advance(4)
    domain.mend("m1", "f")
    sent += publish(domain, "f", 1)
    domain.advance(8)
    assert sorted(panel.payloads) == sorted(sent)
    assert not panel.marked


def test_a_client_that_comes_to_the_fixed_broker_itself_has_its_session_there(domain: Domain) -> None:
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    panel.lose()
    sent = publish(domain, "m1", 1, 2)
    domain.advance(2)
    panel.go("f")
    assert panel.connacks[-1].session_present
    domain.advance(0.2)
    panel.move("m2")
    sent += publish(domain, "m1", 3)
    domain.advance(2)
    check(panel, sent)


def test_a_client_that_begins_anew_has_nothing_of_before(domain: Domain) -> None:
    panel = Wanderer(domain, "m1", "panel", "t/+", version=MQTT_5)
    domain.advance(0.2)
    panel.lose()
    publish(domain, "m1", 1, 2)
    domain.advance(2)
    panel.is_clean = True
    panel.go("m2")
    domain.advance(2)
    assert not panel.payloads
    assert session_at(domain, "f") is None
    assert session_at(domain, "m1") is None


def test_many_subscriptions_are_several_publications() -> None:
    domain = make()
    filters = [f"t/{number}" for number in range(1_200)]
    panel = Wanderer(domain, "m1", "panel", *filters)
    domain.advance(0.5)
    panel.lose()
    domain.advance(2)
    assert set((session_at(domain, "f") or Session(0, "", None, None)).subscriptions or ()) == set(filters)  # type: ignore[arg-type]
    panel.filters.clear()
    panel.go("m2")
    domain.advance(2)
    domain["f"].publish("t/1199", b"1")
    domain.advance(0.5)
    assert panel.payloads == [b"1"]


def unchanged(domain: Domain, panel: Wanderer, at: str) -> None:
    """It has its session at the first one, and nothing at this one."""
    domain.advance(2)
    publish(domain, "f", 1)
    domain.advance(1)
    assert not panel.payloads
    assert (session_at(domain, "m1") or session_at(domain, "f")) is not None
    assert not (session_at(domain, at) or Session(0, "", None, None)).subscriptions  # type: ignore[arg-type]


def test_another_user_of_the_same_client_id_gets_nothing() -> None:
    domain = make(rules=RULES.replace("guest/alice\n", "guest/+\n"))
    first = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    first.lose()
    domain.advance(2)
    unchanged(domain, Wanderer(domain, "m2", "panel", username="bob"), "m2")


def test_a_client_without_a_user_gets_nothing() -> None:
    domain = Domain()
    domain.add_fixed("f")
    for name in MOBILES:
        domain.add_mobile(name, "f", settings={"moves_clients": False})
    domain.advance(0.5)
    first = Wanderer(domain, "m1", "panel", "t/+", username=None)
    domain.advance(0.2)
    first.lose()
    domain.advance(2)
    unchanged(domain, Wanderer(domain, "m2", "panel", username=None), "m2")


def without_right(mobile: str) -> str:
    head, mark, tail = RULES.partition(f"user {mobile}\n")
    return head + mark + tail.replace("topic write $hedgerow/guest/alice\n", "", 1)


@pytest.mark.parametrize("mobile", MOBILES)
def test_a_mobile_broker_that_may_not_bring_the_user_neither_gives_nor_gets(mobile: str) -> None:
    domain = make(rules=without_right(mobile))
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    panel.lose()
    domain.advance(2)
    panel.filters.clear()
    panel.go("m2")
    unchanged(domain, panel, "m2")


def test_a_session_of_the_fixed_brokers_own_is_not_given() -> None:
    domain = make()
    own = Wanderer(domain, "f", "panel", "t/+")
    domain.advance(0.2)
    own.lose()
    panel = Wanderer(domain, "m2", "panel")
    unchanged(domain, panel, "m2")


def test_what_the_second_ones_user_may_not_read_does_not_come_there() -> None:
    domain = make(rules=RULES.replace("topic readwrite t/+", "topic readwrite t/a", 2))
    panel = Wanderer(domain, "m1", "panel", "t/+")
    domain.advance(0.2)
    panel.lose()
    domain.advance(2)
    domain["f"].publish("t/b", b"b")
    domain["f"].publish("t/a", b"a")
    domain.advance(0.2)
    panel.go("m2")
    domain.advance(1)
    assert panel.payloads == [b"a"]
