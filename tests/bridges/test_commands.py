"""Commands as publications: who may give them, what they change, and who hears of it when."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from hedgerow.bridges.bridge_set import BridgeSet
from hedgerow.bridges.commands import DELETE_BRIDGE, MAX_BRIDGES, NEW_BRIDGE, RESULT, Commands, state_topic
from hedgerow.bridges.section import Section, read_section
from hedgerow.broker.access import Access, Acl
from hedgerow.broker.port import Port
from hedgerow.errors import ConfigError
from hedgerow.message import Message, Properties
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    Connack,
    Connect,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World

HOME = "127.0.0.1"
TEXT = "connection north\naddress north.example:1884\ntopic # both 1\n"
SECRET = "remote_username anna\nremote_password open sesame\n"


class FakeBridges:
    """A set of bridges that only remembers them."""

    def __init__(self) -> None:
        self.sections: dict[str, Section] = {}
        self.states: list[tuple[str, dict[str, object] | None]] = []

    def __len__(self) -> int:
        return len(self.sections)

    def __contains__(self, name: object) -> bool:
        return name in self.sections

    def create(self, section: Section, now: float) -> str:
        old = self.sections.get(section.name)
        if old == section:
            return "unchanged"
        if old is not None and not section.replace:
            raise ConfigError(f"there is a bridge {section.name} already")
        self.sections[section.name] = section
        return "created" if old is None else "replaced"

    def delete(self, name: str, now: float) -> None:
        if name not in self.sections:
            raise ConfigError(f"there is no bridge {name}")
        del self.sections[name]

    def changed(self, now: float) -> Iterator[tuple[str, Mapping[str, object] | None]]:
        states, self.states = self.states, []
        return iter(states)


class Scene(World):
    """A broker whose bridges can be commanded, and a watcher of the results."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begin()

    def begin(self) -> None:
        self.bridges = FakeBridges()
        self.commands = Commands(self.broker, cast(BridgeSet, self.bridges), self.now)
        self.commands.restore(self.now)
        self._results: list[Message] = []
        Port(self.broker, "watcher", self._results.append).subscribe(RESULT)

    def restart(self) -> None:
        self.crash()
        self.begin()

    def commander(self, address: str = HOME, **fields: Any) -> Client:
        client = self.open(address)
        client.send(Connect("commander", **fields))
        for login in self.broker.take_logins():
            self.broker.finish_login(login, True, self.now)
        self.settle()
        assert client.take_one(Connack).reason_code == 0
        return client

    def take_results(self) -> list[dict[str, Any]]:
        results = [json.loads(message.payload) for message in self._results]
        self._results.clear()
        return results


def command(
    client: Client, topic: str, payload: str | bytes, properties: Properties | None = None
) -> tuple[int, list[Publish]]:
    """Give a command at QoS 1; the reason code of its PUBACK, and what came beside it."""
    data = payload.encode() if isinstance(payload, str) else payload
    client.publish(topic, data, 1, properties=properties or {})
    *answers, acknowledgement = client.take()
    assert isinstance(acknowledgement, Puback)
    return acknowledgement.reason_code, [each for each in answers if isinstance(each, Publish)]


def code_of(client: Client, topic: str, payload: str | bytes, properties: Properties | None = None) -> int:
    return command(client, topic, payload, properties)[0]


def result(command: str, name: str | None, ok: bool, reason: str) -> dict[str, Any]:
    return {"command": command, "connection": name, "ok": ok, "reason": reason}


# What commands do


@pytest.mark.parametrize("payload", [TEXT, read_section(TEXT).to_json()], ids=["text", "JSON"])
def test_a_section_creates_a_bridge(payload: str) -> None:
    scene = Scene()
    assert code_of(scene.commander(), NEW_BRIDGE, payload) == 0
    assert scene.bridges.sections == {"north": read_section(TEXT)}
    assert scene.take_results() == [result("new", "north", True, "created")]


@pytest.mark.parametrize(
    "payload",
    [
        "north",
        "north\n",
        '{"connection": "north"}',
        ' {"connection":"north"}',
        "connection north",
        "connection  north\n",
    ],
)
def test_a_name_deletes_a_bridge(payload: str) -> None:
    scene = Scene()
    commander = scene.commander()
    command(commander, NEW_BRIDGE, TEXT)
    command(commander, DELETE_BRIDGE, payload)
    assert scene.bridges.sections == {}
    assert scene.take_results()[1:] == [result("del", "north", True, "deleted")]


