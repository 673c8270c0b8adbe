"""Who gets a sensor's packet, and what strangers cannot do with the exchange."""

from __future__ import annotations

import tracemalloc

import pytest

from hedgerow.message import Message
from hedgerow.sensors import exchange as exchange_module
from hedgerow.sensors.exchange import (
    MAX_HEADERS,
    MAX_LAST_VALUE_BYTES,
    MAX_LASTING_PER_ADDRESS,
    MAX_SUBSCRIPTIONS,
    MAX_SUBSCRIPTIONS_PER_ADDRESS,
    REMEMBER_S,
    Exchange,
)
from hedgerow.sensors.packet import MAX_PAYLOAD_BYTES

TOPICS = {1: "farm/temperature", 2: "farm/wind", 3: "farm/humidity"}
LAPTOP, MOBILE, SENSOR = "192.0.2.1", "192.0.2.2", "192.0.2.9"
BROKER = "192.0.2.100"
EXPIRY_S = 600.0


class World:
    """An exchange with a clock, and what it sent: (address, port) → packets."""

    def __init__(self, port: int = 12_345, **options: float) -> None:
        self.port = port
        self.exchange = Exchange(
            TOPICS,
            self.port,
            lambda host, port: (host, port) == (BROKER, self.port),
            **options,  # type: ignore[arg-type]
        )
        self.now = 1_000.0

    @property
    def stats(self) -> exchange_module.SensorStats:
        return self.exchange.stats

    def receive(self, data: bytes, host: str = SENSOR, port: int = 40_000) -> None:
        self.exchange.receive_datagram(data, 0, (host, port), self.now)

    def send_message(self, message: Message) -> None:
        self.exchange.send_message(message, self.now)

    def sent(self) -> list[tuple[str, int, bytes]]:
        return [
            (address[0], address[1], data)
            for data, destinations in self.exchange.take_datagrams()
            for _, address in destinations
        ]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.exchange.take_events()]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.exchange.handle_timer(self.now)


def test_the_nine_steps() -> None:
    world = World()
    world.receive(b"12346001", LAPTOP)
    world.receive(b"12349002", MOBILE)
    world.receive(b"1234510121.5")
    assert world.sent() == [(LAPTOP, 12346, b"1234510121.5")]
    world.receive(b"123451024 m/s")
    assert world.sent() == [(MOBILE, 12349, b"123451024 m/s")]
    world.receive(b"12346003", LAPTOP)
    world.receive(b"1234510361%")
    assert world.sent() == [(LAPTOP, 12346, b"1234510361%")]
    assert world.exchange.take_messages() == [
        Message("farm/temperature", b"21.5"),
        Message("farm/wind", b"4 m/s"),
        Message("farm/humidity", b"61%"),
    ]
    assert (world.stats.received, world.stats.published, world.stats.forwarded) == (6, 3, 3)


def test_a_message_of_the_broker_becomes_a_packet_with_its_port() -> None:
    world = World()
    world.receive(b"12346001", LAPTOP)
    world.send_message(Message("farm/temperature", b"19"))
    world.send_message(Message("farm/wind", b"nobody subscribed"))
    world.send_message(Message("elsewhere", b"not in the table"))
    assert world.sent() == [(LAPTOP, 12346, b"1234510119")]
    assert world.exchange.take_messages() == []  # it came from the broker and does not go back


def test_two_sensors_and_two_subscribers_of_one_host() -> None:
    world = World()
    world.receive(b"12346001", LAPTOP)
    world.receive(b"12347001", LAPTOP)
    world.receive(b"12345101a", "192.0.2.10")
    world.receive(b"12345101b", "192.0.2.11")
    assert sorted(world.sent()) == [
        (LAPTOP, port, b"12345101" + payload) for port in (12346, 12347) for payload in (b"a", b"b")
    ]


def test_packets_are_forwarded_byte_for_byte() -> None:
    world = World()
    world.receive(b"12346001", LAPTOP)
    strange = b"00777101\x00\xff12345101"  # a port that is not the broker's: forwarded as it came
    world.receive(strange)
    assert world.sent() == [(LAPTOP, 12346, strange)]


