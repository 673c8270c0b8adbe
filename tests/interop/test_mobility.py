"""Standard clients and brokers beside a mobile broker and its fixed one: they work as ever, and never see a
packet of the extension.

Everything that they send and get goes through a recorder, which knows the standard and nothing else. One
client of ours goes to and fro between the brokers meanwhile, by that extension.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from tests.conftest import StartMosquitto, StartNode
from tests.interop.conftest import Reach
from tests.interop.paho_peer import Paho, connect_and_vanish, paho
from tests.interop.recorder import CONNACK, DISCONNECT, EXTENSION, Recorder, packets, recording
from tests.programs import Node, need_program, wait_until
from tests.waiting import PATIENCE_S

DOMAIN = ("--domain", "farm/sector1")
HOT = ("--hot-every", "50 ms", "--hot-window", "500 ms", "--hot-share", "0.5")
VERSIONS = {"3.1.1": "311", "5": "5"}
NOWHERE = Path()
READY = "ready"
USE_ANOTHER_SERVER = b"\x9c"
BACK = "roamer@tractor is back at the mobile broker"


def reach(port: int) -> Reach:
    return Reach("mqtt", port, NOWHERE)


def start_brokers(start: StartNode, *more: str) -> tuple[Node, Node]:
    """A fixed broker, and a mobile one that keeps the busier half of its topics."""
    tower = start("--id", "tower", "--role", "fixed", *DOMAIN)
    url = f"mqtt://127.0.0.1:{tower.port()}"
    tractor = start("--id", "tractor", "--role", "mobile", *DOMAIN, "--fixed", url, *HOT, *more)
    wait_until(lambda: "tower at" in tractor.log, "the link")
    return tower, tractor


def mosquitto(program: str, port: int, version: str, *words: str) -> list[str]:
    return [need_program(program), "-h", "127.0.0.1", "-p", str(port), "-V", version, *words]


def publish(port: int, version: str, *words: str, given: str = "") -> None:
    command = mosquitto("mosquitto_pub", port, version, *words)
    subprocess.run(command, input=given, text=True, timeout=PATIENCE_S, check=True, capture_output=True)


class Program:
    """A subscriber that is a program, and prints what it hears."""

    def __init__(self, command: list[str], output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

    @property
    def heard(self) -> list[tuple[str, str, bool]]:
        """Topic, payload and whether it was retained."""
        lines = [line.split() for line in self._output.read_text().splitlines(keepends=True)]
        return [(line[0], line[1], line[2] == "1") for line in lines if len(line) == 3]


class Programs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Program] = []

    def start(self, *command: str) -> Program:
        program = Program([*command], self._folder / f"program-{len(self._running)}")
        self._running.append(program)
        return program

    def mosquitto_sub(self, port: int, version: str, topic_filter: str, name: str) -> Program:
        return self.start(
            *mosquitto("mosquitto_sub", port, version, "-i", name),
            *("-q", "2", "-t", topic_filter, "-F", "%t %p %r"),
        )

    def hedgerow_sub(self, port: int, topic_filter: str, name: str) -> Program:
        url = f"mqtt://127.0.0.1:{port}"
        words = ("sub", url, topic_filter, "-i", name, "-q", "1", "--follow", "-F", "%t %p %r")
        return self.start(sys.executable, "-m", "hedgerow", *words)

    def end(self) -> None:
        for program in self._running:
            program.process.terminate()
        for program in self._running:
            program.process.wait(10)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    running = Programs(tmp_path)
    try:
        yield running
    finally:
        running.end()


def heard_by(subscriber: Program | Paho) -> Counter[tuple[str, str]]:
    """But for what it was waited for with."""
    if isinstance(subscriber, Paho):
        found = [(message.topic, message.payload.decode()) for message in list(subscriber.inbox)]
    else:
        found = [(topic, payload) for topic, payload, _ in subscriber.heard]
    return Counter((topic, payload) for topic, payload in found if payload != READY)


def is_ready(subscriber: Program | Paho) -> bool:
    if isinstance(subscriber, Paho):
        return any(message.payload == READY.encode() for message in list(subscriber.inbox))
    return any(payload == READY for _, payload, _ in subscriber.heard)


class Traffic:
    """What was published, by several clients in turn, at each QoS."""

    def __init__(self, *publishers: Paho) -> None:
        self.sent: Counter[tuple[str, str]] = Counter()
        self._publishers = publishers
        self._number = 0

    def wait_for(self, *subscribers: Program | Paho, topic: str) -> None:
        """Until they are subscribed, and the publishers' brokers know it."""
        for publisher in self._publishers:
            for subscriber in subscribers:

                def has_heard(publisher: Paho = publisher, subscriber: Program | Paho = subscriber) -> bool:
                    publisher.publish_and_wait(topic, READY)
                    return is_ready(subscriber)

                wait_until(has_heard, "the subscription")

    def publish(self, topic: str, *, qos: int | None = None) -> None:
        for publisher in self._publishers:
            self._number += 1
            level = self._number % 3 if qos is None else qos
            payload = f"{self._number}-{level}"
            publisher.publish_and_wait(topic, payload, level)
            self.sent[topic, payload] += 1

    def until(
        self, condition: Callable[[], bool], what: str, topic: str, quiet: str, qos: int | None = None
    ) -> None:
        """Keep one topic busier than the other until then: one of which nothing comes stays where it is."""
        turns = count()

        def is_so() -> bool:
            self.publish(topic, qos=qos)
            if next(turns) % 4 == 0:
                self.publish(quiet, qos=1)
            return condition()

        wait_until(is_so, what)

    def arrived_once(self, subscriber: Program | Paho, topics: set[str]) -> None:
        wanted = Counter({key: count for key, count in self.sent.items() if key[0] in topics})
        with suppress(pytest.fail.Exception):
            wait_until(lambda: heard_by(subscriber) >= wanted, f"all of {topics}")
        heard = heard_by(subscriber)
        assert (wanted - heard, heard - wanted) == ({}, {}), "what never came, and what came too often"


