"""Strangers who speak as a federator that is not ours, at a broker where they may write `federator/#`."""

from __future__ import annotations

from struct import pack

from hedgerow.broker.broker import Broker
from hedgerow.broker.port import Port
from hedgerow.federation.document import limits
from hedgerow.federation.document.data_log import DataLog
from hedgerow.federation.document.federator import DocumentFederator
from hedgerow.federation.document.gateway import DocumentGateway, GatewaySettings
from hedgerow.federation.document.link import DOCUMENT_PREFIX
from hedgerow.federation.document.neighbours import DocumentPeer
from hedgerow.federation.document.numbers import PublicationId, origin_of, publication_id
from hedgerow.federation.document.wire import PROBE
from hedgerow.federation.events import DocumentNeighbourProved
from hedgerow.federation.neighbour_session import Keeping
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import MQTT_5, Connack, Connect, Publish
from tests.broker.harness import Client, World

SECOND, THIRD = "mqtt://second:1883", "mqtt://third:1883"
HOMES = {2: "192.0.2.2", 3: "192.0.2.3"}
MALLORY = "203.0.113.9"
Peers = tuple[DocumentPeer, ...]
UNKNOWN = (DocumentPeer(SECOND), DocumentPeer(THIRD))
NUMBERED = (DocumentPeer(SECOND, 2), DocumentPeer(THIRD, 3))
NAMED = (DocumentPeer(SECOND, 2, "second"), DocumentPeer(THIRD, 3, "third"))


class Stage(World):
    """A gateway with the id 1, the federators 2 and 3 as its neighbours, and whoever connects."""

    def __init__(self, peers: Peers = NAMED, *, is_sidecar: bool = False) -> None:
        self.peers, self.is_sidecar = peers, is_sidecar
        self.heard: list[bytes] = []
        super().__init__()
        self.reader = Port(self.broker, "a client", lambda message: self.heard.append(message.payload))
        self.fabric = Port(self.broker, "another node of ours", lambda message: None)
        self._tokens = 0

    def prepare(self, broker: Broker) -> None:
        self.gateway = DocumentGateway(
            broker,
            GatewaySettings(self.peers, 1 << 20, 0.0, 2, 5.0, Keeping()),
            self.now,
            is_in_fabric=lambda: False,
            token=self._token,
            is_sidecar=self.is_sidecar,
        )

    def _token(self) -> int:
        self._tokens = getattr(self, "_tokens", 0) + 1
        return 0xABCD_0000 + self._tokens

    @property
    def ignored(self) -> dict[str, int]:
        return dict(self.gateway.federator.ignored)

    def user(self, name: str) -> Client:
        return self._log_in(self.open(certificate_name=name), name)

    def anonymous(self, address: str) -> Client:
        return self._log_in(self.open(address), f"at-{address}")

    def _log_in(self, client: Client, client_id: str) -> Client:
        client.send(Connect(client_id, MQTT_5))
        assert client.take_first(Connack).reason_code == 0
        return client

    def say(self, speaker: Client | None, topic: str, payload: bytes) -> None:
        if speaker is None:
            self.gateway.hear(topic, payload)
        else:
            speaker.send(Publish(topic, payload))
        self.gateway.serve(self.now)

    def announce(self, speaker: Client | None, number: int) -> None:
        self.say(speaker, "federator/core_ann/t", pack("<4I", number, 1, 0, number))

    def adopt(self, speaker: Client | None, number: int) -> None:
        """It says that it is this node's child."""
        mesh = self.gateway.federator.mesh_of("t")
        assert mesh is not None
        self.say(
            speaker, "federator/memb_ann/t", pack("<3I", self.gateway.federator.number, mesh.sequence, number)
        )

    def route(self, speaker: Client | None, number: int, payload: bytes, publication: PublicationId) -> None:
        head = pack("<3IQ", *publication, number, len(payload))
        self.say(speaker, "federator/routing/t", head + payload)

    def want(self) -> None:
        self.reader.subscribe("t", self.now)
        self.gateway.serve(self.now)

    def ask(self, address: str) -> str:
        """The topic by which the federator there is asked who it is."""
        self.gateway.federator.linked(address, self.now)
        return self.question(address)

    def question(self, address: str) -> str:
        said = self.gateway.federator.take_packets()
        (topic,) = [each.topic for each in said if each.neighbour == address and PROBE in each.topic]
        return topic.removeprefix("federator/beacon/")

    def answer(self, speaker: Client | None, question: str, number: int) -> None:
        self.say(speaker, f"federator/core_ann/{question}", pack("<4I", number, 1, 0, number))

    def waiting(self, address: str) -> list[tuple[str, bytes]]:
        session = self.broker.sessions[DOCUMENT_PREFIX + address]
        return [(each.message.topic, each.message.payload) for each in session.loaded()]

    def payloads(self, address: str) -> list[bytes]:
        """Of the publications that wait for that neighbour."""
        return [data[20:] for topic, data in self.waiting(address) if topic == "federator/routing/t"]