def test_an_answer_goes_by_the_socket_and_scope_that_the_subscription_came_by() -> None:
    world = World()
    world.exchange.receive_datagram(b"12346001", 3, ("fe80::1%eth0", 5, 0, 2), world.now)
    world.receive(b"12345101x")
    assert world.exchange.take_datagrams() == [(b"12345101x", ((3, ("fe80::1%eth0", 12346, 0, 2)),))]


def test_the_payload_of_a_subscription_is_ignored() -> None:
    world = World()
    world.receive(b"12346001 please", LAPTOP)
    assert (world.sent(), world.exchange.take_messages(), world.exchange.subscription_count) == ([], [], 1)


# The last value


def test_a_new_subscriber_gets_the_last_value_whoever_sent_it() -> None:
    world = World()
    world.receive(b"12345101old")
    world.receive(b"12345101new")
    world.send_message(Message("farm/wind", b"5"))
    world.receive(b"12346001", LAPTOP)
    world.receive(b"12346002", LAPTOP)
    world.receive(b"12346003", LAPTOP)
    assert world.sent() == [(LAPTOP, 12346, b"12345101new"), (LAPTOP, 12346, b"123451025")]


def test_repeating_a_subscription_does_not_repeat_the_answer() -> None:
    world = World()
    world.receive(b"12345101x")
    for _ in range(100):
        world.receive(b"12346001", LAPTOP)
    assert len(world.sent()) == 1


def test_no_large_answer_to_a_small_packet() -> None:
    world = World()
    world.receive(b"12345101" + b"x" * MAX_LAST_VALUE_BYTES)
    world.receive(b"12346001", LAPTOP)
    assert world.sent() == []


def test_an_empty_retained_message_clears_the_last_value() -> None:
    world = World()
    world.send_message(Message("farm/wind", b"5", retain=True))
    world.send_message(Message("farm/wind", b"", retain=True))
    world.receive(b"12346002", LAPTOP)
    assert world.sent() == []


def test_the_last_value_can_be_switched_off() -> None:
    world = World(keeps_last_value=False)
    world.receive(b"12345101x")
    world.receive(b"12346001", LAPTOP)
    assert world.sent() == []


# Expiry


def test_a_subscription_ends_unless_it_is_renewed() -> None:
    world = World(subscription_expiry_s=EXPIRY_S)
    assert world.exchange.deadline is None
    world.receive(b"12346001", LAPTOP)
    world.advance(EXPIRY_S / 2)
    world.receive(b"12349001", MOBILE)
    assert world.exchange.deadline == 1_000 + EXPIRY_S
    world.receive(b"12346001", LAPTOP)  # renewed: now the mobile's is the next to end
    world.advance(EXPIRY_S - 1)
    world.receive(b"12346001", LAPTOP)
    world.advance(1)
    world.receive(b"12345101x")
    assert world.sent() == [(LAPTOP, 12346, b"12345101x")]
    assert world.stats.expired == 1
    world.advance(EXPIRY_S)
    assert (world.exchange.subscription_count, world.exchange.deadline, world.stats.expired) == (0, None, 2)
    assert not world.exchange.per_site  # whoever has gone is forgotten altogether
    world.receive(b"12345101y")
    assert world.sent() == []


FOR_EVER = float("inf")


def test_a_subscription_without_an_end_lasts_though_it_is_never_renewed() -> None:
    world = World(subscription_expiry_s=FOR_EVER)
    world.receive(b"12346001", LAPTOP)
    for _ in range(10):
        world.advance(10 * 365 * 86_400)
        world.receive(b"12345101x")
        assert world.sent() == [(LAPTOP, 12346, b"12345101x")]
    assert (world.exchange.subscription_count, world.stats.expired) == (1, 0)


