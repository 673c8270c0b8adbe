"""One log for all owners: whoever fills it waits, or does without, and the others go on."""

from __future__ import annotations

import pytest

from hedgerow.broker.broker import Broker
from hedgerow.broker.events import ShareExceeded
from hedgerow.broker.limits import LogBounds
from hedgerow.broker.session import Channel
from hedgerow.broker.shares import LOOK_S
from hedgerow.message import Properties
from hedgerow.mqtt.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.broker.harness import KEPT, Client, RelayRole, World
from tests.broker.test_identified import connect_peer, identified

BOUND = 256 * 1_024
SIZE = 1_000
MODES = pytest.mark.parametrize("drops_oldest", [False, True])
HOSTILE, HUB, OTHER, VICTIM = "192.0.2.66", "192.0.2.1", "192.0.2.2", "192.0.2.3"


class Log(World):
    """A node with a small log, and the events that it had."""

    def __init__(self, drops_oldest: bool = False, bound: int = BOUND) -> None:
        super().__init__(durable=True, log_bounds=LogBounds(bound, drops_oldest=drops_oldest))
        self.told: list[str] = []

    def join(self, name: str, address: str, clean: bool = False, user: str | None = None) -> Client:
        client = self.open(address, certificate_name=user)
        properties: Properties = {"session_expiry_interval": 0 if clean else KEPT}
        client.send(Connect(name, 5, clean_start=clean, properties=properties))
        assert client.take_first(Connack).reason_code == 0
        return client

    def away(self, name: str, address: str, topic_filter: str, qos: int = 1, user: str | None = None) -> None:
        client = self.join(name, address, user=user)
        client.subscribe(topic_filter, qos)
        client.lose()

    def settle(self) -> None:
        super().settle()
        self.told += [each.owner for each in self.broker.take_events() if isinstance(each, ShareExceeded)]

    def read(self, name: str, address: str, user: str | None = None) -> list[bytes]:
        """All that has waited for it."""
        return take_all(self.join(name, address, user=user))


def take_all(client: Client) -> list[bytes]:
    found: list[bytes] = []
    while packets := client.take():
        for packet in packets:
            if isinstance(packet, Publish):
                found.append(packet.payload)
                client.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                client.send(Pubcomp(packet.packet_id))
    return found


def publish(client: Client, topic: str, number: int, qos: int = 1, size: int = SIZE) -> bytes:
    payload = b"%s %d " % (topic.encode(), number)
    payload += bytes(size)
    client.publish(topic, payload, qos, 1 + number)
    return payload


def acknowledged(client: Client) -> set[int]:
    """Packet identifiers of publications that were, since the last call."""
    found: set[int] = set()
    while packets := client.take():
        for packet in packets:
            if isinstance(packet, Puback | Pubcomp):
                found.add(packet.packet_id)
            elif isinstance(packet, Pubrec):
                client.send(Pubrel(packet.packet_id))
    return found


@MODES
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("publishers", [1, 4])
def test_whose_sessions_stay_away_does_without_and_nobody_waits(
    drops_oldest: bool, qos: int, publishers: int
) -> None:
    log = Log(drops_oldest)
    log.away("hoarder", HOSTILE, "#", qos)
    log.away("victim", VICTIM, "rare", qos)
    reader = log.join("reader", OTHER)
    reader.subscribe("#", qos)
    hubs = [log.join(f"hub {number}", f"192.0.2.{number + 1}") for number in range(publishers)]
    sent: list[bytes] = []
    for number in range(1_000):
        topic = "rare" if number % 20 == 0 else "often"
        hub = hubs[number % publishers]
        sent.append(publish(hub, topic, number, qos))
        assert acknowledged(hub) == {1 + number}, "nobody waits for the hoarder"
        assert take_all(reader) == [sent[-1]]
    dropped = log.broker.stats.publish_dropped
    assert log.broker.sessions["hoarder"].dropped == dropped
    assert log.broker.sessions["victim"].dropped == log.broker.sessions["reader"].dropped == 0
    assert log.read("victim", VICTIM) == sent[::20]
    hoarded = log.read("hoarder", HOSTILE)
    assert len(hoarded) > 50, "it has its share"
    assert len(hoarded) + dropped == len(sent), "what it does without is counted"
    assert log.broker.durability.log_bytes <= BOUND * 9 // 8 + 2 * SIZE


@MODES
def test_owners_are_known_after_a_crash(drops_oldest: bool) -> None:
    log = Log(drops_oldest)
    for number in range(5):  # of one owner, which waits for each message once
        log.away(f"hoarder {number}", HOSTILE, "#")
    log.away("victim", VICTIM, "rare")
    sent: list[bytes] = []
    for life in range(4):
        hub = log.join("hub", HUB)
        for number in range(200):
            topic = "rare" if number % 20 == 0 else "often"
            sent.append(publish(hub, topic, 200 * life + number))
            assert acknowledged(hub) == {1 + 200 * life + number}
        log.crash()
    assert log.read("victim", VICTIM) == sent[::20]
    assert all(len(log.read(f"hoarder {number}", HOSTILE)) > 50 for number in range(5))


