"""Names of topics: who chooses, who gives way, and what is heard meanwhile. No network."""

from __future__ import annotations

import random
from itertools import repeat

import pytest

from hedgerow.multicast.groups import CONTROL_GROUP_IPV4, IPV4_GROUPS, GroupRange, ipv6_groups, mdns_label
from hedgerow.multicast.keys import Keyring
from hedgerow.multicast.topic_groups import (
    ASK_AGAIN_S,
    DECIDE_S,
    MAX_GROUPS_PER_TOPIC,
    RESCUE_S,
    SETTLE_S,
    ComputedGroups,
    NamedGroups,
)

TOPIC = "home/vacuum/status"
NAME = f"{mdns_label(TOPIC)}.local."


class Wire:
    """Members whose questions and announcements reach all, themselves included, at once."""

    def __init__(self, *chances: float, groups: GroupRange = IPV4_GROUPS) -> None:
        self.now = 100.0
        self.members = [NamedGroups(groups, repeat(chance).__next__) for chance in chances]
        self.announced: list[dict[str, str]] = [{} for _ in chances]
        self.questions = 0
        self.announcements = 0
        self.cut = False
        for member in self.members:
            member.ready(self.now)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            self._exchange()
            at = min(member.deadline for member in self.members)
            if at > until:
                self.now = until
                return
            self.now = max(at, self.now)

    def _exchange(self) -> None:
        for _ in range(20):
            records: list[tuple[int, str, str, bool]] = []
            for index, member in enumerate(self.members):
                member.handle_timer(self.now)
                records += self._take(index, member)
            if not records:
                return
            for sender, name, group, is_farewell in records:
                for index, member in enumerate(self.members):
                    if not self.cut or index == sender:
                        member.receive_address(name, group, is_farewell, self.now)
        pytest.fail("they never stop talking")

    def _take(self, index: int, member: NamedGroups) -> list[tuple[int, str, str, bool]]:
        records = []
        mine = self.announced[index]
        for name in member.take_questions():
            self.questions += 1
            for other, announced in enumerate(self.announced):
                if name in announced and (not self.cut or other == index):
                    records.append((other, name, announced[name], False))
        for name, group in member.take_announcements():
            self.announcements += 1
            if group is None:
                records.append((index, name, mine.pop(name), True))
            else:
                mine[name] = group
                records.append((index, name, group, False))
        return records


def test_ipv6_groups_are_computed() -> None:
    groups = ComputedGroups("site")
    assert groups.groups_to_hear(TOPIC) == (groups.group_to_send(TOPIC),)
    assert (groups.group_to_send(TOPIC) or "").startswith("ff15:")
    assert groups.control_group.startswith("ff15:")


def test_the_first_publisher_asks_and_then_chooses() -> None:
    wire = Wire(0.5)
    (member,) = wire.members
    member.set_publishing(TOPIC, True, wire.now)
    wire.run(DECIDE_S - 0.01)
    assert wire.questions == 2
    assert member.group_to_send(TOPIC) is None
    wire.run(0.02)
    assert member.group_to_send(TOPIC) == "239.255.128.0"


def test_a_second_publisher_reuses_the_group() -> None:
    wire = Wire(0.5, 0.9)
    first, second = wire.members
    first.set_publishing(TOPIC, True, wire.now)
    wire.run(1)
    second.set_publishing(TOPIC, True, wire.now)
    wire.run(DECIDE_S / 2)
    assert second.group_to_send(TOPIC) == first.group_to_send(TOPIC) == "239.255.128.0"


def test_publishers_that_choose_at_once_converge_and_subscribers_hear_both_meanwhile() -> None:
    wire = Wire(0.25, 0.75, 0.5, 0.0)
    *publishers, subscriber = wire.members
    subscriber.set_hearing(TOPIC, True, wire.now)
    for publisher in publishers:
        publisher.set_publishing(TOPIC, True, wire.now)
    wire.run(DECIDE_S + 0.01)
    assert {each.group_to_send(TOPIC) for each in publishers} == {"239.255.192.0"}
    assert subscriber.groups_to_hear(TOPIC) == ("239.255.128.0", "239.255.192.0", "239.255.64.0")
    wire.run(SETTLE_S + 0.01)
    assert subscriber.groups_to_hear(TOPIC) == ("239.255.192.0",)