def test_of_subscriptions_without_an_end_an_address_has_few_and_the_newest() -> None:
    world = World(subscription_expiry_s=FOR_EVER)
    world.receive(b"12349001", MOBILE)
    world.receive(b"12346001", LAPTOP)
    others = range(20_000, 20_000 + MAX_LASTING_PER_ADDRESS - 1)
    for port in others:
        world.receive(b"%05d001" % port, LAPTOP)
    world.receive(b"12346001", LAPTOP)  # renewed: the one at port 20000 is the oldest now
    world.receive(b"30000001", LAPTOP)
    world.receive(b"12345101x")
    reached = {(host, port) for host, port, _ in world.sent()}
    assert reached == {(MOBILE, 12349), *((LAPTOP, port) for port in (12346, *others[1:], 30_000))}
    assert (world.stats.replaced, world.stats.refused) == (1, 0)
    assert world.exchange.subscription_count == MAX_LASTING_PER_ADDRESS + 1


def test_a_new_subscription_that_is_refused_replaces_none() -> None:
    world = World(subscription_expiry_s=FOR_EVER)
    for port in range(20_000, 20_000 + MAX_LASTING_PER_ADDRESS):
        world.receive(b"%05d001" % port, BROKER)
    world.receive(b"12345001", BROKER)
    assert world.reasons() == ["port 12345 is this broker's own"]
    assert (world.stats.replaced, world.exchange.subscription_count) == (0, MAX_LASTING_PER_ADDRESS)


