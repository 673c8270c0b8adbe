"""Two nodes that are joined do not send each other what both have, and still send all that one may lack."""

from __future__ import annotations

import pytest

from hedgerow.bridges.bridge import Bridge
from hedgerow.broker.port import Port
from hedgerow.broker.told import SETTLED_S
from hedgerow.message import Message
from tests.bridges.harness import SECRET, Network, Node, balance, make_section

COUNT = 100


class Star:
    """a and b, each with a bridge to the hub; later one of the two gets a bridge to the other."""

    def __init__(self, *, durable: bool = False, secret: bytes = SECRET) -> None:
        self.network = Network()
        self.a = self.network.add("a", durable=durable)
        self.b = self.network.add("b", durable=durable, secret=secret)
        self.hub = self.network.add("hub", durable=durable)
        for node in (self.a, self.b):
            node.bridge("# both 1", name="up", address="hub")
            node.listen("t")
        self.network.settle()

    def publish(self, count: int = COUNT) -> list[bytes]:
        payloads = [b"%d" % number for number in range(count)]
        for payload in payloads:
            self.a.publish("t", payload)
        return payloads

    def join(self, near: Node, far: Node) -> Bridge:
        bridge = near.bridge("# both 1", name="beside", address=far.name)
        self.network.settle()
        assert bridge.is_up
        return bridge


@pytest.mark.parametrize("durable", [False, True])
def test_what_both_have_is_not_sent(durable: bool) -> None:
    star = Star(durable=durable)
    payloads = star.publish()
    assert star.b.take_heard() == payloads
    star.network.advance(SETTLED_S + 0.1)
    written = sum(wire.written for wire in star.network.wires)
    bridge = star.join(star.a, star.b)
    assert bridge.inbound.published == bridge.inbound.duplicates == 0
    assert sum(wire.written for wire in star.network.wires) - written < 20 * COUNT
    assert balance(bridge.ledger, bridge.session.waiting_count) == 0
    assert bridge.session.waiting_count == 0
    assert star.b.take_heard() == []
    # The new way works, and alone.
    star.network.lose("b", "hub")
    star.a.publish("t", b"more")
    assert b"more" in star.b.take_heard()


def test_whoever_dials_tells_nothing_before_the_far_end_has_proved_itself() -> None:
    star = Star()
    payloads = star.publish()
    assert star.b.take_heard() == payloads
    star.network.advance(SETTLED_S + 0.1)
    bridge = star.join(star.b, star.a)
    assert bridge.inbound.duplicates == COUNT
    assert star.b.take_heard() == []


@pytest.mark.parametrize("near", ["a", "b"])
def test_what_one_lacks_is_sent_in_order(near: str) -> None:
    """The hub has taken half of it, and is gone before b has it."""
    star = Star()
    first = star.publish(COUNT // 2)
    star.network.advance(SETTLED_S + 0.1)
    star.network.cut("b", "hub")
    second = [b"later %d" % number for number in range(COUNT // 2)]
    for payload in second:
        star.a.publish("t", payload)
    star.network.advance(SETTLED_S + 0.1)
    assert star.b.take_heard() == first
    star.hub.crash()
    nodes = [star.a, star.b] if near == "a" else [star.b, star.a]
    star.join(nodes[0], nodes[1])
    assert [payload for payload in star.b.take_heard() if payload in second] == second


def test_who_has_not_proved_the_key_is_sent_all() -> None:
    """What it calls a message may be another one."""
    star = Star(secret=b"another fabric" * 3)
    star.publish()
    star.network.advance(SETTLED_S + 0.1)
    bridge = star.join(star.b, star.a)
    assert bridge.inbound.published == COUNT


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_published_while_it_connects_comes_behind(durable: bool) -> None:
    star = Star(durable=durable)
    newcomer = star.network.add("c", durable=durable)
    newcomer.listen("t")
    payloads = star.publish()
    star.a.bridges.create(make_section("# both 1", name="beside", address="c"), star.a.now)
    publisher = Port(star.a.broker, "publisher", lambda message: None)
    publisher.publish(Message("t", b"live", 1), star.a.now)
    star.network.settle()
    assert newcomer.take_heard() == [*payloads, b"live"]
    bridge = star.a.find("beside")
    assert balance(bridge.ledger, bridge.session.waiting_count) == 0


def test_it_waits_for_a_far_end_that_is_away() -> None:
    star = Star()
    payloads = star.publish()
    bridge = star.a.bridge("# both 1", name="beside", address="c")
    assert not bridge.is_up
    assert bridge.session.waiting_count == COUNT
    newcomer = star.network.add("c")
    newcomer.listen("t")
    star.network.advance(40)
    assert bridge.is_up
    assert bridge.ledger.relayed == len(payloads)
    assert balance(bridge.ledger, bridge.session.waiting_count) == 0


def test_a_lazy_bridge_connects_for_it() -> None:
    star = Star()
    star.publish()
    star.network.add("c")
    bridge = star.a.bridge("# both 1", name="beside", address="c", start_type="lazy")
    star.network.advance(1)
    assert bridge.is_up