@pytest.mark.parametrize("payload", ["connection", "connection connection"])
def test_a_bridge_may_be_called_connection(payload: str) -> None:
    scene = Scene()
    commander = scene.commander()
    command(commander, NEW_BRIDGE, TEXT.replace("connection north", "connection connection"))
    command(commander, DELETE_BRIDGE, payload)
    assert scene.bridges.sections == {}


def test_the_same_name_is_refused_unless_it_replaces() -> None:
    scene = Scene()
    commander = scene.commander()
    other = TEXT.replace("1884", "1885")
    for text in (TEXT, other, TEXT, other + "replace true\n"):
        command(commander, NEW_BRIDGE, text)
    assert scene.take_results() == [
        result("new", "north", True, "created"),
        result("new", "north", False, "there is a bridge north already"),
        result("new", "north", True, "unchanged"),
        result("new", "north", True, "replaced"),
    ]
    assert scene.bridges.sections["north"].addresses[0].port == 1885


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        (NEW_BRIDGE, "connection north\naddress h\ntopic # sideways\n", 'line 3: topic: "sideways" is none'),
        (
            NEW_BRIDGE,
            TEXT + "adress h\n",
            'line 4: "adress" is no option of a bridge; the nearest is address',
        ),
        (NEW_BRIDGE, b"connection north\n\xff", "line 2: not UTF-8"),
        (NEW_BRIDGE, b"", 'no "connection"'),
        (NEW_BRIDGE, '{"connection": "north"', "not JSON"),
        (DELETE_BRIDGE, "south", "there is no bridge south"),
        (DELETE_BRIDGE, b"", "has no value"),
        (DELETE_BRIDGE, b"\xff", "not UTF-8"),
        (DELETE_BRIDGE, "a b", "one word is expected"),
        (DELETE_BRIDGE, "connection south", "there is no bridge south"),
        (DELETE_BRIDGE, "connection a b", "one word is expected"),
        (DELETE_BRIDGE, "connection north\naddress h", "is not allowed"),
        (DELETE_BRIDGE, "a/b", "cannot be in one level of a topic"),
        (DELETE_BRIDGE, "a\0b", "U+0000 is not allowed"),
        (DELETE_BRIDGE, "n" * 5_000, "longer than 4096 bytes"),
        (DELETE_BRIDGE, "{", "not JSON"),
        (DELETE_BRIDGE, '{"a":' * 800, "not JSON"),
        (DELETE_BRIDGE, '{"connection": 7}', 'not {"connection": NAME}'),
        (DELETE_BRIDGE, '{"name": "north"}', 'not {"connection": NAME}'),
    ],
)
def test_what_is_wrong_is_refused_in_words_and_changes_nothing(
    topic: str, payload: str | bytes, reason: str
) -> None:
    scene = Scene(durable=True)
    commander = scene.commander()
    command(commander, NEW_BRIDGE, TEXT)
    scene.take_results()
    assert code_of(commander, topic, payload) == 0
    (told,) = scene.take_results()
    assert reason in told["reason"]
    assert told["ok"] is False
    assert scene.bridges.sections == {"north": read_section(TEXT)}
    assert scene.store.kept == {("bridges", "north"): TEXT}


def test_no_more_bridges_than_there_is_room_for() -> None:
    scene = Scene()
    commander = scene.commander()
    for number in range(MAX_BRIDGES):
        scene.bridges.create(read_section(TEXT.replace("north", f"b{number}")), scene.now)
    command(commander, NEW_BRIDGE, TEXT)
    command(commander, NEW_BRIDGE, TEXT.replace("north", "b7") + "replace true\n")
    refused, replaced = scene.take_results()
    assert refused == result("new", "north", False, "this node has 256 bridges, and no room for one more")
    assert replaced["ok"] is True


# Answers


def test_the_answer_goes_to_the_response_topic_with_its_correlation_data() -> None:
    scene = Scene()
    commander = scene.commander()
    commander.subscribe("answers/7")
    asked: Properties = {"response_topic": "answers/7", "correlation_data": b"\0\xff"}
    _, (answer,) = command(commander, NEW_BRIDGE, TEXT, asked)
    assert json.loads(answer.payload) == result("new", "north", True, "created")
    assert answer.properties["correlation_data"] == b"\0\xff"
    assert scene.take_results() == [result("new", "north", True, "created")]