def test_subscriptions_without_an_end_are_bounded_in_all_and_none_is_pushed_out_by_others() -> None:
    world = World(subscription_expiry_s=FOR_EVER)
    world.receive(b"12346001", LAPTOP)
    strangers = -(-MAX_SUBSCRIPTIONS // MAX_LASTING_PER_ADDRESS)
    for stranger in range(strangers):
        for port in range(20_000, 20_000 + MAX_LASTING_PER_ADDRESS):
            world.receive(b"%05d001" % port, f"10.0.{stranger >> 8}.{stranger & 255}")
    assert world.exchange.subscription_count == MAX_SUBSCRIPTIONS
    world.receive(b"12349001", MOBILE)
    assert world.reasons()[-1] == f"there are {MAX_SUBSCRIPTIONS} subscriptions already"
    world.receive(b"12345101x")
    assert (LAPTOP, 12346, b"12345101x") in world.sent()


# Bad input

UNKNOWN = "topic 77 is not in the table; --sensor-topic 77=TOPIC adds it"


@pytest.mark.parametrize(
    ("data", "reason", "counter"),
    [
        (b"short", "5 bytes are shorter than the header of 8", "malformed"),
        (b"1234x101", "port '1234x' is not five digits", "malformed"),
        (b"00000001", "port 00000 is not from 00001 to 65535", "malformed"),
        (b"70000001", "port 70000 is not from 00001 to 65535", "malformed"),
        (b"12345177x", UNKNOWN, "unknown_topic"),
        (b"12346077", UNKNOWN, "unknown_topic"),
    ],
)
def test_bad_packets_are_dropped_counted_and_told(data: bytes, reason: str, counter: str) -> None:
    world = World()
    world.receive(data)
    assert world.reasons() == [reason]
    assert getattr(world.stats, counter) == 1
    assert (world.sent(), world.exchange.take_messages(), world.exchange.subscription_count) == ([], [], 0)


def test_a_subscriber_that_is_the_broker_itself_is_refused() -> None:
    world = World()
    world.receive(b"12345001", BROKER)
    assert world.reasons() == ["port 12345 is this broker's own"]
    world.receive(b"12346001", BROKER)  # but this host may have subscribers
    world.receive(b"12345101x")
    assert world.sent() == [(BROKER, 12346, b"12345101x")]
    assert world.stats.refused == 1


def test_a_port_where_brokers_listen_is_no_subscribers_at_any_host() -> None:
    world = World(port=18_000)
    for port in 12_345, 18_000:
        world.receive(b"%05d001" % port, LAPTOP)
    assert world.reasons() == [
        "port 12345 is where brokers listen: choose another for a subscriber",
        "port 18000 is where brokers listen: choose another for a subscriber",
    ]
    world.receive(b"12345101x")
    assert (world.sent(), world.stats.refused) == ([], 2)


def pass_on(here: World, there: World, step_s: float = 0.001) -> int:
    """Two brokers, each a subscriber of the other by a forged packet: how many packets pass between them."""
    passed = 0
    while packets := [(there, here, each) for each in here.sent()] + [
        (here, there, each) for each in there.sent()
    ]:
        here.now = there.now = here.now + step_s
        for receiver, sender, (_, port, data) in packets:
            if port == receiver.port:
                receiver.receive(data, MOBILE if receiver is here else LAPTOP, sender.port)
                passed += 1
        assert passed < 1_000
    return passed


@pytest.mark.parametrize("begins", ["with a sensor", "with an MQTT client", "with a last value"])
@pytest.mark.parametrize("step_s", [0.001, 0.4])
def test_a_reading_goes_once_to_and_fro_between_two_brokers(begins: str, step_s: float) -> None:
    here, there = World(port=18_001), World(port=18_002)
    if begins == "with a last value":
        here.receive(b"12345101x")
    here.receive(b"18002001", MOBILE)
    there.receive(b"18001001", LAPTOP)
    if begins == "with a sensor":
        here.receive(b"12345101x")
    elif begins == "with an MQTT client":
        here.send_message(Message("farm/temperature", b"x"))
    assert pass_on(here, there, step_s) == 2
    assert (here.stats.looped, there.stats.looped) == (1, 0)
    assert here.reasons() == ["subscribers of farm/temperature were just sent it, at port 18002 too: a loop"]
    assert there.exchange.take_messages() == [Message("farm/temperature", b"x")]
    assert len(here.exchange.take_messages()) == (begins != "with an MQTT client")
    there.receive(b"12345101y")
    assert pass_on(here, there, step_s) == 2


@pytest.mark.parametrize("answering", [MOBILE, "192.0.2.3"])
@pytest.mark.parametrize("header", [b"12345101", b"00007101"])
def test_an_echo_gets_each_reading_once(answering: str, header: bytes) -> None:
    """Also one that answers from another address, or writes another port, or seems to have begun."""
    world = World()
    world.receive(b"00007001", MOBILE)
    for source in (SENSOR, 40_000), (MOBILE, 7):
        payloads = [b"%d %d" % (number, source[1]) for number in range(20)]
        for payload in payloads:
            world.receive(b"12345101" + payload, *source)
        echoed = 0
        while packets := world.sent():
            world.now += 0.01
            for _, port, data in packets:
                world.receive(header + data[8:], answering, port)
                echoed += 1
        assert echoed == len(payloads)
    assert world.stats.looped == 40
    assert len(world.exchange.take_messages()) == 40


def test_a_device_may_publish_to_the_topic_that_it_subscribes_to() -> None:
    world = World()
    world.receive(b"12346001", LAPTOP, 12_346)
    for payload in b"on", b"off", b"up", b"down":
        world.receive(b"12345101" + payload, LAPTOP, 12_346)
        assert world.sent() == [(LAPTOP, 12346, b"12345101" + payload)]
    world.receive(b"12345101down", LAPTOP, 12_346)
    assert (world.sent(), world.stats.looped) == ([], 1)
    world.receive(b"12345101down")  # another sensor may say the same
    world.receive(b"12345102down", LAPTOP, 12_346)  # and so may this one of something else
    world.now += 2 * REMEMBER_S
    world.receive(b"12345101down", LAPTOP, 12_346)
    assert (world.stats.looped, world.stats.published) == (1, 7)


def test_of_what_was_sent_a_bounded_part_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "MAX_REMEMBERED", 100)
    world = World()
    world.receive(b"12346001", LAPTOP)
    for number in range(1_000):
        world.receive(b"12345101%d" % number)
    for number in reversed(range(1_000)):
        world.receive(b"12345101%d" % number, LAPTOP, 12_346)
    assert 100 <= world.stats.looped <= 200


def test_one_address_has_so_many_subscriptions() -> None:
    world = World()
    for port in range(1, MAX_SUBSCRIPTIONS_PER_ADDRESS + 2):
        world.receive(b"%05d001" % port, LAPTOP)
    assert world.exchange.subscription_count == MAX_SUBSCRIPTIONS_PER_ADDRESS
    assert world.reasons() == [f"it has {MAX_SUBSCRIPTIONS_PER_ADDRESS} subscriptions already"]
    world.receive(b"12349001", MOBILE)
    assert world.exchange.subscription_count == MAX_SUBSCRIPTIONS_PER_ADDRESS + 1
    world.advance(EXPIRY_S)
    world.receive(b"12346001", LAPTOP)  # what has ended makes room
    assert world.exchange.subscription_count == 1


