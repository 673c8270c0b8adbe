"""Our bridges to a real Mosquitto, with MQTT 5 and 3.1.1, and how its own tools and bridges see them."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import Connect, Publish
from hedgerow_workshop.programs import free_port
from tests.conftest import StartMosquitto, StartNode
from tests.interop.conftest import Reach
from tests.interop.paho_peer import PATIENCE_S, Paho, paho
from tests.programs import Node, end, need_program, start_mosquitto, wait_until

NOWHERE = Path()
COUNT = 30
VERSIONS = {"5": (), "3.1.1": ("bridge_protocol_version mqttv311",)}

every_version = pytest.mark.parametrize("more", VERSIONS.values(), ids=list(VERSIONS))


def section(port: int, *more: str) -> str:
    lines = ["connection moss", f"address 127.0.0.1:{port}", "restart_timeout 0.1 0.5", *more]
    if not any(line.startswith("topic ") for line in more):
        lines.append("topic # both 2")
    return "\n".join([*lines, ""])


def payloads(client: Paho, topic: str) -> list[str]:
    return [message.payload.decode() for message in client.inbox if message.topic == topic]


def state(client: Paho) -> dict[str, Any]:
    found = payloads(client, "$SYS/broker/bridge/moss/state")
    last: dict[str, Any] = json.loads(found[-1]) if found and found[-1] else {}
    return last


def wait_for_bridge(here: Paho, wanted: str = "up") -> None:
    wait_until(lambda: state(here).get("state") == wanted, f"the bridge to be {wanted}", PATIENCE_S)


@contextmanager
def at_node(node: Node) -> Iterator[Paho]:
    with paho(Reach("mqtt", node.port(), NOWHERE), client_id="here") as here:
        here.subscribe("$SYS/broker/bridge/#", 1)
        yield here


@contextmanager
def at_mosquitto(port: int) -> Iterator[Paho]:
    with paho(Reach("mqtt", port, NOWHERE), client_id="there") as there:
        yield there


@contextmanager
def bridged(node: Node, port: int, *more: str) -> Iterator[tuple[Paho, Paho]]:
    with at_node(node) as here, at_mosquitto(port) as there:
        here.publish("$SYS/broker/bridge/new", section(port, *more), 1)
        wait_for_bridge(here)
        yield here, there


@every_version
def test_messages_flow_both_ways_once_at_every_qos(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, more: tuple[str, ...]
) -> None:
    with bridged(hedgerow_node(), mosquitto(), *more) as (here, there):
        assert state(here)["protocol"] == (4 if more else 5)
        for side in (here, there):
            side.subscribe("field/#", 2)
        for number in range(COUNT):
            for qos in (0, 1, 2):
                here.publish(f"field/here/{qos}", f"{number}", qos)
                there.publish(f"field/there/{qos}", f"{number}", qos)
        expected = [f"{number}" for number in range(COUNT)]
        for qos in (0, 1, 2):
            for side, other in ((here, "there"), (there, "here")):
                topic = f"field/{other}/{qos}"
                wait_until(lambda s=side, t=topic: len(payloads(s, t)) >= COUNT, topic, PATIENCE_S)  # type: ignore[misc]
        # What went round would have come before the last word of the other side.
        here.publish_and_wait("field/last/here", "1")
        there.publish_and_wait("field/last/there", "1")
        for side, topic in ((here, "field/last/there"), (there, "field/last/here")):
            wait_until(lambda s=side, t=topic: bool(payloads(s, t)), topic, PATIENCE_S)  # type: ignore[misc]
        for side in (here, there):
            for origin in ("here", "there"):
                for qos in (0, 1, 2):
                    assert payloads(side, f"field/{origin}/{qos}") == expected
            levels = {message.qos for message in side.inbox if message.topic.startswith("field/")}
            assert levels == {0, 1, 2}


@every_version
def test_what_is_retained_on_one_side_is_retained_on_the_other(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, more: tuple[str, ...]
) -> None:
    node, port = hedgerow_node(), mosquitto()
    with at_node(node) as here, at_mosquitto(port) as there:
        here.publish_and_wait("before/here", "1", retain=True)
        there.publish_and_wait("before/there", "1", retain=True)
    with bridged(node, port, *more) as (here, there):
        for side, name in ((here, "here"), (there, "there")):
            side.publish_and_wait(f"live/{name}", "1", retain=True)
            side.publish_and_wait(f"gone/{name}", "1", retain=True)
            side.publish_and_wait(f"gone/{name}", "", retain=True)
            side.subscribe("last/#", 1)
        here.publish_and_wait("last/here", "1")
        there.publish_and_wait("last/there", "1")
        for side, topic in ((here, "last/there"), (there, "last/here")):
            wait_until(lambda s=side, t=topic: bool(payloads(s, t)), topic, PATIENCE_S)  # type: ignore[misc]
    expected = {"before/here", "before/there", "live/here", "live/there"}
    for broker in (node.port(), port):
        with paho(Reach("mqtt", broker, NOWHERE), client_id="late") as late:
            for topic_filter in ("before/#", "live/#", "gone/#"):
                late.subscribe(topic_filter, 1)
            assert {message.topic for message in late.expect(4) if message.retain} == expected


def test_prefixes(hedgerow_node: StartNode, mosquitto: StartMosquitto) -> None:
    lines = ("topic # out 1 up/ site/", "topic # in 1 down/ orders/")
    with bridged(hedgerow_node(), mosquitto(), *lines) as (here, there):
        here.subscribe("down/#", 1)
        there.subscribe("site/#", 1)
        here.publish_and_wait("up/a/b", "1")
        here.publish_and_wait("other/a", "1")
        here.publish_and_wait("up/last", "1")
        there.publish_and_wait("orders/c", "2")
        there.publish_and_wait("site/d", "2")  # only sent there
        there.publish_and_wait("orders/last", "2")
        wait_until(lambda: bool(payloads(there, "site/last")), "site/last", PATIENCE_S)
        wait_until(lambda: bool(payloads(here, "down/last")), "down/last", PATIENCE_S)
        assert {message.topic for message in there.inbox} == {"site/a/b", "site/last", "site/d"}
        assert [m.topic for m in here.inbox if m.topic.startswith("down/")] == ["down/c", "down/last"]


def test_what_comes_back_to_us_is_known_as_our_own(
    hedgerow_node: StartNode, mosquitto: StartMosquitto
) -> None:
    """With MQTT 3.1.1, to a broker that is not told that this is a bridge, and under another name there."""
    lines = ("bridge_protocol_version mqttv311", "try_private false", "topic # both 1 moss/ field/")
    with bridged(hedgerow_node(), mosquitto(), *lines) as (here, there):
        here.subscribe("moss/#", 1)
        there.subscribe("field/#", 1)
        for number in range(COUNT):
            here.publish("moss/a", f"{number}", 1)
        there.publish_and_wait("field/last", "1")
        expected = [f"{number}" for number in range(COUNT)]
        wait_until(lambda: bool(payloads(here, "moss/last")), "moss/last", PATIENCE_S)
        here.publish_and_wait("moss/after", "1")
        wait_until(lambda: bool(payloads(there, "field/after")), "field/after", PATIENCE_S)
        assert payloads(here, "moss/a") == payloads(there, "field/a") == expected


def test_two_nodes_with_prefixes_agree_on_ids(hedgerow_node: StartNode, mosquitto: StartMosquitto) -> None:
    """What is born at Mosquitto comes to each once, although they are joined to each other too."""
    port, lines = mosquitto(), "topic # both 1 moss/ field/"
    first, second = hedgerow_node("--id", "first"), hedgerow_node("--id", "second")
    with bridged(first, port, lines) as (here, there), at_node(second) as beside:
        beside.publish("$SYS/broker/bridge/new", section(port, lines), 1)
        wait_for_bridge(beside)
        joint = f"connection joint\naddress 127.0.0.1:{second.port()}\ntopic # both 1\n"
        here.publish("$SYS/broker/bridge/new", joint, 1)
        topic = "$SYS/broker/bridge/joint/state"
        wait_until(lambda: any('"up"' in each for each in payloads(here, topic)), "the joint", PATIENCE_S)
        for side in (here, beside):
            side.subscribe("moss/#", 1)
        for number in range(COUNT):
            there.publish("field/a", f"{number}", 1)
        there.publish_and_wait("field/last", "1")
        for side in (here, beside):
            wait_until(lambda s=side: bool(payloads(s, "moss/last")), "moss/last", PATIENCE_S)  # type: ignore[misc]
            assert payloads(side, "moss/a") == [f"{number}" for number in range(COUNT)]


def test_a_mosquitto_that_is_killed_and_comes_back(hedgerow_node: StartNode, tmp_path: Path) -> None:
    program, port = need_program("mosquitto"), free_port()
    folder = tmp_path / "mosquitto"
    folder.mkdir()
    store = folder / "mosquitto.db"
    lines = (
        "persistence true",
        f"persistence_location {folder}/",
        "autosave_on_changes true",
        "autosave_interval 1",
    )
    theirs = Reach("mqtt", port, NOWHERE)
    process = start_mosquitto(program, folder, port, lines)
    assert process is not None
    try:
        with paho(theirs, client_id="there", clean=False, expiry_s=600) as there:
            there.subscribe("field/#", 1)
        wait_until(
            lambda: store.exists() and b"field/#" in store.read_bytes(), "Mosquitto to store it", PATIENCE_S
        )
        with at_node(hedgerow_node()) as here:
            here.publish("$SYS/broker/bridge/new", section(port), 1)
            wait_for_bridge(here)
            process.kill()
            process.wait()
            wait_until(lambda: state(here)["state"] != "up", "the bridge to be down", PATIENCE_S)
            for number in range(COUNT):
                here.publish_and_wait("field/kept", f"{number}", 1)
            process = start_mosquitto(program, folder, port, lines)
            assert process is not None
            with paho(theirs, client_id="there", clean=False, expiry_s=600) as there:
                assert there.session_present
                wait_until(lambda: len(payloads(there, "field/kept")) >= COUNT, "what waited", PATIENCE_S)
                here.publish_and_wait("field/last", "1")
                wait_until(lambda: bool(payloads(there, "field/last")), "field/last", PATIENCE_S)
                assert payloads(there, "field/kept") == [f"{number}" for number in range(COUNT)]
    finally:
        if process is not None and process.poll() is None:
            end(process)


def test_notifications_are_seen_by_mosquittos_own_tools(
    hedgerow_node: StartNode, mosquitto: StartMosquitto
) -> None:
    tool = need_program("mosquitto_sub")
    port = mosquitto()
    node = hedgerow_node("--id", "barn")

    def told(at: int) -> str:
        command = [tool, "-p", str(at), "-t", "$SYS/broker/connection/barn.moss/state", "-C", "1", "-W", "5"]
        found = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
        return found.stdout.decode().strip()

    with bridged(node, port) as (here, _):
        assert told(port) == told(node.port()) == "1"
        here.publish_and_wait("$SYS/broker/bridge/del", "moss")
        wait_until(lambda: told(port) == "0", "the word that it is gone", PATIENCE_S)
        here.publish("$SYS/broker/bridge/new", section(port), 1)
        wait_for_bridge(here)
        wait_until(lambda: told(port) == "1", "the word that it is back", PATIENCE_S)
    node.kill9()
    wait_until(lambda: told(port) == "0", "the will", PATIENCE_S)
    node.start()


def test_a_bridge_of_mosquittos_own_to_a_node_with_bridges(
    hedgerow_node: StartNode, mosquitto: StartMosquitto
) -> None:
    """theirs ── its own ──► node ── ours ──► other: what is published at one end comes to the other once."""
    node, other = hedgerow_node(), mosquitto()
    own = ("connection own", f"address 127.0.0.1:{node.port()}", "topic # both 1", "restart_timeout 1")
    theirs = mosquitto(*own)
    with (
        bridged(node, other) as (here, there),
        paho(Reach("mqtt", theirs, NOWHERE), client_id="end") as at_end,
    ):
        here.subscribe("$SYS/broker/connection/+/state", 1)
        wait_until(
            lambda: any(".own/" in m.topic and m.payload == b"1" for m in here.inbox),
            "its bridge",
            PATIENCE_S,
        )
        for side in (there, at_end):
            side.subscribe("field/#", 1)
        for number in range(COUNT):
            there.publish("field/other", f"{number}", 1)
            at_end.publish("field/end", f"{number}", 1)
        there.publish_and_wait("field/other/last", "1")
        at_end.publish_and_wait("field/end/last", "1")
        expected = [f"{number}" for number in range(COUNT)]
        for side, name in ((there, "end"), (at_end, "other")):
            wait_until(lambda s=side, n=name: bool(payloads(s, f"field/{n}/last")), name, PATIENCE_S)  # type: ignore[misc]
            assert payloads(side, f"field/{name}") == expected


@every_version
def test_a_message_that_mosquitto_takes_no_packet_of_holds_up_no_other(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, more: tuple[str, ...]
) -> None:
    """In MQTT 5 it says how large a packet may be. Before, it resets each connection that brings a larger."""
    port = mosquitto("max_packet_size 2000")
    with bridged(hedgerow_node(), port, "topic # out 1", *more) as (here, there):
        there.subscribe("field/#", 1)
        here.publish("field/a", "before", 1)
        here.publish("field/a", "x" * 5_000, 1)
        for number in range(COUNT):
            here.publish("field/a", f"{number}", 1)
        expected = {"before", *(f"{number}" for number in range(COUNT))}
        wait_until(lambda: expected <= set(payloads(there, "field/a")), "all others", 2 * PATIENCE_S)
        assert "x" * 5_000 not in payloads(there, "field/a")


def test_what_mosquitto_takes_and_we_refuse_does_not_end_the_bridge(
    hedgerow_node: StartNode, mosquitto: StartMosquitto
) -> None:
    port = mosquitto()
    with bridged(hedgerow_node(), port) as (here, there):
        here.subscribe("field/#", 1)
        wrong = codec.encode(
            Publish("field/wrong", b"", 1, packet_id=1, properties={"response_topic": "field/?"}), 5
        )
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(codec.encode(Connect("wrong", 5), 5))
            client.sendall(wrong.replace(b"?", b"#"))
            wait_until(lambda: b"\x40" in client.recv(4_096), "Mosquitto's PUBACK", PATIENCE_S)
        there.publish_and_wait("field/after", "1")
        wait_until(lambda: bool(payloads(here, "field/after")), "what is behind it", PATIENCE_S)
        assert payloads(here, "field/wrong") == []
        wait_until(lambda: state(here).get("in", {}).get("refused") == 1, "it to be counted", PATIENCE_S)
        states = [json.loads(each) for each in payloads(here, "$SYS/broker/bridge/moss/state") if each]
        assert {each["since"] for each in states if each["state"] == "up"} == {state(here)["since"]}


@pytest.mark.parametrize("line", ["topic # out 1", "topic # out 0"], ids=["QoS 1", "QoS 0"])
@every_version
def test_control_characters_which_mosquitto_resets_on_hold_up_nothing(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, more: tuple[str, ...], line: str
) -> None:
    with bridged(hedgerow_node(), mosquitto(), *more, line) as (here, there):
        there.subscribe("field/#", 1)
        here.publish_and_wait("field/\1", "1")
        number = 0

        def comes() -> bool:
            nonlocal number
            number += 1
            here.publish_and_wait("field/after", f"{number}")
            return bool(payloads(there, "field/after"))

        wait_until(comes, "what is behind it", PATIENCE_S)
