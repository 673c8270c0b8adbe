"""A fixed broker among people who lie: about who they are, whom they speak for, and in what words.

Whatever they say is refused, counted and logged with their name; what is made up reaches nobody; and the
mobile broker and the clients beside them lose nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import hedgerow
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.bloom import CountingBloomFilter
from hedgerow.mobility.delegation.publications import (
    EmptyBody,
    EventBody,
    Filters,
    Members,
    PublicationKind,
    Registration,
    Registrations,
    Serving,
    Unsubscription,
)
from hedgerow.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.eventlog import MAX_WARNINGS
from hedgerow.node.passwords import set_password
from tests.conftest import StartNode
from tests.faults.client import PersistentClient, running
from tests.faults.rogue import (
    DOMAIN,
    Rogue,
    bystanders,
    connect_packet,
    metric,
    rogue_at,
    start_tower,
    start_tractor,
    until_metric,
)
from tests.faults.witness import resident_bytes
from tests.node.peers import connected, raw_client
from tests.programs import Node
from tests.waiting import PATIENCE_S, until

MIB = 1024 * 1024
STAY = "--no-move-clients"
REFUSED = "hedgerow_mobility_refused_total"
UNKNOWN = "hedgerow_mobility_unknown_callbacks_total"
MAX_REGISTRATIONS_BYTES = 96 * MIB  # some 25 MiB as measured
NOT_ITS_OWN = "a callback that is not its own"

RULES = """
topic readwrite soil/#
topic readwrite farm/#
topic readwrite secret/#
user tractor
topic readwrite soil/#
topic write farm/sector1/tractor/#
topic write $hedgerow/bridge
user bridge
topic readwrite soil/#
topic write $hedgerow/bridge
"""


def users(folder: Path, *names: str) -> list[str]:
    passwords = folder / "passwords"
    for name in names:
        set_password(passwords, name, b"secret", create=not passwords.exists())
    return ["--passwords", str(passwords)]


# Who may be a mobile broker


async def refused_as(tower: Node, name: str, username: str | None = None) -> None:
    async with raw_client(tower.port()) as client:
        password = b"secret" if username is not None else None
        client.send(connect_packet(name, username, password))
        answer = await client.receive()
        assert isinstance(answer, Connack)
        assert answer.reason_code == Reason.NOT_AUTHORIZED
        assert await client.closed()


async def test_who_is_not_on_the_list_is_no_mobile_broker(hedgerow_node: StartNode) -> None:
    tower = start_tower(hedgerow_node, "--allow-mobile", "tractor")
    tractor = start_tractor(hedgerow_node, tower, STAY)
    async with bystanders(tower, tractor) as those:
        for name in ("rogue", "tower", "a" * 300, "../tractor", "tractor/#"):
            await refused_as(tower, name)
        await until_metric(tower, "hedgerow_connections_refused_total", 5)
        await until_metric(tower, REFUSED, 1)
        assert f"'rogue' is refused '{DOMAIN}/rogue/delegate': it may not delegate here" in tower.log
        await those.hear()


async def test_the_acl_says_who_delegates_and_in_whose_name(hedgerow_node: StartNode, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text(RULES)
    tower = start_tower(
        hedgerow_node, "--acl", str(rules), "--anonymous", *users(tmp_path, "tractor", "bridge")
    )
    tractor = start_tractor(hedgerow_node, tower, STAY, login="tractor:secret@")
    async with bystanders(tower, tractor) as those:
        await refused_as(tower, "rogue")  # nobody
        await refused_as(tower, "rogue", "bridge")  # a broker, which may not delegate
        await refused_as(tower, "tractor", "bridge")  # in the name of one who is here
        await refused_as(tower, "tractor")
        for reason in (
            "no mobile broker without the right to write $hedgerow/bridge",
            f"no right to delegate: {DOMAIN}/rogue/delegate",
            "the session of 'hedgerow-mobile-tractor' belongs to another user",
        ):
            await until(lambda text=reason: text in tower.log, reason)  # type: ignore[misc]
        await those.hear()


async def test_a_mobile_broker_has_the_rights_of_its_user_and_no_more(
    hedgerow_node: StartNode, tmp_path: Path
) -> None:
    """Its clients share what its own ACL lets them, and get of others what the fixed broker lets it have."""
    rules = tmp_path / "acl"
    rules.write_text(RULES)
    tower = start_tower(
        hedgerow_node, "--acl", str(rules), "--anonymous", *users(tmp_path, "tractor", "bridge")
    )
    tractor = start_tractor(hedgerow_node, tower, STAY, login="tractor:secret@")
    wanted = (("secret/#", 1), ("soil/end", 1))
    listeners = [PersistentClient(node.port(), "spy", subscriptions=wanted) for node in (tower, tractor)]
    speakers = [PersistentClient(node.port(), "speaker") for node in (tower, tractor)]
    async with running(*listeners, *speakers):
        await until(lambda: all(each.is_connected for each in (*listeners, *speakers)), "the clients")
        async with asyncio.timeout(PATIENCE_S):
            while "'secret/#' is delegated" not in tractor.log:  # which takes an event
                speakers[1].publish("secret/0", b"", 1)
                await asyncio.sleep(0.05)
        speakers[0].publish("secret/1", b"of the tower", 1, retain=True)
        speakers[1].publish("secret/1", b"of the tractor", 1)
        for speaker in speakers:
            speaker.publish("soil/end", b"", 1)
        await until(lambda: all(len(each.arrived["soil/end"]) == 2 for each in listeners), "the end")
        await until(lambda: all(each.arrived["secret/1"] for each in listeners), "what each may have")
        assert [each.arrived["secret/1"] for each in listeners] == [[b"of the tower"], [b"of the tractor"]]
    refusal = "'tractor' is refused 'secret/0': no right to publish to 'secret/0'"
    assert refusal in tower.log


# What a mobile broker may say


def registrations(topic_filter: str, *callbacks: str) -> Registrations:
    return Registrations((Registration(topic_filter, tuple((each, 1) for each in callbacks)),))


def event(topic: str, *callbacks: str) -> EventBody:
    message = Message(topic, b"made up", 1, id=MessageId("rogue", 1, 1))
    return EventBody(message, tuple((each, 1) for each in callbacks))


def damaged_filter(rogue: Rogue) -> Message:
    members = CountingBloomFilter(4)
    members.add("aa@rogue")
    wanted = Registrations((Registration("soil/#", (), (Members(1, members, ()),)),))
    publication = rogue.write(PublicationKind.DELEGATE, wanted)
    encoded = members.encode()
    publication.payload = publication.payload.replace(encoded, b"\x09" + encoded[1:])
    return publication


def renamed(old: str, new: str) -> Callable[[Rogue], Message]:
    """A name that `write` would not write."""
    assert len(old) == len(new)

    def make(rogue: Rogue) -> Message:
        publication = rogue.write(PublicationKind.DELEGATE, registrations("soil/#", old))
        publication.payload = publication.payload.replace(old.encode(), new.encode())
        return publication

    return make


def cut(rogue: Rogue) -> Message:
    publication = rogue.write(PublicationKind.DELEGATE, registrations("soil/#", "@rogue"))
    publication.payload = publication.payload[:-1]
    return publication


def empty(rogue: Rogue) -> Message:
    return Message("", b"")


# Topic, what makes the payload, and what the log says of it.
BROKEN: list[tuple[str, Callable[[Rogue], Message], str]] = [
    (
        f"{DOMAIN}/tractor/delegate/unsubscription/all",
        lambda rogue: rogue.write(PublicationKind.UNSUBSCRIPTION_ALL, EmptyBody()),
        "in the name of another broker",
    ),
    (f"{DOMAIN}/tractor/delegate/deactivate/no", empty, "in the name of another broker"),
    (f"{DOMAIN}/rogue/harvest", empty, "no coordination topic"),
    (f"{DOMAIN}/rogue/delegate", damaged_filter, "version 9 of a filter"),
    (f"{DOMAIN}/rogue/delegate", renamed("cc@rogue", "soil:188"), "'soil:188' is no address"),
    (f"{DOMAIN}/rogue/delegate", renamed("cc@rogue", "cc@a/b#c"), "cannot be a broker id"),
    (f"{DOMAIN}/rogue/delegate", empty, "no number in a stream"),
    (
        f"{DOMAIN}/rogue/recover",
        lambda rogue: rogue.write(PublicationKind.RECOVER, Filters(("soil/#",) * 1_000)),
        "more than 500 topics at a time",
    ),
    (
        f"{DOMAIN}/rogue/delegate",
        cut,
        "refused",
    ),
    (
        f"{DOMAIN}/rogue/delegate",
        lambda rogue: rogue.write(PublicationKind.DELEGATE, registrations("$SYS/#", "@rogue")),
        "a topic that is not for others",
    ),
    (
        "soil/1",
        lambda rogue: rogue.write(PublicationKind.NOTIFY, event("soil/1", "listener@tractor")),
        "NOTIFY is for a fixed broker to write",
    ),
]

# Well said, and next in the stream.
PRESUMPTUOUS: list[tuple[PublicationKind, Registrations | EventBody | Serving, str]] = [
    (PublicationKind.DELEGATE, registrations("soil/#", "listener@tractor"), NOT_ITS_OWN),
    (PublicationKind.DELEGATE, registrations("soil/#", "@tractor"), NOT_ITS_OWN),
    (
        PublicationKind.DELEGATE,
        registrations("$hedgerow/plan/tractor", "@rogue"),
        "a plan that is not its own",
    ),
    (PublicationKind.EVENT, event("weeds/1", "listener@tractor"), NOT_ITS_OWN),
    (PublicationKind.EVENT, event("$hedgerow/plan/tractor"), "a plan comes from elsewhere"),
    (PublicationKind.SERVING, Serving("listener@tractor", True), NOT_ITS_OWN),
    (PublicationKind.SERVING, Serving("listener@tractor", False), NOT_ITS_OWN),
    (PublicationKind.SERVING, Serving("speaker@rogue", False), "another 'speaker' is here"),
]


@pytest.mark.parametrize("broken", [BROKEN[:MAX_WARNINGS], BROKEN[MAX_WARNINGS:]])
async def test_words_that_break_a_rule_are_refused(
    hedgerow_node: StartNode, broken: list[tuple[str, Callable[[Rogue], Message], str]]
) -> None:
    tower = start_tower(hedgerow_node)
    tractor = start_tractor(hedgerow_node, tower, STAY)
    async with bystanders(tower, tractor) as those, rogue_at(tower) as rogue:
        for count, (topic, make, why) in enumerate(broken, 1):
            publication = make(rogue)
            publication.topic = topic
            rogue.publish(publication)
            await until_metric(tower, REFUSED, count)
            assert any(
                f"'rogue' is refused '{topic}'" in line and why in line for line in tower.log.splitlines()
            ), (topic, why, tower.log)
        assert not rogue.stream.process.received
        await those.hear()
    assert "refused" not in tractor.log


async def test_words_that_claim_what_is_not_theirs_are_refused(hedgerow_node: StartNode) -> None:
    tower = start_tower(hedgerow_node)
    tractor = start_tractor(hedgerow_node, tower, STAY)
    async with bystanders(tower, tractor) as those, rogue_at(tower) as rogue:
        for kind, body, why in PRESUMPTUOUS:
            rogue.say(kind, body)
            topic = body.message.topic if isinstance(body, EventBody) else rogue_topic(kind)
            await until(lambda: rogue.is_heard, "the answer")
            await until(
                lambda t=topic, w=why: any(  # type: ignore[misc]
                    f"'rogue' is refused '{t}': {w}" in line for line in tower.log.splitlines()
                ),
                why,
            )
        assert await metric(tower, UNKNOWN) == 4
        # A topic that he may not delegate is his to match, as any subscriber's.
        heard = {body.message.topic for kind, body in rogue.heard if isinstance(body, EventBody)}
        assert heard <= {"soil/0", "soil/1"}
        assert (PublicationKind.SERVING, Serving("speaker@rogue", False)) in rogue.heard
        await those.hear()
        assert not those.listener.arrived["weeds/1"]
    assert "refused" not in tractor.log


@pytest.mark.parametrize(
    ("topic", "why"), [("farm/sector2/rogue/delegate", "another domain"), ("soil/1", "no coordination topic")]
)
async def test_who_is_of_another_domain_is_shown_the_door(
    hedgerow_node: StartNode, topic: str, why: str
) -> None:
    tower = start_tower(hedgerow_node)
    async with rogue_at(tower) as rogue, connected(tower.port(), "listener") as listener:
        listener.send(Subscribe(1, [Subscription("#", 0)]))
        assert isinstance(await listener.receive(), Suback)
        publication = rogue.write(PublicationKind.DELEGATE, registrations("soil/#", "@rogue"))
        publication.topic = topic
        rogue.publish(publication)
        await until_metric(tower, REFUSED, 1)
        await until(lambda: "client hedgerow-mobile-rogue disconnected" in tower.log, "the end of the link")
        listener.send(Publish("end", b"", 1, packet_id=1))
        heard = [await listener.receive(), await listener.receive()]
        assert {each.topic for each in heard if isinstance(each, Publish)} == {"end"}
    assert f"'rogue' is refused '{topic}': {why}" in tower.log


def rogue_topic(kind: PublicationKind) -> str:
    actions = {PublicationKind.DELEGATE: "delegate", PublicationKind.SERVING: "serving"}
    return f"{DOMAIN}/rogue/{actions[kind]}"


async def test_an_invented_address_gets_nothing(hedgerow_node: StartNode) -> None:
    """Not even a connection; nor does a client here whose address is named, since it asked for nothing."""
    tower = start_tower(hedgerow_node)
    connections: list[object] = []
    trap = await asyncio.start_server(lambda *pair: connections.append(pair), "127.0.0.1", 0)
    async with trap, connected(tower.port(), "victim") as victim, rogue_at(tower) as rogue:
        places = [
            "{}:{}".format(*trap.sockets[0].getsockname()[:2]),
            "{}:{}".format(*victim.writer.get_extra_info("sockname")[:2]),
        ]
        for place in (*places, "victim@rogue"):
            addresses.validate(place)
            rogue.say(PublicationKind.DELEGATE, registrations("soil/#", place))
            rogue.say(PublicationKind.EVENT, event("weeds/1", place))
        await until(lambda: rogue.is_heard, "the answers")
        async with connected(tower.port(), "speaker") as speaker:
            speaker.send(Publish("soil/1", b"31", 1, packet_id=1))
            assert isinstance(await speaker.receive(), Puback)
        # What is for "victim@rogue" is for the client of that name at the mobile broker, and goes there.
        await until(lambda: any(kind == PublicationKind.NOTIFY for kind, _ in rogue.heard), "its own events")
        await until_metric(tower, UNKNOWN, 2)
        victim.send(Subscribe(1, [Subscription("end", 1)]))
        assert isinstance(await victim.receive(), Suback), "the victim heard something"
        assert not connections
        assert tower.log.count(NOT_ITS_OWN) >= 4


# More than anyone should say


async def test_random_bytes_cost_nobody_anything(hedgerow_node: StartNode) -> None:
    tower = start_tower(hedgerow_node)
    tractor = start_tractor(hedgerow_node, tower, STAY)
    chance = random.Random("bytes")
    actions = ["delegate", "event", "serving", "recover", "hello", "acknowledge", "delegate/deactivate/all"]
    async with bystanders(tower, tractor) as those, rogue_at(tower) as rogue:
        whole = [
            rogue.write(PublicationKind.DELEGATE, registrations("soil/#", "a@rogue", "b@rogue")),
            rogue.write(PublicationKind.EVENT, event("weeds/1", "a@rogue")),
            rogue.write(PublicationKind.SERVING, Serving("a@rogue", False)),
            rogue.write(PublicationKind.UNSUBSCRIPTION_SINGLE, Unsubscription("soil/#", "a@rogue")),
        ]
        before = resident_bytes(tower)
        stop_at = asyncio.get_running_loop().time() + 1.0
        sent = 0
        while asyncio.get_running_loop().time() < stop_at:
            for _ in range(20):
                topic = f"{DOMAIN}/rogue/{chance.choice(actions)}"
                if chance.random() < 0.5:
                    size = chance.choice([1, 45, 46, 47, 60, 500, 20_000])
                    rogue.publish(Message(topic, chance.randbytes(size)))
                else:
                    one = chance.choice(whole)
                    damaged = bytearray(one.payload)
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
                    payload = bytes(damaged[: chance.randrange(1, len(damaged) + 1)])
                    rogue.publish(Message(topic, payload, properties=one.properties))
                sent += 1
            await rogue.drain()
            await asyncio.sleep(0)
        await until_metric(tower, REFUSED, sent / 2)
        await those.hear()
        assert resident_bytes(tower) - before < 32 * MIB
        assert tower.log.count("'rogue' is refused") <= 31  # and the rest is counted


async def test_registrations_have_a_bound(hedgerow_node: StartNode) -> None:
    """Of 100,000; they take memory within a bound and nobody waits for them."""
    tower = start_tower(hedgerow_node)
    tractor = start_tractor(hedgerow_node, tower, STAY)
    many = tuple((f"{number}@rogue", 1) for number in range(4_000))
    rows = [
        Registrations(tuple(Registration(f"weeds/{first + each}", (("@rogue", 1),)) for each in range(500)))
        for first in range(0, 5_000, 500)
    ]
    rows += [Registrations((Registration(f"crop/{number}", many),)) for number in range(24)]
    async with bystanders(tower, tractor) as those:
        before = resident_bytes(tower)
        async with rogue_at(tower) as rogue:
            for row in rows:
                rogue.say(PublicationKind.DELEGATE, row)
                await rogue.drain()
                await asyncio.sleep(0)
            await until(lambda: rogue.is_heard, "all to be handled")
            assert await metric(tower, REFUSED) == 1
            assert f"'rogue' is refused '{DOMAIN}/rogue/delegate': too many subscribers" in tower.log
            assert resident_bytes(tower) - before < MAX_REGISTRATIONS_BYTES
            await those.hear()
            rogue.say(PublicationKind.UNSUBSCRIPTION_ALL, EmptyBody())
            await until(lambda: rogue.is_heard, "the farewell")
            await those.hear()


# Ordinary clients


FORGED = [
    (f"{DOMAIN}/tractor/delegate", b""),
    (f"{DOMAIN}/stranger/delegate", b""),
    (f"{DOMAIN}/tractor/delegate/deactivate/all", b""),
    (f"{DOMAIN}/tractor/event", b"\x01\x0b" + bytes(45)),
    (f"{DOMAIN}/tower/notify", b"\x01\x0c" + bytes(45)),
    (f"{DOMAIN}/tower/hello", b"\x01\x01" + b"\xff" * 44 + bytes(16)),
]
GATE = f"{DOMAIN}/gate/event"  # Under the same domain there may be others' topics, with any last word.


async def forge(node: Node) -> None:
    """Be refused, whether or not it is to wait for the mobile broker's next subscription."""
    async with connected(node.port(), "forger") as forger:
        for topic, payload in FORGED:
            forger.send(Publish(topic, payload), Publish(topic, payload, 1, retain=True, packet_id=1))
            answer = await forger.receive()
            assert isinstance(answer, Puback)
            assert answer.reason_code == Reason.NOT_AUTHORIZED
        forger.send(Publish(GATE, b"open", 1, packet_id=1))
        answer = await forger.receive()
        assert isinstance(answer, Puback)
        assert answer.reason_code < Reason.UNSPECIFIED_ERROR
    await until_metric(node, "hedgerow_messages_refused_total", 2 * len(FORGED))
    refusals = [line for line in node.log.splitlines() if f"{DOMAIN}/tractor/delegate" in line]
    assert "forger" in refusals[0]


