"""The ACL, as a table of questions whose answers real Mosquitto gives too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.broker.access import READ, WRITE, Access, Acl, UserGroups
from hedgerow.errors import ConfigError
from hedgerow.mqtt.packets import (
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from tests.conftest import StartMosquitto
from tests.node.peers import RawClient, connected

ACL = """\
# anonymous clients
topic read public/#
topic public/+/chat
topic deny public/secret

user alice
topic readwrite house/#
topic deny house/safe/#
topic read house/safe/open
topic write own/alice
topic read own/alice
topic write write/only
topic read read/only
topic readwrite with blanks/in it
topic deny guarded/alice
topic %u/literal
topic +/first
topic $other/alice

user bob smith
topic   readwrite    bob/#

user alice
topic write again/alice

user dave
topic readwrite shared/granted
topic deny shared/denied

pattern read guarded/+
pattern readwrite users/%u/#
pattern write clients/%c/data
pattern read both/%u/%c
pattern readwrite part/x-%c-y
pattern readwrite %c/inbox
pattern deny users/%u/private
pattern deny shared/granted
pattern readwrite shared/#
"""


@dataclass(frozen=True)
class Question:
    username: str | None
    client_id: str
    access: str  # "r", "w", "rw": the accesses that must be granted; all others must be refused
    topic: str
    mosquitto: str | None = None  # its answer, where it differs from ours on purpose


QUESTIONS = [
    Question(None, "a1", "r", "public/news"),
    Question(None, "a1", "r", "public"),
    Question(None, "a1", "rw", "public/room/chat"),
    Question(None, "a1", "", "public/secret"),
    Question(None, "a1", "", "house/lamp"),
    Question(None, "a1", "w", "clients/a1/data"),
    Question(None, "a1", "", "clients/a2/data"),
    Question(None, "a1", "", "users/%u/x"),
    Question(None, "a1", "rw", "a1/inbox"),
    Question("alice", "c1", "", "public/news"),
    Question("alice", "c1", "rw", "house"),
    Question("alice", "c1", "rw", "house/lamp"),
    Question("alice", "c1", "", "house/safe"),
    Question("alice", "c1", "", "house/safe/open"),
    Question("alice", "c1", "rw", "own/alice"),
    Question("alice", "c1", "w", "write/only"),
    Question("alice", "c1", "r", "read/only"),
    Question("alice", "c1", "rw", "with blanks/in it"),
    Question("alice", "c1", "", "guarded/alice"),
    Question("alice", "c1", "r", "guarded/bob"),
    Question("alice", "c1", "rw", "%u/literal"),
    Question("alice", "c1", "", "alice/literal"),
    Question("alice", "c1", "rw", "x/first"),
    Question("alice", "c1", "rw", "$other/alice"),
    Question("alice", "c1", "", "$other/first"),
    Question("alice", "c1", "w", "again/alice"),
    Question("alice", "c1", "rw", "users/alice"),
    Question("alice", "c1", "rw", "users/alice/deep/er"),
    Question("alice", "c1", "", "users/alice/private"),
    Question("alice", "c1", "", "users/bob/x"),
    Question("alice", "c1", "r", "both/alice/c1"),
    Question("alice", "c1", "", "both/c1/alice"),
    Question("alice", "c1", "rw", "part/x-c1-y"),
    Question("alice", "c1", "", "part/x-c2-y"),
    Question("alice", "c1", "rw", "shared/topic"),
    Question("alice", "c1", "", "shared/granted"),
    Question("dave", "d1", "rw", "shared/granted"),
    Question("dave", "d1", "", "shared/denied"),
    Question("bob smith", "b1", "rw", "bob/x"),
    Question("bob smith", "b1", "rw", "users/bob smith/x"),
    Question("stranger", "s1", "rw", "users/stranger/x"),
    Question("stranger", "s1", "", "public/news"),
    # Names are put in once: what they contain is not a substitution of its own.
    Question("%c", "c9", "rw", "users/%c/x"),
    Question("%c", "c9", "", "users/c9/x"),
    # Names that would widen what a pattern grants.
    Question("+", "c1", "", "users/alice/x"),
    Question("alice", "+", "", "clients/a1/data"),
    Question("alice", "#", "", "clients/a1/data"),
    Question("alice", "+", "rw", "house/lamp"),
    Question("alice", "+", "", "shared/topic"),
    Question("a/b", "c1", "", "users/a/b/x", mosquitto="rw"),
    Question("a", "c1", "rw", "users/a/b/x"),
    Question("alice", "c1/data", "", "clients/c1/data/data", mosquitto="w"),
    Question("alice", "a/b", "rw", "house/lamp"),
    Question("stranger", "$other", "", "$other/inbox", mosquitto="rw"),
]


@pytest.fixture(scope="module")
def access() -> Access:
    return Access(Acl.parse(ACL, "acl"))


def granted(access: Access, question: Question) -> str:
    asked = (question.username, question.client_id, question.topic)
    return "r" * access.may_read(*asked) + "w" * access.may_write(*asked)


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_rights(access: Access, question: Question) -> None:
    assert granted(access, question) == question.access


async def test_mosquitto_gives_the_same_rights(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text(f"{ACL}\nuser oracle\ntopic readwrite #\ntopic readwrite $other/#\n")
    port = mosquitto(f"acl_file {acl}")
    answers = {}
    async with connected(port, "oracle", username="oracle") as oracle:
        for question in QUESTIONS:
            async with connected(port, question.client_id, username=question.username) as client:
                client.send(Subscribe(1, [Subscription("#"), Subscription("$other/#")]))
                assert isinstance(await client.receive(), Suback)
                reads = await may_read(client, oracle, question.topic)
                writes = await may_write(client, question.topic)
                answers[question] = "r" * reads + "w" * writes
    expected = {q: q.access if q.mosquitto is None else q.mosquitto for q in QUESTIONS}
    assert answers == expected


def test_without_an_acl_everything_is_allowed() -> None:
    assert Access().may_read(None, "c", "$SYS/x")
    assert Access().may_write("u", "+", "any/topic")


def test_an_empty_acl_allows_nothing() -> None:
    access = Access(Acl.parse("# nothing\n\n", "acl"))
    assert not access.may_read(None, "c", "x")
    assert not access.may_write("u", "c", "x")


names = st.text("ab/+#$%uc", max_size=3)


@given(username=names, client_id=names, level=names)
def test_a_name_stands_for_one_level_and_nothing_else(username: str, client_id: str, level: str) -> None:
    access = Access(Acl.parse("pattern users/%u/x\npattern %c/#\n", "acl"))
    for topic in (f"users/{level}/x", f"{level}/x", level):
        if access.may_read(username, client_id, topic):
            levels = topic.split("/")
            assert levels == ["users", username, "x"] or levels[0] == client_id
            assert not topic.startswith("$")


def test_blanks_beyond_ascii_belong_to_the_topic() -> None:
    access = Access(Acl.parse("topic read a\u2028b\r\ntopic\tdeny\t a\tb \ntopic read a\tb\n", "acl"))
    assert access.may_read(None, "c", "a\u2028b")
    assert not access.may_read(None, "c", "a\tb")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("topic read a\ntopc read b", 'acl:2: "topc" is none of user, group, member, topic, pattern'),
        ("\n\nuser", 'acl:3: "user" needs a name'),
        ("topic  ", 'acl:1: "topic" needs a topic filter'),
        ("pattern", 'acl:1: "pattern" needs a topic filter'),
        ("topic raed a/b", 'acl:1: "raed" is none of read, write, readwrite, deny'),
        ("topic deny", 'acl:1: no topic filter after "deny" (a topic of that name: topic readwrite deny)'),
        ("topic a/#/b", "acl:1: '#' is not alone in the last level of 'a/#/b' [MQTT-4.7.1-1]"),
        ("pattern read a/%u+", "acl:1: '+' shares a level in 'a/%u+' [MQTT-4.7.1-2]"),
    ],
)
def test_errors_name_line_word_and_reason(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Acl.parse(text, "acl")
    assert str(raised.value) == error


def test_hundreds_of_rules_are_not_asked_one_by_one() -> None:
    rules = "".join(f"topic read site/{i}/+/x\npattern write site/{i}/%u/%c\n" for i in range(1_000))
    many, few = Acl.parse(rules, "acl"), Acl.parse("topic read site/1/+/x\npattern write site/1/%u/%c", "acl")

    def cost(acl: Acl) -> int:
        assert acl.allows("u", "c", "site/1/u/c", WRITE)
        assert acl.allows(None, "c", "site/1/z/x", READ)
        return acl.visited

    assert cost(many) == cost(few)


async def may_write(client: RawClient, topic: str) -> bool:
    client.send(Publish(topic, b"", qos=1, packet_id=1))
    answer = await client.receive()
    while isinstance(answer, Publish):  # its own, if it may read there
        answer = await client.receive()
    assert isinstance(answer, Puback)
    return answer.reason_code != Reason.NOT_AUTHORIZED


async def may_read(client: RawClient, oracle: RawClient, topic: str) -> bool:
    """What is published before the PINGREQ is delivered before the PINGRESP, if at all."""
    assert await may_write(oracle, topic)
    client.send(Pingreq())
    answer = await client.receive()
    if isinstance(answer, Pingresp):
        return False
    assert isinstance(answer, Publish)
    assert answer.topic == topic
    assert isinstance(await client.receive(), Pingresp)
    return True


GROUPS = """
topic read public/#