def test_named_ipv6_groups_converge_alike_and_their_control_group_is_the_computed_one() -> None:
    groups = ipv6_groups(2)
    wire = Wire(0.25, 0.75, 0.0, groups=groups)
    *publishers, subscriber = wire.members
    assert subscriber.control_group == ComputedGroups("link").control_group
    subscriber.set_hearing(TOPIC, True, wire.now)
    for publisher in publishers:
        publisher.set_publishing(TOPIC, True, wire.now)
    wire.run(DECIDE_S + 0.01)
    assert {each.group_to_send(TOPIC) for each in publishers} == {"ff12::e000:0"}
    assert set(subscriber.groups_to_hear(TOPIC)) == {"ff12::a000:0", "ff12::e000:0"}
    wire.run(SETTLE_S + 0.01)
    assert subscriber.groups_to_hear(TOPIC) == ("ff12::e000:0",)


@pytest.mark.parametrize("groups", [IPV4_GROUPS, ipv6_groups(2)], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("seed", range(20))
def test_many_publishers_converge(seed: int, groups: GroupRange) -> None:
    chances = random.Random(seed)
    wire = Wire(*(chances.random() for _ in range(12)), groups=groups)
    for publisher in wire.members:
        publisher.set_publishing(TOPIC, True, wire.now)
        wire.run(chances.random() * 0.2)
    wire.run(SETTLE_S + 1)
    assert len({each.group_to_send(TOPIC) for each in wire.members}) == 1
    assert all(len(each.groups_to_hear(TOPIC)) == 1 for each in wire.members)


def test_two_networks_that_are_joined_agree() -> None:
    wire = Wire(0.25, 0.75)
    wire.cut = True
    for publisher in wire.members:
        publisher.set_publishing(TOPIC, True, wire.now)
    wire.run(10)
    assert len({each.group_to_send(TOPIC) for each in wire.members}) == 2
    wire.cut = False
    wire.run(ASK_AGAIN_S[-1])
    assert {each.group_to_send(TOPIC) for each in wire.members} == {"239.255.192.0"}


def test_a_subscriber_finds_a_publisher_that_comes_later_and_asks_ever_more_rarely() -> None:
    wire = Wire(0.0, 0.5)
    subscriber, publisher = wire.members
    subscriber.set_hearing(TOPIC, True, wire.now)
    wire.run(3600)
    assert 60 <= wire.questions <= 80
    publisher.set_publishing(TOPIC, True, wire.now)
    wire.run(DECIDE_S + 0.01)
    assert subscriber.groups_to_hear(TOPIC) == ("239.255.128.0",)
    assert TOPIC in subscriber.take_changed()


def test_a_record_that_a_leaving_publisher_takes_along_is_announced_again_by_one_of_the_others() -> None:
    wire = Wire(0.5, 0.2, 0.8, 0.0)
    first, second, third, subscriber = wire.members
    subscriber.set_hearing(TOPIC, True, wire.now)
    for publisher in (first, second, third):
        publisher.set_publishing(TOPIC, True, wire.now)
        wire.run(1)
    wire.run(7)  # to a time at which nobody asks
    group = first.group_to_send(TOPIC)
    before = wire.announcements
    first.set_publishing(TOPIC, False, wire.now)
    wire.run(RESCUE_S[1] + 0.01)
    assert wire.announcements == before + 2  # the farewell, and one that takes it back
    assert second.group_to_send(TOPIC) == third.group_to_send(TOPIC) == group
    assert subscriber.groups_to_hear(TOPIC) == (group,)
    assert first.groups_to_hear(TOPIC) == ()


def test_the_last_group_is_heard_on_after_its_publisher_left_until_another_has_chosen() -> None:
    wire = Wire(0.9, 0.1, 0.0)
    old, new, subscriber = wire.members
    subscriber.set_hearing(TOPIC, True, wire.now)
    old.set_publishing(TOPIC, True, wire.now)
    wire.run(1)
    old.set_publishing(TOPIC, False, wire.now)
    wire.run(60)
    assert subscriber.groups_to_hear(TOPIC) == ("239.255.230.102",)
    new.set_publishing(TOPIC, True, wire.now)
    wire.run(1)
    assert set(subscriber.groups_to_hear(TOPIC)) == {"239.255.230.102", new.group_to_send(TOPIC)}
    wire.run(2 * SETTLE_S + 0.1)
    assert subscriber.groups_to_hear(TOPIC) == (new.group_to_send(TOPIC),)


@pytest.mark.parametrize(
    ("groups", "address"),
    [
        *((IPV4_GROUPS, each) for each in ("10.0.0.1", "224.0.0.251", CONTROL_GROUP_IPV4, "not an address")),
        *((IPV4_GROUPS, each) for each in ("ff12::8000:1", "::1")),
        *((ipv6_groups(2), each) for each in ("fe80::1", "ff02::fb", "ff15::8000:1", "ff12::7fff:ffff")),
        (ipv6_groups(2), ipv6_groups(2).control_group),
        (ipv6_groups(2), "239.255.0.1"),
    ],
)
def test_an_announcement_cannot_send_us_elsewhere(groups: GroupRange, address: str) -> None:
    member = NamedGroups(groups, lambda: 0.5)
    member.ready(0.0)
    member.set_hearing(TOPIC, True, 0.0)
    member.receive_address(NAME, address, False, 0.0)
    assert member.groups_to_hear(TOPIC) == ()


def test_a_flood_of_announcements_is_bounded() -> None:
    member = NamedGroups(IPV4_GROUPS, lambda: 0.5)
    member.ready(0.0)
    member.set_hearing(TOPIC, True, 0.0)
    for number in range(1, 200):
        member.receive_address(NAME, f"239.255.0.{number}", False, 0.0)
    assert len(member.groups_to_hear(TOPIC)) == MAX_GROUPS_PER_TOPIC
    member.receive_address(f"{mdns_label('another')}.local.", "239.255.0.1", False, 0.0)
    assert member.groups_to_hear("another") == ()


# With keys

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
EVERY_GROUP = [f"239.255.{number >> 8}.{number & 255}" for number in range(1, 65_535)]


def keyed(*keys: bytes, groups: GroupRange = IPV4_GROUPS) -> NamedGroups:
    ring = Keyring(dict(enumerate(keys)))
    member = NamedGroups(groups, lambda: 0.5, prints=ring.prints)
    member.ready(0.0)
    return member


def group_of(*keys: bytes, groups: GroupRange = IPV4_GROUPS) -> str:
    """The one that a publisher with these keys takes."""
    publisher = keyed(*keys, groups=groups)
    publisher.set_publishing(TOPIC, True, 0.0)
    publisher.handle_timer(DECIDE_S)
    group = publisher.group_to_send(TOPIC)
    assert group is not None
    return group


@pytest.mark.parametrize("groups", [IPV4_GROUPS, ipv6_groups(2)], ids=["IPv4", "IPv6"])
def test_a_true_group_is_heard_however_many_are_forged_before_it(groups: GroupRange) -> None:
    true = group_of(OLD, groups=groups)
    subscriber = keyed(OLD, groups=groups)
    subscriber.set_hearing(TOPIC, True, 0.0)
    for number in range(1, 2_000):
        subscriber.receive_address(NAME, groups.at(7 * number), False, 0.0)
    subscriber.receive_address(NAME, true, False, 1.0)
    assert true in subscriber.groups_to_hear(TOPIC)
    # Nor is it forgotten for what is said again and again.
    for second in range(60):
        subscriber.receive_address(NAME, groups.at(7), False, 2.0 + second)
        subscriber.handle_timer(2.0 + second)
    assert subscriber.groups_to_hear(TOPIC) == (true,)


def test_whoever_announces_every_group_has_the_true_one_heard_and_no_other() -> None:
    subscriber = keyed(OLD, NEW)
    subscriber.set_hearing(TOPIC, True, 0.0)
    for group in EVERY_GROUP:
        subscriber.receive_address(NAME, group, False, 0.0)
    assert set(subscriber.groups_to_hear(TOPIC)) == {group_of(OLD), group_of(NEW)}


def test_no_forgery_sends_a_publisher_with_a_key_elsewhere() -> None:
    publisher = keyed(OLD)
    publisher.set_publishing(TOPIC, True, 0.0)
    publisher.receive_address(NAME, "239.255.255.254", False, 0.1)
    publisher.handle_timer(DECIDE_S)
    publisher.receive_address(NAME, "239.255.255.254", False, 1.0)
    assert publisher.group_to_send(TOPIC) == group_of(OLD)


def test_a_change_of_the_key_changes_the_group_when_the_old_key_is_taken_out() -> None:
    publisher, subscriber = keyed(OLD), keyed(OLD)
    publisher.set_publishing(TOPIC, True, 0.0)
    subscriber.set_hearing(TOPIC, True, 0.0)
    said: list[str | None] = []

    def exchange(now: float) -> None:
        publisher.handle_timer(now)
        for name, group in publisher.take_announcements():
            said.append(group)
            subscriber.receive_address(name, group or "", False, now)

    def use(member: NamedGroups, now: float, *keys: bytes) -> None:
        member.set_prints(Keyring(dict(enumerate(keys))).prints, now)

    exchange(DECIDE_S)
    assert subscriber.groups_to_hear(TOPIC) == (group_of(OLD),)
    for now, keys in ((2.0, (OLD, NEW)), (3.0, (NEW, OLD))):
        use(publisher, now, *keys)
        use(subscriber, now, *keys)
        exchange(now)
        assert publisher.group_to_send(TOPIC) in subscriber.groups_to_hear(TOPIC)
    use(publisher, 4.0, NEW)
    exchange(4.0)
    assert publisher.group_to_send(TOPIC) == group_of(NEW)
    assert group_of(NEW) in subscriber.groups_to_hear(TOPIC)
    use(subscriber, 5.0, NEW)
    assert subscriber.groups_to_hear(TOPIC) == (group_of(NEW),)
    assert said == [group_of(OLD), group_of(NEW)]


def test_groups_of_keys_and_topics_differ() -> None:
    ring = Keyring({1: OLD, 2: NEW})
    assert len({*ring.prints("a"), *ring.prints("b")}) == 4
    assert ring.prints("a") == Keyring({7: OLD, 9: NEW}).prints("a")


def test_topics_of_one_publisher_get_groups_of_their_own() -> None:
    wire = Wire(0.5)
    (member,) = wire.members
    topics = [f"t/{number}" for number in range(300)]
    for topic in topics:
        member.set_publishing(topic, True, wire.now)
    wire.run(1)
    assert len({member.group_to_send(topic) for topic in topics} - {None}) == 300


def test_a_topic_that_nobody_uses_any_more_is_forgotten() -> None:
    wire = Wire(0.5)
    (member,) = wire.members
    member.set_hearing(TOPIC, True, wire.now)
    member.set_publishing(TOPIC, True, wire.now)
    wire.run(1)
    member.set_hearing(TOPIC, False, wire.now)
    assert member.group_to_send(TOPIC) is not None
    member.set_publishing(TOPIC, False, wire.now)
    wire.run(1)
    assert member.group_to_send(TOPIC) is None
    assert wire.announced == [{}]
    before = wire.questions
    wire.run(600)
    assert wire.questions == before
    assert member.deadline == float("inf")