@MODES
def test_sessions_that_keep_a_little_of_everything_keep_no_more_than_that(drops_oldest: bool) -> None:
    """A segment is kept for whatever of it is needed: few messages could hold all of the log."""
    log = Log(drops_oldest)
    log.away("hoarder", HOSTILE, "own")
    reader = log.join("reader", OTHER)
    reader.subscribe("t", 1)
    reader.lose()
    hoarder, hub = log.join("publisher", HOSTILE), log.join("hub", HUB)
    for number in range(2_000):
        if number % 10 == 0:
            publish(hoarder, "own", number, size=1)
        sent = publish(hub, "t", number)
        assert acknowledged(hub) == {1 + number}
        if number % 50 == 49:
            assert log.read("reader", OTHER)[-1] == sent
    assert len(acknowledged(hoarder)) == 200
    assert len(log.read("hoarder", HOSTILE)) == 200, "they are little, and stay"
    assert log.broker.stats.publish_dropped == 0


def test_whoever_fills_the_log_for_others_waits_first() -> None:
    log = Log()
    for number in range(8):
        log.away(f"victim {number}", f"192.0.2.{100 + number}", f"{number}/#")
    flooder, hub = log.join("flooder", HOSTILE), log.join("hub", HUB)
    flooded: dict[int, bytes] = {}
    sent: list[tuple[int, bytes]] = []
    for number in range(1_000):
        whose = number % 8
        flooded[1 + number] = publish(flooder, f"{whose}/flood", number)
        if number % 100 == 0:
            sent.append((whose, publish(hub, f"{whose}/hub", number)))
            assert acknowledged(hub) == {1 + number}, "it does not wait for the flooder"
    taken = acknowledged(flooder)
    assert 150 < len(taken) < 300, "the flooder waits"
    assert log.broker.stats.publish_dropped == 0
    log.crash()
    found = [log.read(f"victim {number}", f"192.0.2.{100 + number}") for number in range(8)]
    assert all(payload in found[whose] for whose, payload in sent)
    assert {flooded[each] for each in taken} <= {payload for each in found for payload in each}


@MODES
def test_whoever_floods_one_session_displaces_nothing_that_others_sent_to_it(drops_oldest: bool) -> None:
    log = Log(drops_oldest)
    log.away("victim", VICTIM, "#")
    flooder, hub = log.join("flooder", HOSTILE), log.join("hub", HUB)
    before = [publish(hub, "hub", number) for number in range(10)]
    for number in range(1_000):
        publish(flooder, "flood", number)
        if number >= 400 and number % 50 == 0:
            before.append(publish(hub, "hub", number))
    assert len(acknowledged(hub)) == len(before)
    assert [each for each in log.read("victim", VICTIM) if each.startswith(b"hub")] == before


def test_whoever_holds_most_and_waits_for_itself_costs_those_nothing_who_hold_less() -> None:
    """It fills less than half of the log, for itself alone, and another one has more than its share too."""
    log = Log()
    log.away("hoarder", HOSTILE, "own")
    log.away("victim", VICTIM, "hub")
    log.away("other", OTHER, "other")
    hub, hoarder = log.join("hub", HUB), log.join("publisher", HOSTILE)
    sent = [publish(hub, "hub", number) for number in range(100)]
    others = [publish(hub, "other", number) for number in range(100, 130)]
    for number in range(1_000):
        publish(hoarder, "own", number)
    for number in range(1_000, 1_200):
        log.advance(0.5)
        publish(hoarder, "own", number)
    assert 100 < len(acknowledged(hoarder)) < 200, "it waits"
    assert log.told == []
    assert log.read("victim", VICTIM) == sent
    assert log.read("other", OTHER) == others


def test_of_a_publisher_that_waits_no_more_is_in_memory_than_it_leaves_to_others() -> None:
    log = Log(bound=16 * 1_024 * 1_024)
    for number in range(8):
        log.away(f"victim {number}", f"192.0.2.{100 + number}", f"{number}/#")
    hub = log.join("hub", HUB)
    closed = 0
    for number in range(80):
        flooder = log.join(f"flooder {number}", HOSTILE)
        publish(flooder, f"{number % 8}/flood", 0, size=1_000_000)
        closed += flooder.closed
    assert 20 < closed < 40
    publish(hub, "0/hub", 0, size=10)
    assert acknowledged(hub) == {1}
    assert not hub.closed


