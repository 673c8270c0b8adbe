"""Mosquitto bridges to a node as to one of its own.

Before MQTT 5 such a bridge marks itself in the protocol version (`try_private`), and expects for it
what subscription options ask for in MQTT 5: nothing that it published comes back, and RETAIN stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import StartMosquitto, StartNode
from tests.interop.conftest import Reach
from tests.interop.paho_peer import PATIENCE_S, Paho, paho
from tests.node.certificates import Authority
from tests.programs import Node, run_mosquitto, wait_until

VERSIONS = {"3.1": "mqttv31", "3.1.1": "mqttv311", "5": "mqttv50"}
NOWHERE = Path()

every_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=list(VERSIONS))


def bridge(port: int, version: str, *more: str) -> list[str]:
    return [
        "connection hedgerow",
        f"address 127.0.0.1:{port}",
        f"bridge_protocol_version {version}",
        "try_private true",
        "topic # both 2",
        "restart_timeout 1",
        *more,
    ]


def state(client: Paho) -> str:
    """What the bridge last said of itself on our side: 1 when it is up, 0 when it is not."""
    found = [
        message.payload for message in client.inbox if message.topic.startswith("$SYS/broker/connection/")
    ]
    return found[-1].decode() if found else ""


def wait_for_bridge(client: Paho, wanted: str = "1") -> None:
    client.subscribe("$SYS/broker/connection/+/state", 1)
    wait_until(lambda: state(client) == wanted, f"the bridge's state to be {wanted}", PATIENCE_S)


def payloads(client: Paho, topic: str) -> list[str]:
    return [message.payload.decode() for message in client.inbox if message.topic == topic]


def flow_both_ways(ours: Reach, theirs: Reach) -> None:
    """Each message arrives once on each side, in order, and none goes round in a circle."""
    count = 30
    with paho(ours, client_id="at-ours") as here, paho(theirs, client_id="at-theirs") as there:
        wait_for_bridge(here)
        for side in (here, there):
            side.subscribe("field/#", 2)
        for qos in (0, 1, 2):
            for number in range(count):
                here.publish(f"field/here/{qos}", f"{number}", qos)
                there.publish(f"field/there/{qos}", f"{number}", qos)
        expected = [f"{number}" for number in range(count)]
        wait_until(lambda: all(len(side.inbox) >= 6 * count for side in (here, there)), "all", PATIENCE_S)
        # What went round in a circle would arrive before the last word of each side.
        for _ in range(2):
            here.publish_and_wait("field/here/last", "last", 1)
            there.publish_and_wait("field/there/last", "last", 1)
        for side, other in ((here, "field/there/last"), (there, "field/here/last")):
            wait_until(lambda side=side, other=other: len(payloads(side, other)) >= 2, other, PATIENCE_S)  # type: ignore[misc]
        for side in (here, there):
            for origin in ("here", "there"):
                assert payloads(side, f"field/{origin}/last") == ["last", "last"]
                for qos in (0, 1, 2):
                    assert payloads(side, f"field/{origin}/{qos}") == expected


@every_version
def test_messages_flow_both_ways_once(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, version: str
) -> None:
    node = hedgerow_node()
    port = mosquitto(*bridge(node.port(), version))
    flow_both_ways(Reach("mqtt", node.port(), NOWHERE), Reach("mqtt", port, NOWHERE))
    assert node.log.count(".hedgerow connected") == 1  # at the first attempt
    assert "refused" not in node.log


def test_over_tls(hedgerow_node: StartNode, mosquitto: StartMosquitto, authority: Authority) -> None:
    certificate, key = authority.issue("server")
    node = hedgerow_node("--mqtts", "127.0.0.1:0", "--certificate", str(certificate), "--key", str(key))
    port = mosquitto(*bridge(node.port("mqtts"), "mqttv311", f"bridge_cafile {authority.certificate}"))
    flow_both_ways(Reach("mqtt", node.port(), NOWHERE), Reach("mqtt", port, NOWHERE))
    assert "mqtts" in next(line for line in node.log.splitlines() if ".hedgerow connected" in line)


@every_version
def test_what_is_retained_on_one_side_is_retained_on_the_other(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, version: str
) -> None:
    node = hedgerow_node()
    ours = Reach("mqtt", node.port(), NOWHERE)
    with paho(ours, client_id="at-ours") as here:
        here.publish_and_wait("before", "ours", retain=True)
        theirs = Reach("mqtt", mosquitto(*bridge(node.port(), version)), NOWHERE)
        wait_for_bridge(here)
        with paho(theirs, client_id="at-theirs") as there:
            here.publish_and_wait("from/here", "1", retain=True)
            there.publish_and_wait("from/there", "1", retain=True)
            here.publish_and_wait("from/gone", "1", retain=True)
            here.publish_and_wait("from/gone", "", retain=True)
            for side in (here, there):
                side.subscribe("last/#", 1)
            here.publish_and_wait("last/here", "1")
            there.publish_and_wait("last/there", "1")
            for side, topic in ((here, "last/there"), (there, "last/here")):
                wait_until(lambda side=side, topic=topic: bool(payloads(side, topic)), topic, PATIENCE_S)  # type: ignore[misc]
    expected = {("before", b"ours"), ("from/here", b"1"), ("from/there", b"1")}
    for reach in (ours, theirs):
        with paho(reach, client_id="late") as late:
            late.subscribe("#", 1)
            found = {(message.topic, message.payload) for message in late.expect(3) if message.retain}
            assert found == expected


@pytest.mark.parametrize(
    ("version", "end"),
    [("mqttv311", Node.kill9), pytest.param("mqttv50", Node.stop, marks=pytest.mark.soak)],
    ids=["3.1.1-killed", "5-stopped"],
)
def test_the_bridge_comes_back_after_our_restart(
    hedgerow_node: StartNode,
    mosquitto: StartMosquitto,
    tmp_path: Path,
    version: str,
    end: Callable[[Node], None],
) -> None:
    node = hedgerow_node("--data", str(tmp_path / "data"))
    port = mosquitto(*bridge(node.port(), version))
    ours, theirs = Reach("mqtt", node.port(), NOWHERE), Reach("mqtt", port, NOWHERE)
    with paho(ours, client_id="at-ours", clean=False, expiry_s=600) as here:
        here.subscribe("field/#", 1)
        wait_for_bridge(here)
    with paho(theirs, client_id="at-theirs") as there:
        there.publish_and_wait("field/1", "while we run")
        end(node)
        there.publish_and_wait("field/2", "while we are down")
        node.start()
        with paho(ours, client_id="at-ours", clean=False, expiry_s=600) as here:
            assert here.session_present
            wait_until(lambda: "while we are down" in payloads(here, "field/2"), "what waited", PATIENCE_S)
            # QoS 1: what we had not acknowledged to the bridge comes again.
            assert set(payloads(here, "field/1")) == {"while we run"}
            # And the other way, by the bridge's session with us, which we have kept.
            there.subscribe("field/#", 1)
            here.publish_and_wait("field/3", "and back")
            wait_until(lambda: payloads(there, "field/3") == ["and back"], "the way back", PATIENCE_S)


def test_we_keep_for_a_bridge_that_is_away(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node()
    ours = Reach("mqtt", node.port(), NOWHERE)
    lines = bridge(node.port(), "mqttv311")
    with ExitStack() as stack:
        here = stack.enter_context(paho(ours, client_id="at-ours"))
        with run_mosquitto(tmp_path, *lines):
            wait_for_bridge(here)
        wait_for_bridge(here, "0")  # its will
        for number in range(10):
            here.publish_and_wait(f"field/{number}", f"{number}", retain=True)
        port = stack.enter_context(run_mosquitto(tmp_path, *lines))
        wait_for_bridge(here)
        there = stack.enter_context(paho(Reach("mqtt", port, NOWHERE), client_id="at-theirs"))
        there.subscribe("field/#", 1)
        wait_until(lambda: len(there.inbox) >= 10, "the retained messages", PATIENCE_S)
        assert sorted(message.payload for message in there.inbox) == [b"%d" % number for number in range(10)]