def no_extensions(*recorders: Recorder) -> None:
    for recorder in recorders:
        assert recorder.recordings
        for each in recorder.recordings:
            assert each.down, "nothing was recorded"
            assert not each.extensions


def test_standard_parts_beside_a_client_that_moves(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, programs: Programs
) -> None:
    """A Mosquitto bridged to the fixed broker, both ways, and clients of 3.1.1 and 5 on the mobile one."""
    tower, tractor = start_brokers(hedgerow_node, "--move-after", "0.1")
    with recording(tower.port()) as at_bridge, recording(tractor.port()) as at_tractor:
        port = mosquitto(
            "connection tower",
            f"address 127.0.0.1:{at_bridge.port}",
            "bridge_protocol_version mqttv311",
            "try_private true",
            "topic # both 2",
        )
        with (
            recording(tractor.port()) as at_roamer,
            paho(reach(at_tractor.port), "3.1.1", "here") as here,
            paho(reach(port), "5", "there") as there,
            paho(reach(tower.port()), "3.1.1", "between") as between,
        ):
            traffic = Traffic(here, there, between)
            for each in (here, there):
                each.subscribe("field/#", 2)
            roamer = programs.hedgerow_sub(at_roamer.port, "field/a", "roamer")
            standing = [
                programs.mosquitto_sub(at_tractor.port, "311", "field/a", "old"),
                programs.mosquitto_sub(at_tractor.port, "5", "field/+", "new"),
            ]
            sent_away = programs.mosquitto_sub(at_tractor.port, "5", "field/a", "sent-away")
            everyone: list[Program | Paho] = [here, there, roamer, *standing, sent_away]
            traffic.wait_for(*everyone, topic="field/a")
            for _ in range(2):
                before = tower.log.count("client roamer connected")
                traffic.until(
                    lambda b=before: tower.log.count("client roamer connected") > b,  # type: ignore[misc]
                    "the client to follow its topic, which is cold",
                    "field/b",
                    "field/a",
                )
                # At QoS 0 a message on its way between the two may be lost: it is for those who stay.
                for _ in range(5):
                    traffic.publish("field/a", qos=1)
                traffic.until(
                    lambda b=before: tractor.log.count(BACK) > b,  # type: ignore[misc]
                    "the client to come back to its topic, which is hot",
                    "field/a",
                    "field/b",
                    qos=2,
                )
            for subscriber in (here, there, standing[1]):
                traffic.arrived_once(subscriber, {"field/a", "field/b"})
            for subscriber in (roamer, standing[0]):
                traffic.arrived_once(subscriber, {"field/a"})
            no_extensions(at_bridge, at_tractor)
            # A client of MQTT 5 is told where to go in the words of the standard.
            assert any(
                packet.kind == DISCONNECT and packet.body[:1] == USE_ANOTHER_SERVER
                for each in at_tractor.recordings
                for packet in packets(each.down)
            )
            # That it would be seen: the client that moves has what the others must not.
            found = [each.extensions for each in at_roamer.recordings if each.version == EXTENSION]
            assert any("packet type 0" in text for texts in found for text in texts)
            assert {"down: CONNACK 0006", "down: CONNACK 0007"} <= {
                text[:18] for texts in found for text in texts
            }
    assert "refused" not in tower.log + tractor.log