def test_a_response_topic_that_is_none_is_refused() -> None:
    scene = Scene()
    message = Message(NEW_BRIDGE, TEXT.encode(), properties={"response_topic": "answers/#"})
    Port(scene.broker, "elsewhere", lambda message: None).publish(message)
    assert scene.take_results() == [result("new", None, False, "the response topic is not a topic name")]
    assert scene.bridges.sections == {}


@pytest.mark.parametrize("topic", ["$hedgerow/x", "$share/g/a"])
def test_no_answer_goes_to_a_topic_that_begins_with_a_dollar(topic: str) -> None:
    scene = Scene()
    heard: list[Message] = []
    Port(scene.broker, "spy", heard.append).subscribe(topic.replace("$share/g/", ""))
    command(scene.commander(), NEW_BRIDGE, TEXT, {"response_topic": topic})
    (told,) = scene.take_results()
    assert (told["ok"], heard, scene.bridges.sections) == (False, [], {})
    assert "begins with $" in told["reason"]


def test_no_answer_goes_where_the_commander_may_not_write() -> None:
    acl = Acl.parse(f"topic write {NEW_BRIDGE}", "acl")
    scene = Scene(access=Access(acl))
    asked: Properties = {"response_topic": "alarm/siren"}
    assert code_of(scene.commander(), NEW_BRIDGE, TEXT, asked) == Reason.NOT_AUTHORIZED
    assert scene.bridges.sections == {}
    assert code_of(scene.commander(), NEW_BRIDGE, TEXT) == 0
    assert list(scene.bridges.sections) == ["north"]


def test_neither_outcome_nor_event_tells_a_password() -> None:
    scene = Scene(durable=True)
    commander = scene.commander()
    for text in (
        TEXT + SECRET,
        TEXT + SECRET,
        TEXT + SECRET + "remote_password again\n",
        TEXT + SECRET + "x\n",
    ):
        commander.publish(NEW_BRIDGE, text.encode(), 1)
    told = scene.take_results()
    assert len(told) == 4
    assert "sesame" not in json.dumps(told)
    assert "sesame" not in "".join(map(str, scene.commands.take_events()))
    assert "sesame" in scene.store.kept["bridges", "north"]


def test_each_command_is_an_event() -> None:
    scene = Scene()
    commander = scene.commander()
    command(commander, NEW_BRIDGE, TEXT)
    command(commander, DELETE_BRIDGE, "south")
    assert [str(event) for event in scene.commands.take_events()] == [
        "command new of bridge north: created",
        "command del of bridge south refused: there is no bridge south",
    ]
    assert scene.commands.take_events() == []


# The store


def test_a_bridge_is_stored_before_anyone_hears_of_it() -> None:
    scene = Scene(durable=True)
    commander = scene.commander()
    scene.commits = False
    commander.publish(NEW_BRIDGE, TEXT.encode(), 1)
    assert commander.take() == []
    assert scene.take_results() == []
    assert scene.commit()
    assert scene.store.kept == {("bridges", "north"): TEXT}
    scene.settle()
    assert commander.take_one(Puback).reason_code == 0
    assert scene.take_results() == [result("new", "north", True, "created")]


def test_what_is_refused_or_unchanged_is_told_in_its_turn() -> None:
    scene = Scene(durable=True)
    commander = scene.commander()
    scene.commits = False
    commander.publish(NEW_BRIDGE, TEXT.encode(), 1)
    commander.publish(DELETE_BRIDGE, b"south", 1)
    assert scene.take_results() == []
    scene.commit()
    scene.settle()
    assert [told["command"] for told in scene.take_results()] == ["new", "del"]
    commander.publish(DELETE_BRIDGE, b"south", 1)  # All is stored: nothing to wait for.
    assert [told["command"] for told in scene.take_results()] == ["del"]
    assert not scene.take_changes()


def test_commands_survive_a_restart() -> None:
    scene = Scene(durable=True)
    commander = scene.commander()
    for text in (TEXT + SECRET, TEXT.replace("north", "south"), TEXT.replace("1884", "7") + "replace true\n"):
        command(commander, NEW_BRIDGE, text)
    command(commander, DELETE_BRIDGE, "south")
    sections = scene.bridges.sections.copy()
    scene.restart()
    assert scene.bridges.sections == sections
    assert list(sections) == ["north"]