async def test_clients_neither_write_nor_read_what_brokers_write(hedgerow_node: StartNode) -> None:
    tower = start_tower(hedgerow_node)
    tractor = start_tractor(hedgerow_node, tower, STAY)
    wanted = (("#", 0), (f"{DOMAIN}/#", 1))
    curious = [PersistentClient(node.port(), "curious", subscriptions=wanted) for node in (tower, tractor)]
    async with running(*curious), bystanders(tower, tractor) as those:
        await until(lambda: all(each.is_connected for each in curious), "the curious ones")
        for node in (tower, tractor):
            await forge(node)
        await those.hear()
        await until(lambda: all(len(set(each.arrived[GATE])) for each in curious), "what is for everyone")
        for each in curious:
            assert {topic for topic in each.arrived if topic.startswith(DOMAIN)} == {GATE}
    assert await metric(tractor, REFUSED) == 0
    assert await metric(tractor, "hedgerow_mobility_ignored_total") == 0


async def test_the_name_of_the_link_is_not_for_clients(hedgerow_node: StartNode) -> None:
    """Nor for one that had it before: what it had asked for would be sent to the fixed broker as it is."""
    tower = start_tower(hedgerow_node)
    tower.stop()
    words = ("--id", "tractor", "--role", "mobile", "--domain", DOMAIN, "--http", "127.0.0.1:0", STAY)
    fixed = f"mqtt://127.0.0.1:{tower.port()}"
    tractor = hedgerow_node(*words, "--fixed", fixed, "--hot-every", "50 ms", "--hot-share", "0")
    async with connected(tractor.port(), "hedgerow-fixed-tower") as squatter:
        squatter.send(Subscribe(1, [Subscription("#", 1)]))
        assert isinstance(await squatter.receive(), Suback)
        tower.start()
        answer = await squatter.receive()
        assert isinstance(answer, Disconnect)
        assert answer.reason_code == Reason.SESSION_TAKEN_OVER
    await until(lambda: "supports this broker" in tractor.log, "the link")
    async with bystanders(tower, tractor) as those, raw_client(tractor.port()) as squatter:
        squatter.send(Connect("hedgerow-fixed-tower"))
        refusal = await squatter.receive()
        assert isinstance(refusal, Connack)
        assert refusal.reason_code == Reason.CLIENT_IDENTIFIER_NOT_VALID
        await those.hear()
    assert await metric(tower, REFUSED) == 0