def attack(stage: Stage, mallory: Client, number: int = 2) -> None:
    """All that a neighbour may say."""
    stage.announce(mallory, number)
    stage.adopt(mallory, number)
    stage.route(mallory, number, b"forged", PublicationId(9, 1))


def test_a_user_who_is_not_the_named_one_is_nobody() -> None:
    stage = Stage()
    stage.want()
    attack(stage, stage.user("mallory"))
    attack(stage, stage.anonymous(MALLORY))
    mesh = stage.gateway.federator.mesh_of("t")
    assert mesh is not None
    assert mesh.is_core
    assert not mesh.children
    assert stage.heard == []
    assert stage.ignored == {"not proved": 6}
    second = stage.user("second")
    stage.adopt(second, 2)
    stage.route(second, 2, b"true", PublicationId(9, 1))
    assert set(mesh.children) == {2}
    assert stage.heard == [b"true"]


def test_a_neighbour_cannot_speak_as_another() -> None:
    stage = Stage()
    stage.want()
    stage.adopt(stage.user("second"), 3)
    assert stage.ignored == {"not proved": 1}


def test_a_number_is_of_whoever_answers_the_question_and_it_cannot_be_guessed() -> None:
    for peers in (UNKNOWN, NUMBERED):
        stage = Stage(peers)
        stage.want()
        mallory, second = stage.anonymous(MALLORY), stage.anonymous(HOMES[2])
        stage.gateway.federator.take_packets()
        question = stage.ask(SECOND)
        for guess in ("x", "0", "7", question.rpartition("/")[2][:-1]):
            stage.answer(mallory, f"{question.rpartition('/')[0]}/{guess}", 2)
        attack(stage, mallory)
        assert stage.heard == []
        stage.answer(second, question, 2)
        assert list(map(str, stage.gateway.take_events())) == [
            f"the federator at {SECOND} is number 2, from {HOMES[2]}"
        ]
        stage.answer(mallory, question, 2)  # All federators there have heard it by now.
        attack(stage, mallory)
        assert stage.heard == []
        stage.route(second, 2, b"true", PublicationId(9, 1))
        assert stage.heard == [b"true"]


def test_an_answer_with_another_number_than_the_configured_one_is_none() -> None:
    stage = Stage(NUMBERED)
    question = stage.ask(SECOND)
    stage.answer(stage.anonymous(MALLORY), question, 4)
    stage.answer(stage.anonymous(MALLORY), question, 3)
    assert stage.gateway.take_events() == []


def test_a_neighbour_that_has_moved_is_asked_again_by_a_new_topic_and_not_for_each_forgery() -> None:
    stage = Stage(NUMBERED)
    first = stage.ask(SECOND)
    stage.answer(stage.anonymous(HOMES[2]), first, 2)
    moved = stage.anonymous("192.0.2.77")
    questions: list[str] = []
    for _ in range(600):
        stage.now += 0.5
        stage.broker.now = stage.now
        stage.announce(moved, 2)
        stage.gateway.federator.handle_timer(stage.now)
        said = stage.gateway.federator.take_packets()
        questions += [each.topic for each in said if PROBE in each.topic]
        if questions:
            break
    assert len(questions) == 1
    second = questions[0].removeprefix("federator/beacon/")
    assert second != first
    stage.answer(stage.anonymous(MALLORY), first, 2)
    stage.answer(moved, second, 2)
    proved = [each for each in stage.gateway.take_events() if isinstance(each, DocumentNeighbourProved)]
    assert [each.speaker for each in proved] == [f"site:{HOMES[2]}", "site:192.0.2.77"]
    # Whoever goes on to speak as it has it asked once a minute.
    mallory = stage.anonymous(MALLORY)
    count = 0
    for _ in range(600):
        stage.now += 0.5
        stage.broker.now = stage.now
        stage.announce(mallory, 2)
        stage.gateway.federator.handle_timer(stage.now)
        for each in stage.gateway.federator.take_packets():
            if PROBE in each.topic:
                count += 1
                stage.answer(moved, each.topic.removeprefix("federator/beacon/"), 2)
    assert 0 < count <= 300 / limits.ASK_AGAIN_S + 1


# Beside a broker that does not say who publishes