@pytest.mark.parametrize("version", VERSIONS.values(), ids=list(VERSIONS))
def test_clients_of_a_mobile_broker_have_what_they_have_at_any(
    hedgerow_node: StartNode, programs: Programs, version: str
) -> None:
    """Retained values and wills, from either broker, with hot topics and cold ones."""
    tower, tractor = start_brokers(hedgerow_node, "--no-move-clients")
    with recording(tractor.port()) as recorder:
        place = recorder.port
        publish(tower.port(), version, "-t", "field/there", "-m", "kept", "-q", "1", "-r")
        publish(place, version, "-t", "field/here", "-m", "kept", "-q", "1", "-r")
        publish(place, version, "-t", "field/gone", "-m", "kept", "-q", "1", "-r")
        publish(place, version, "-t", "field/gone", "-n", "-q", "1", "-r")
        kept = {("field/there", "kept"): 1, ("field/here", "kept"): 1}
        subscriber = programs.mosquitto_sub(place, version, "field/#", "first")
        wait_until(lambda: heard_by(subscriber) >= Counter(kept), "what is retained")
        exact = programs.mosquitto_sub(place, version, "field/cold", "exact")
        with paho(reach(place), "3.1.1", "speaker") as speaker, paho(reach(tower.port())) as far:
            traffic = Traffic(speaker, far)
            traffic.wait_for(subscriber, exact, topic="field/cold")
            traffic.until(
                lambda: "'field/cold' is delegated to tower" in tractor.log,
                "the delegation",
                "field/hot",
                "field/cold",
            )
            for qos in (0, 1, 2):
                for topic in ("field/hot", "field/cold"):
                    lines = [f"{qos}-{number}" for number in range(20)]
                    words = ("-t", topic, "-q", str(qos), "-l")
                    publish(place, version, *words, given="\n".join(lines) + "\n")
                    traffic.sent.update({(topic, line): 1 for line in lines})
            connect_and_vanish(reach(place), "3.1.1", "mortal", ("field/will", "gone", 1, True))
            connect_and_vanish(reach(tower.port()), "3.1.1", "mortal", ("field/will", "gone-there", 1, True))
            wills = {("field/will", "gone"): 1, ("field/will", "gone-there"): 1}
            traffic.sent.update({**kept, **wills})
            traffic.arrived_once(
                subscriber, {"field/hot", "field/cold", "field/will", "field/there", "field/here"}
            )
            traffic.arrived_once(exact, {"field/cold"})
            late = programs.mosquitto_sub(place, version, "field/#", "late")
            last = traffic_last(subscriber)
            wait_until(lambda: heard_by(late) >= Counter({**kept, last: 1}), "what is retained, once more")
            assert heard_by(late) == Counter({**kept, last: 1})
        no_extensions(recorder)
        connected = {4 if version == "311" else 5, 4}  # Paho's and Mosquitto's
        assert {each.version for each in recorder.recordings} == connected


def traffic_last(subscriber: Program) -> tuple[str, str]:
    """The last will that came is the one that is retained."""
    return [(topic, payload) for topic, payload, _ in subscriber.heard if topic == "field/will"][-1]


def test_a_client_of_the_extension_falls_back_at_a_mosquitto(
    mosquitto: StartMosquitto, programs: Programs
) -> None:
    port = mosquitto()
    with recording(port) as recorder:
        subscriber = programs.hedgerow_sub(recorder.port, "field/a", "roamer")
        with paho(reach(port), "3.1.1", "speaker") as speaker:
            Traffic(speaker).wait_for(subscriber, topic="field/a")
        offered, spoken = recorder.recordings
        assert offered.version == EXTENSION
        # The one answer is "unacceptable protocol version", or the end of the connection.
        assert [packet for packet in packets(offered.down) if packet != (CONNACK, b"\0\1")] == []
        assert spoken.version == 5
        assert not spoken.extensions