group cowherds
member bob
topic readwrite cows/#
topic deny cows/bull

user bob
topic read cows/bull

group vets
member bob
topic read sheep/#
topic write cows/vet
pattern read inbox/%u
"""


def test_groups_come_after_the_user_and_before_patterns() -> None:
    acl = Acl.parse(GROUPS, "acl")
    memberships = UserGroups()
    access = Access(acl, memberships)
    assert access.may_write("bob", "c", "cows/7")
    assert access.may_read("bob", "c", "cows/bull")  # by a line of its own
    assert not access.may_write("bob", "c", "cows/bull")
    assert access.may_read("bob", "c", "sheep/1")
    assert access.may_read("bob", "c", "inbox/bob")
    assert not access.may_read(
        "bob", "c", "public/x"
    )  # what stands before any user is for those without a name
    assert not access.may_read("eve", "c", "cows/7")
    assert not access.may_read(None, "c", "cows/7")
    assert memberships.set("eve", frozenset({"cowherds", "unknown"}))
    assert not memberships.set("eve", frozenset({"cowherds", "unknown"}))
    assert access.may_write("eve", "c", "cows/7")
    assert not access.may_write("eve", "c", "cows/bull")
    assert not access.may_read("eve", "c", "sheep/1")
    memberships.set("eve", frozenset())
    assert not access.may_write("eve", "c", "cows/7")
    assert len(memberships) == 0


@pytest.mark.parametrize("text", ["member bob", "group", "group a\nmember", "group a\nuser b\nmember c"])
def test_wrong_groups_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Acl.parse(text, "acl")