async def test_the_name_of_a_guest_is_not_for_others(hedgerow_node: StartNode, tmp_path: Path) -> None:
    """Where clients have passwords. A guest is one as any other client of the fixed broker."""
    passwords = users(tmp_path, "alice", "bob")
    tower = start_tower(hedgerow_node, "--anonymous", *passwords)
    options = ("--move-after", "0.1", "--anonymous", *passwords)
    tractor = start_tractor(hedgerow_node, tower, *options, login="alice:secret@")
    url = f"mqtt://alice:secret@127.0.0.1:{tractor.port()}"
    received: list[bytes] = []

    async def listen(bus: hedgerow.Bus) -> None:
        async with bus.subscribe("soil/#", qos=1) as messages:
            async for message in messages:
                received.append(message.payload)  # noqa: PERF401 (they are looked at as they come)

    async with (
        hedgerow.connect(url, client_id="guest") as guest,
        hedgerow.connect(f"mqtt://127.0.0.1:{tractor.port()}") as speaker,
    ):
        listening = asyncio.create_task(listen(guest))
        number = 0
        async with asyncio.timeout(PATIENCE_S):
            while "client guest connected" not in tower.log:
                await speaker.publish("soil/1", b"%d" % number, qos=1)
                number += 1
                await asyncio.sleep(0.02)
        for username, password in ((None, None), ("bob", b"secret")):
            async with raw_client(tower.port()) as thief:
                thief.send(Connect("guest", username=username, password=password))
                answer = await thief.receive()
                assert isinstance(answer, Connack)
                assert answer.reason_code == Reason.NOT_AUTHORIZED
            await speaker.publish("soil/1", b"%d" % number, qos=1)
            number += 1
        await until(lambda: len(received) >= number - 1, "all events")
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert received[-2:] == [b"%d" % each for each in (number - 2, number - 1)]
    assert len(received) == len(set(received))
    assert "the session of 'guest' belongs to another user" in tower.log