def test_an_ipv6_site_counts_as_one_address() -> None:
    world = World()
    for n in range(MAX_SUBSCRIPTIONS_PER_ADDRESS + 1):
        world.exchange.receive_datagram(b"12346001", 0, (f"2001:db8::{n:x}", 5, 0, 0), world.now)
    assert world.exchange.subscription_count == MAX_SUBSCRIPTIONS_PER_ADDRESS


def test_all_together_have_so_many_subscriptions_and_a_renewal_is_never_refused() -> None:
    world = World()
    for n in range(MAX_SUBSCRIPTIONS + 10):
        world.receive(b"12346001", f"10.0.{n >> 8}.{n & 255}")
    assert (world.exchange.subscription_count, world.stats.refused) == (MAX_SUBSCRIPTIONS, 10)
    world.advance(EXPIRY_S - 1)
    world.receive(b"12346001", "10.0.0.0")
    world.advance(1)
    assert world.exchange.subscription_count == 1


def test_an_address_may_send_only_so_many_packets() -> None:
    world = World(packets_per_s=2)
    for _ in range(30):
        world.receive(b"12345101x")
    assert (world.stats.published, world.stats.limited) == (20, 10)  # a burst of ten seconds' worth
    assert world.reasons()[0] == "more than 2 packets a second"
    world.receive(b"12345101x", MOBILE)
    assert world.stats.published == 21
    world.advance(1)
    for _ in range(5):
        world.receive(b"12345101x")
    assert world.stats.published == 23


def test_a_message_that_fits_no_datagram_is_dropped_and_counted() -> None:
    world = World()
    world.receive(b"12346001", LAPTOP)
    world.send_message(Message("farm/temperature", b"x" * (MAX_PAYLOAD_BYTES + 1)))
    assert (world.sent(), world.stats.too_large) == ([], 1)
    world.send_message(Message("farm/temperature", b"x" * MAX_PAYLOAD_BYTES))
    assert len(world.sent()) == 1


def test_access_rules_hold_and_may_change() -> None:
    world = World()
    world.receive(b"12346001", LAPTOP)
    world.receive(b"12345101x")
    assert len(world.sent()) == 1
    world.exchange.permit(lambda topic: topic == "farm/wind", lambda topic: topic == "farm/humidity")
    world.receive(b"12345101x")
    world.receive(b"12346003", LAPTOP)
    assert world.reasons() == [
        "an access rule forbids to publish on farm/temperature",
        "an access rule forbids to subscribe to farm/humidity",
    ]
    world.send_message(Message("farm/temperature", b"secret now"))
    assert world.sent() == []  # the laptop subscribed before the rule came
    world.receive(b"12345103x")
    assert world.stats.published == 2


def test_memory_stays_flat_under_a_flood_of_everything() -> None:
    world = World(packets_per_s=10)

    def flood() -> None:
        for n in range(20_000):
            host = f"10.{n >> 14 & 255}.{n >> 6 & 255}.{n & 63}"
            world.receive(b"%05d%d%02d" % (n % 65_535 + 1, n % 2, n % 4), host)
            world.receive(b"garbage %d" % n, host)
            world.exchange.take_datagrams()
            world.exchange.take_messages()
            world.exchange.take_events()

    flood()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        flood()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2_000_000
    assert world.exchange.subscription_count <= MAX_SUBSCRIPTIONS


def test_headers_of_many_ports_are_remembered_within_a_bound() -> None:
    """Eight bytes that pass are not looked at again; a publisher can write any port into them."""
    world = World()
    count = 3 * MAX_HEADERS
    for number in range(count):
        world.receive(b"%05d101x" % (1 + number), host=f"10.0.{number // 200}.{number % 200}")
        assert len(world.exchange.headers) <= MAX_HEADERS
    assert world.stats.published == count