def test_a_command_that_changes_nothing_stores_nothing() -> None:
    """Otherwise a bridge of the configuration's files would outlive them."""
    scene = Scene(durable=True)
    scene.bridges.create(read_section(TEXT), scene.now)
    command(scene.commander(), NEW_BRIDGE, TEXT)
    assert scene.take_results() == [result("new", "north", True, "unchanged")]
    assert scene.store.kept == {}


def test_a_stored_bridge_that_cannot_be_made_is_told_and_can_be_deleted() -> None:
    scene = Scene(durable=True)
    scene.store.kept = {("bridges", "bad"): "connection bad\n", ("bridges", "north"): TEXT}
    scene.restart()
    assert list(scene.bridges.sections) == ["north"]
    (event,) = scene.commands.take_events()
    assert "bridge bad was not created again: line 1" in str(event)
    commander = scene.commander()
    command(commander, DELETE_BRIDGE, "bad")
    assert scene.take_results() == [result("del", "bad", True, "deleted")]
    assert scene.store.kept == {("bridges", "north"): TEXT}
    command(commander, DELETE_BRIDGE, "bad")
    assert scene.take_results()[0]["ok"] is False


def test_a_close_between_command_and_commit_says_nothing() -> None:
    scene = Scene(durable=True)
    scene.commits = False
    commander = scene.commander()
    commander.publish(NEW_BRIDGE, TEXT.encode(), 1)
    scene.commands.close()
    scene.commit()
    scene.settle()
    assert scene.take_results() == []
    commander.publish(NEW_BRIDGE, TEXT.encode(), 1)
    assert list(scene.bridges.sections) == ["north"]


# Live state


def test_states_are_retained_until_the_bridge_is_gone() -> None:
    scene = Scene(durable=True)
    topic = state_topic("north")
    watcher = scene.connect("watcher")
    watcher.subscribe("$SYS/broker/bridge/+/state", 1)
    scene.bridges.states = [("north", {"connection": "north", "state": "up"})]
    scene.commands.publish_states(scene.now)
    scene.settle()
    assert json.loads(watcher.take_payloads()[0]) == {"connection": "north", "state": "up"}
    late = scene.connect("late")
    late.subscribe(topic)
    assert late.take_one(Publish).retain
    assert scene.store.retained == {}  # It is that of a node that runs.
    scene.bridges.states = [("north", None)]
    scene.commands.publish_states(scene.now)
    scene.settle()
    assert watcher.take_payloads() == [b""]
    assert scene.broker.retained.get(topic) is None


# Who may command


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_without_an_acl_who_is_on_this_machine_may(address: str) -> None:
    assert code_of(Scene().commander(address), NEW_BRIDGE, TEXT) == 0


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "fe80::1%eth0"])
@pytest.mark.parametrize("topic", [NEW_BRIDGE, DELETE_BRIDGE])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_without_an_acl_a_stranger_may_not(address: str, topic: str, qos: int) -> None:
    scene = Scene()
    scene.bridges.create(read_section(TEXT), scene.now)
    stranger = scene.commander(address)
    stranger.publish(topic, b"north" if topic == DELETE_BRIDGE else TEXT.replace("north", "a").encode(), qos)
    codes = [packet.reason_code for packet in stranger.take() if isinstance(packet, Puback | Pubrec)]
    assert codes == [Reason.NOT_AUTHORIZED] * (qos > 0)
    assert list(scene.bridges.sections) == ["north"]
    assert scene.take_results() == []


def test_an_administrator_may_from_anywhere_whatever_the_acl_says() -> None:
    acl = Acl.parse("user anna\ntopic deny $SYS/#\n", "acl")
    scene = Scene(access=Access(acl), verifies_passwords=True)
    scene.broker.administrators = frozenset({"anna"})
    anna = scene.commander("192.0.2.1", username="anna", password=b"x")
    assert code_of(anna, NEW_BRIDGE, TEXT) == 0