def test_what_this_node_is_about_to_publish_cannot_be_said_before_it() -> None:
    """The forger knows the numbers, and gives the message out as one that a neighbour has already."""
    for is_sidecar, peers in ((True, NUMBERED), (False, NAMED)):
        stage = Stage(peers, is_sidecar=is_sidecar)
        second, third = (None, None) if is_sidecar else (stage.user("second"), stage.user("third"))
        stage.want()
        stage.adopt(second, 2)
        stage.adopt(third, 3)
        client = stage.anonymous("192.0.2.50")
        next_one = publication_id(
            MessageId(stage.broker.node_id, stage.broker.epoch, stage.broker.sequence + 1)
        )
        assert next_one.origin == origin_of(stage.broker.node_id, stage.broker.epoch)
        for ahead in range(4):
            forged = next_one._replace(sequence=next_one.sequence + ahead)
            stage.route(second, 2, b"alarm", forged)
        assert stage.heard == []
        client.send(Publish("t", b"alarm"))
        stage.gateway.serve(stage.now)
        assert stage.payloads(SECOND) == stage.payloads(THIRD) == [b"alarm"]
        assert stage.heard == [b"alarm"]


def test_a_copy_in_the_name_of_a_neighbour_keeps_nothing_from_that_neighbour() -> None:
    stage = Stage(NUMBERED, is_sidecar=True)
    stage.want()
    stage.adopt(None, 2)
    stage.adopt(None, 3)
    of_theirs = PublicationId(9, 1)
    stage.route(None, 3, b"x", of_theirs)  # forged: the third does not have it
    assert (stage.payloads(SECOND), stage.payloads(THIRD)) == ([b"x"], [])
    stage.route(None, 2, b"x", of_theirs)
    assert (stage.payloads(SECOND), stage.payloads(THIRD)) == ([b"x"], [b"x"])
    stage.route(None, 3, b"x", of_theirs)
    assert stage.heard == [b"x"]
    # The same of what comes from a node of ours by our own links.
    message_id = MessageId("barn", 1, 7)
    stage.route(None, 2, b"y", publication_id(message_id))
    stage.fabric.publish(Message("t", b"y", 1, id=message_id), stage.now)
    stage.gateway.serve(stage.now)
    assert stage.payloads(SECOND) == [b"x", b"y"]
    assert stage.payloads(THIRD) == [b"x", b"y"]


def test_where_the_sender_has_proved_itself_it_gets_no_copy_of_its_own() -> None:
    stage = Stage()
    second, third = stage.user("second"), stage.user("third")
    stage.want()
    stage.adopt(second, 2)
    stage.adopt(third, 3)
    for speaker, number in ((second, 2), (third, 3), (second, 2)):
        stage.route(speaker, number, b"x", PublicationId(9, 1))
    assert (stage.payloads(SECOND), stage.payloads(THIRD)) == ([], [b"x"])


# What it costs


def test_questions_in_the_name_of_a_neighbour_fill_nobodys_queue() -> None:
    stage = Stage()
    federator = stage.gateway.federator
    mallory, second = stage.user("mallory"), stage.user("second")
    answered: dict[str, int] = {}
    for number in range(3_000):
        for asker in ("2", "9", "x", "02" * 40, "9" * 5_000):
            mallory.send(Publish(f"federator/beacon/{PROBE}{asker}/{number}", b""))
        for each in federator.take_packets():
            answered[each.neighbour] = answered.get(each.neighbour, 0) + 1
    assert answered.keys() == {SECOND}
    assert answered[SECOND] <= limits.ANSWERS_PER_S * limits.ANSWERS_BURST_S + 1
    second.send(Publish(f"federator/beacon/{PROBE}2/its-own", b""))
    assert [(each.neighbour, each.topic) for each in federator.take_packets()] == [
        (SECOND, f"federator/core_ann/{PROBE}2/its-own")
    ]


def test_a_flood_of_strangers_does_not_take_what_a_neighbour_may_say() -> None:
    stage = Stage()
    stage.want()
    mallory, second = stage.user("mallory"), stage.user("second")
    for _ in range(int(limits.ENTRIES_PER_S * limits.ENTRIES_BURST_S) + 100):
        stage.gateway.federator.receive("federator/beacon/u", b"", "user:mallory", stage.now)
    stage.announce(mallory, 2)
    assert stage.ignored["too fast"] > 0
    stage.route(second, 2, b"true", PublicationId(9, 1))
    assert stage.heard == [b"true"]


def test_a_wide_filter_looks_at_what_it_matches_alone() -> None:
    """One SUBSCRIBE has thousands of them, and each looked at all topics: ten seconds for one packet."""
    federator = DocumentFederator(5, [], DataLog(1 << 20, 60), token=lambda: 7)
    for number in range(2_000):
        federator.set_wanted(f"farm/{number % 50}/{number}", True, 1.0)
    visited = federator.visited
    for number in range(100):
        federator.set_wanted(f"house/{number}/#", True, 1.0)
        federator.set_wanted(f"house/{number}/#", False, 1.0)
    assert federator.visited - visited < 1_000
    visited = federator.visited
    federator.set_wanted("farm/+/#", True, 1.0)
    assert federator.visited - visited > 2_000, "what it costs is counted"
