"""Sidecars beside brokers that are not ours: the same deliveries, by tunnels through those brokers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from hedgerow.broker import handle_publish
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.publishing import publish_message
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Publisher
from hedgerow.federation.events import LinkNotOpen
from hedgerow.federation.interests.log_lines import SUBSCRIBE_TOPIC
from hedgerow.federation.mesh.announcements import NEW_REGULAR_TOPIC
from hedgerow.federation.tunnel.frames import FEDERATOR_TOPIC, NODE_TOPIC
from hedgerow.message import Message
from tests.federation.clients import Load
from tests.federation.fabric_of_nodes import Fabric
from tests.federation.hosts import Host


def sidecars(*names: str, is_durable: bool = True, assume: tuple[str, ...] = ("t/#",)) -> Fabric:
    """A line of brokers, "A" with its sidecar "a" and so on; each sidecar dials the broker behind it."""
    fabric = Fabric()
    for name in names:
        fabric.add_foreign(name.upper(), durable=is_durable)
    for name, following in zip(names, [*names[1:], ""], strict=True):
        neighbours = [following.upper()] if following else []
        fabric.add(name, *neighbours, home=name.upper(), assume=assume, durable=True)
    settle(fabric)
    return fabric


def settle(fabric: Fabric, within_s: float = 15.0) -> None:
    nodes = fabric.nodes
    pairs = list(pairwise(nodes))
    fabric.wait_for(lambda: all(b.node_id in a.linked and a.node_id in b.linked for a, b in pairs), within_s)
    fabric.advance(1.5)


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_clients_of_foreign_brokers_hear_each_other(names: str) -> None:
    fabric = sidecars(*names)
    homes = [fabric[name.upper()] for name in names]
    inboxes = [home.subscribe("t/#", qos=2) for home in homes]
    sent = []
    for home in homes:
        for qos in (0, 1, 2):
            sent.append(f"{home.name} {qos}".encode())
            home.publish(f"t/{home.name}", sent[-1], qos)
            fabric.advance(0.1)
    fabric.advance(2)
    for inbox in inboxes:
        assert sorted(inbox.payloads) == sorted(sent)


def say_it(home: Host) -> None:
    home.publish(NEW_REGULAR_TOPIC, b"weather/#")


def log_it(home: Host) -> None:
    for line in (b"hedgerow-federation-b-home 1 " + SUBSCRIBE_TOPIC.encode(), b"inbox-1 1 weather/#"):
        home.publish(SUBSCRIBE_TOPIC, b"1700000000: " + line)


@pytest.mark.parametrize("tell", [say_it, log_it])
def test_interests_are_learned(tell: Callable[[Host], None]) -> None:
    fabric = sidecars("a", "b", assume=())
    inbox = fabric["B"].subscribe("weather/#")
    fabric["A"].publish("weather/x", b"nobody knows yet")
    fabric.advance(2)
    assert inbox.payloads == []
    tell(fabric["B"])
    fabric.advance(2)
    fabric["A"].publish("weather/x", b"heard")
    fabric["A"].publish("other/x", b"not asked for")
    fabric.advance(1)
    assert inbox.payloads == [b"heard"]


def test_a_node_of_ours_and_a_sidecar() -> None:
    fabric = Fabric()
    home = fabric.add_foreign("H")
    fabric.add("s", home="H", assume=("t/#",))
    fabric.add("n", "H")
    fabric.wait_for(lambda: fabric["n"].linked == {"s"}, 5)
    fabric.advance(1)
    inboxes = [home.subscribe("t/#"), fabric["n"].subscribe("t/#")]
    fabric.advance(1)
    home.publish("t/1", b"1")
    fabric["n"].publish("t/2", b"2")
    fabric.advance(1)
    assert [sorted(inbox.payloads) for inbox in inboxes] == [[b"1", b"2"]] * 2


def drop_frames(
    monkeypatch: pytest.MonkeyPatch, fabric: Fabric, broker: str, share: float, for_s: float
) -> None:
    """The broker throws some frames away, as it does where a client reads too slowly."""
    host: Host = fabric[broker]
    until = fabric.now + for_s

    def dropping(
        at: BrokerCore, message: Message, route: Route, publisher: Publisher | None
    ) -> tuple[int, bool]:
        is_frame = message.topic == FEDERATOR_TOPIC or message.topic.startswith(NODE_TOPIC)
        if at is host.broker and is_frame and fabric.now < until and fabric.random.random() < share:
            return 0, False
        return publish_message(at, message, route, publisher)

    monkeypatch.setattr(handle_publish, "publish_message", dropping)


def carrier_lost(fabric: Fabric) -> None:
    fabric.close("a", "B")


def carrier_cut(fabric: Fabric) -> None:
    for pipe in fabric.between("a", "B"):
        pipe.cut()


def home_lost(fabric: Fabric) -> None:
    fabric.close("b", "B")


def sidecar_restarted(fabric: Fabric) -> None:
    fabric["b"].crash(0.5)


def dialler_restarted(fabric: Fabric) -> None:
    fabric["a"].crash(0.5)


@pytest.mark.parametrize(
    "fault", [carrier_lost, carrier_cut, home_lost, sidecar_restarted, dialler_restarted]
)
def test_a_tunnel_is_made_again_and_nothing_is_lost(fault: Callable[[Fabric], None]) -> None:
    fabric = sidecars("a", "b", "c")
    inboxes = [fabric[name].subscribe("t/#") for name in "ABC"]
    loads = [Load(fabric, name, every_s=0.1) for name in "AC"]
    for _ in range(2):
        fabric.advance(2)
        fault(fabric)
        settle(fabric)
    for load in loads:
        load.stop()
    fabric.advance(5)
    for load in loads:
        load.check(*inboxes)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_frames_are_dropped(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = sidecars("a", "b")
    inbox = fabric["B"].subscribe("t/#")
    load = Load(fabric, "A", every_s=0.1)
    drop_frames(monkeypatch, fabric, "B", share, 10)
    fabric.advance(12)
    settle(fabric, 30)
    load.stop()
    fabric.advance(3)
    load.check(inbox)


@pytest.mark.parametrize("is_durable", [True, False])
def test_the_foreign_broker_restarts(is_durable: bool) -> None:
    fabric = sidecars("a", "b", "c", is_durable=is_durable)
    inboxes = [fabric[name].subscribe("t/#") for name in "AC"]
    loads = [Load(fabric, name, every_s=0.1) for name in "AC"]
    fabric.advance(2)
    fabric["B"].crash(3.0)
    settle(fabric)
    for load in loads:
        load.stop()
    fabric.advance(5)
    for load in loads:
        load.check(*inboxes)


def test_a_sidecar_that_is_gone_is_missed_at_once() -> None:
    """By its will: the probes inside of the tunnel would take over a second."""
    fabric = sidecars("a", "b")
    fabric["b"].kill()
    fabric.wait_for(lambda: not fabric["a"].linked, 0.1)


def test_tunnels_end_with_the_connection_to_the_home() -> None:
    fabric = sidecars("a", "b")
    fabric.close("b", "B")
    fabric.wait_for(lambda: not fabric["b"].linked, 0.1)
    settle(fabric)


def test_a_neighbour_that_is_away_for_minutes() -> None:
    fabric = sidecars("a", "b")
    reader = fabric["B"].subscribe("t/#", client_id="reader")
    fabric["b"].kill()
    sent = [b"%d" % index for index in range(20)]
    for payload in sent:
        fabric["A"].publish("t/x", payload)
        fabric.advance(15)
    assert reader.payloads == []
    fabric["b"].start()
    settle(fabric)
    fabric.advance(3)
    assert reader.payloads == sent


def test_nobody_answers_beside_a_foreign_broker() -> None:
    fabric = Fabric()
    fabric.add_foreign("H")
    fabric.add("n", "H")
    fabric.advance(5)
    (event,) = fabric["n"].told(LinkNotOpen)
    assert event.reason == "no federator answers at this broker: start `hedgerow federate` beside it"
    fabric.add("s", home="H")
    fabric.wait_for(lambda: fabric["n"].linked == {"s"}, 12)


def test_a_key_closes_tunnels_too() -> None:
    fabric = Fabric()
    home = fabric.add_foreign("H")
    fabric.add("s", home="H", assume=("t/#",), federation={"key": b"k" * 32})
    fabric.add("n", "H", federation={"key": b"o" * 32})
    inbox = fabric["n"].subscribe("t/#")
    fabric.advance(10)
    home.publish("t/x", b"secret")
    fabric.advance(1)
    assert inbox.payloads == []
    assert fabric["n"].linked == fabric["s"].linked == set()
    assert any("key" in event.reason for event in fabric["n"].told(LinkNotOpen))