def test_many_addresses_that_each_hold_little_do_not_have_a_user_wait() -> None:
    log = Log()
    log.away("victim", VICTIM, "user/#", user="ann")
    hub = log.join("hub", HUB, user="bob")
    sent = [publish(hub, "user/early", number) for number in range(4)]
    addresses = [f"198.51.100.{number}" for number in range(40)]
    for address in addresses:
        log.away(f"hoarder {address}", address, f"of/{address}")
    hoarding = [(log.join(f"filler {address}", address), f"of/{address}") for address in addresses]
    for number in range(12):
        for filler, topic in hoarding:
            publish(filler, topic, number)
    assert log.broker.durability.log_bytes >= BOUND, "they have filled it"
    acknowledged(hub)
    for number in range(9):
        sent.append(publish(hub, "user/late", number))
        log.advance(2 * LOOK_S)
        assert acknowledged(hub) == {1 + number}, "a user waits for none of them"
    assert log.broker.sessions["victim"].dropped == 0
    assert log.read("victim", VICTIM, user="ann") == sent


def test_where_all_is_of_one_owner_publishers_wait_and_nothing_is_lost() -> None:
    log = Log()
    log.away("logger", HUB, "#")
    hub = log.join("hub", HUB)
    sent = {1 + number: publish(hub, "t", number) for number in range(500)}
    taken = acknowledged(hub)
    assert 200 < len(taken) < 260, "most of the log, and no more"
    log.crash()
    assert [sent[each] for each in sorted(taken)] == log.read("logger", HUB)
    assert log.broker.stats.publish_dropped == 0
    assert log.told == []


def test_it_is_told_who_does_without() -> None:
    log = Log()
    log.away("hoarder", HOSTILE, "#")
    for number in range(800):
        publish(log.join("hub", HUB), "t", number)
    assert log.told == ["site:192.0.2.66"]


def test_what_a_publisher_that_waits_has_sent_at_qos_2_is_not_taken_for_known_after_a_crash() -> None:
    log = Log()
    victims = [(f"victim {number}", f"192.0.2.{100 + number}") for number in range(8)]
    for number, (name, address) in enumerate(victims):
        log.away(name, address, f"{number}/#", 2)
    flooder, hub = log.join("flooder", HOSTILE), log.join("hub", HUB)
    sent = {1 + number: publish(flooder, f"{number % 8}/flood", number, 2) for number in range(400)}
    hubs = publish(hub, "0/hub", 0, 2)
    assert acknowledged(hub) == {1}
    taken = {each.packet_id for each in flooder.take() if isinstance(each, Pubrec)}
    assert 150 < len(taken) < 300
    log.crash()
    flooder = log.join("flooder", HOSTILE)
    for each in sorted(sent.keys() - taken):
        flooder.publish(f"{(each - 1) % 8}/flood", sent[each], 2, each, dup=True)
    found: list[bytes] = []
    for _ in range(3):  # What was read makes room for what waits.
        for name, address in victims:
            found += log.read(name, address)
        taken |= {each.packet_id for each in flooder.take() if isinstance(each, Pubrec)}
    assert taken == sent.keys()
    assert sorted(found) == sorted([*sent.values(), hubs]), "each once"


@pytest.mark.parametrize("owners", [1, 2])
def test_what_another_node_passes_on_costs_an_owner_nothing_where_it_is_alone(owners: int) -> None:
    """Where others are, they get what that node has for them."""
    log = Log()
    log.away("hoarder", HUB, "#")
    reader = log.join("reader", HUB if owners == 1 else OTHER)
    reader.subscribe("t", 1)
    far = connect_peer(log)
    for number in range(1_000):
        payload = b"%d " % number + bytes(SIZE)
        far.send(identified(f"far 1 {number + 1}", payload, 1, "t", packet_id=1 + number % 1_000))
        assert take_all(reader) == [payload]
    count = len([each for each in far.take() if isinstance(each, Puback)])
    if owners == 1:
        assert count < 400, "it waits"
        assert log.broker.stats.publish_dropped == 0
    else:
        assert count == 1_000
        assert log.told == ["site:192.0.2.1"]


@pytest.mark.parametrize("is_proven", [True, False])
def test_what_waits_for_another_node_counts_for_nobody_if_it_has_the_key(is_proven: bool) -> None:
    class LinkRole(RelayRole):
        is_link = True

        def connected(self, connection: Channel) -> None:
            connection.is_proven = is_proven
            super().connected(connection)

    class Linked(Log):
        def prepare(self, broker: Broker) -> None:
            broker.register(LinkRole(broker))

    log = Linked()
    far = connect_peer(log, kept=True)
    far.subscribe("#", 1)
    far.lose()
    for _ in range(2):
        log.crash()  # Whoever has proved it then has not to come again.
        hub = log.join("hub", OTHER)
        for number in range(500):
            publish(hub, "t", number)
        assert (len(acknowledged(hub)) == 500) is not is_proven
        assert (log.broker.stats.publish_dropped == 0) is is_proven