@pytest.mark.parametrize("rules", ["user bob\ntopic readwrite b/#", "user anna\ntopic deny $SYS/#"])
def test_an_administrator_hears_outcomes_and_states_whatever_the_acl_says(rules: str) -> None:
    scene = Scene(access=Access(Acl.parse(rules, "acl")), verifies_passwords=True)
    scene.broker.administrators = frozenset({"anna"})
    anna = scene.commander("192.0.2.1", username="anna", password=b"x")
    for topic in RESULT, "b/secret":
        anna.send(Subscribe(1, [Subscription(topic, 1)]))
        (answer,) = anna.take()
        assert isinstance(answer, Suback)
        assert answer.reason_codes == [1 if topic == RESULT else Reason.NOT_AUTHORIZED]
    code, (heard,) = command(anna, NEW_BRIDGE, TEXT)
    assert (code, heard.topic, json.loads(heard.payload)["ok"]) == (0, RESULT, True)
    scene.bridges.states.append(("north", {"state": "up"}))
    scene.commands.publish_states(scene.now)
    anna.send(Subscribe(1, [Subscription(state_topic("+"), 1)]))
    assert state_topic("north") in [each.topic for each in anna.take() if isinstance(each, Publish)]
    scene.broker.administrators = frozenset()
    scene.broker.set_access(scene.broker.access)
    scene.bridges.states.append(("north", {"state": "waiting"}))
    scene.commands.publish_states(scene.now)
    assert anna.take() == []


@pytest.mark.parametrize("username", ["bob", None])
def test_where_there_are_administrators_nobody_else_on_this_machine_may(username: str | None) -> None:
    scene = Scene(verifies_passwords=True)
    scene.broker.administrators = frozenset({"anna"})
    login = {} if username is None else {"username": username, "password": b"x"}
    assert code_of(scene.commander(HOME, **login), NEW_BRIDGE, TEXT) == Reason.NOT_AUTHORIZED
    assert scene.bridges.sections == {}


def test_a_user_name_that_nobody_verified_is_no_administrator() -> None:
    scene = Scene()
    scene.broker.administrators = frozenset({"anna"})
    anna = scene.commander("192.0.2.1", username="anna")
    assert code_of(anna, NEW_BRIDGE, TEXT) == Reason.NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        (f"topic write {NEW_BRIDGE}", 0),
        ("topic readwrite $SYS/broker/bridge/#", 0),
        ("pattern write $SYS/broker/bridge/+", 0),
        ("topic readwrite #", Reason.NOT_AUTHORIZED),
        (f"topic read {NEW_BRIDGE}", Reason.NOT_AUTHORIZED),
        ("user bob\ntopic readwrite $SYS/broker/bridge/#", Reason.NOT_AUTHORIZED),
    ],
)
@pytest.mark.parametrize("address", [HOME, "192.0.2.1"])
def test_with_an_acl_who_is_granted_it_may(rules: str, code: int, address: str) -> None:
    scene = Scene(access=Access(Acl.parse(rules, "acl")))
    assert code_of(scene.commander(address), NEW_BRIDGE, TEXT) == code
    assert len(scene.bridges.sections) == (code == 0)


def test_a_command_with_retain_is_refused() -> None:
    scene = Scene()
    commander = scene.commander()
    commander.publish(NEW_BRIDGE, TEXT.encode(), 1, retain=True)
    assert commander.take_one(Puback).reason_code == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert scene.bridges.sections == {}
    assert scene.broker.retained.get(NEW_BRIDGE) is None


def test_a_command_that_is_retained_all_the_same_is_not_carried_out() -> None:
    scene = Scene()
    Port(scene.broker, "elsewhere", lambda message: None).publish(Message(NEW_BRIDGE, TEXT.encode(), 1, True))
    scene.settle()
    assert scene.bridges.sections == {}
    assert scene.take_results() == [result("new", None, False, "a command is not retained")]


def test_a_will_is_no_command() -> None:
    scene = Scene(verifies_passwords=True)
    scene.broker.administrators = frozenset({"anna"})
    will = Will(NEW_BRIDGE, TEXT.encode(), 1, True)
    scene.commander(username="anna", password=b"x", will=will).lose()
    assert scene.bridges.sections == {}
    assert scene.broker.retained.get(NEW_BRIDGE) is None


def test_clients_before_mqtt_5_command_too() -> None:
    scene = Scene()
    commander = scene.open(HOME)
    commander.send(Connect("old", MQTT_3_1_1))
    commander.take()
    commander.send(Subscribe(1, [Subscription(RESULT, 1)]))
    assert isinstance(commander.take()[0], Suback)
    commander.publish(NEW_BRIDGE, TEXT.encode())
    assert json.loads(commander.take_payloads()[0])["ok"] is True


@pytest.mark.parametrize("topic", [RESULT, state_topic("north")])
def test_nobody_else_speaks_for_the_bridges(topic: str) -> None:
    scene = Scene()
    assert code_of(scene.commander(), topic, "{}") == Reason.NOT_AUTHORIZED
