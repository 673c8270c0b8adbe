"""Topics become addresses that every implementation computes alike."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.multicast import groups
from hedgerow.multicast.groups import CONTROL_GROUP_IPV4, CONTROL_TOPIC, IPV4_GROUPS, GroupRange, ipv6_groups
from hedgerow.multicast.limits import SCOPES
from tests.multicast.frames import names

RESERVED = {CONTROL_GROUP_IPV4, "239.255.0.0", "239.255.255.255"}


# Computed with `printf %s TOPIC | sha256sum`, the first 28 digits, not with the code under test.
@pytest.mark.parametrize(
    ("topic", "scope", "address"),
    [
        ("home/vacuum/status", "link", "ff12:6128:030c:0d69:f4ef:c23b:4dcb:7a1c"),
        ("home/vacuum/status", "site", "ff15:6128:030c:0d69:f4ef:c23b:4dcb:7a1c"),
        ("home/vacuum/status", "interface", "ff11:6128:030c:0d69:f4ef:c23b:4dcb:7a1c"),
        ("küche/licht", "link", "ff12:ebf1:661b:7cee:1538:3b69:3f51:11e3"),
        (CONTROL_TOPIC, "link", "ff12:bd0a:548c:2a8e:a617:10fc:1ed1:9f05"),
    ],
)
def test_the_ipv6_group_of_a_topic(topic: str, scope: str, address: str) -> None:
    assert groups.ipv6_group(topic, SCOPES[scope]) == str(ipaddress.IPv6Address(address))


@given(names, st.sampled_from(sorted(SCOPES)))
def test_an_ipv6_group_is_transient_and_of_its_scope(topic: str, scope: str) -> None:
    address = ipaddress.IPv6Address(groups.ipv6_group(topic, SCOPES[scope]))
    assert address.is_multicast
    assert address.packed[1] == 0x10 | {"interface": 1, "link": 2, "site": 5}[scope]
    assert groups.ipv6_group(topic + "x", SCOPES[scope]) != str(address)


@pytest.mark.parametrize(
    # The check value of CRC-32, as zlib and Ethernet compute it, is that of nine digits.
    ("topic", "crc"),
    [("123456789", 0xCBF43926), ("home/vacuum/status", 0x8AF9B6B3)],
)
def test_the_crc_of_a_topic(topic: str, crc: int) -> None:
    assert groups.topic_crc(topic) == crc


def test_the_name_of_a_topic_in_multicast_dns() -> None:
    assert groups.mdns_label("home/vacuum/status") == "topic-meuagdannh2o7qr3jxfxuhfgpitwtobo"


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=300))
def test_every_topic_has_a_label_that_dns_can_carry(topic: str) -> None:
    label = groups.mdns_label(topic)
    assert len(label) <= 63
    assert all(character.isascii() and (character.isalnum() or character == "-") for character in label)
    assert label == label.lower(), "names in DNS are compared without case"


RANGES = pytest.mark.parametrize("groups_of", [IPV4_GROUPS, ipv6_groups(2)], ids=["IPv4", "IPv6"])


@RANGES
@given(chance=st.floats(0, 1))
def test_a_chosen_group_is_one_of_the_range_and_never_a_reserved_one(
    groups_of: GroupRange, chance: float
) -> None:
    group = groups_of.choose(chance)
    assert groups_of.has(group)
    assert group not in {groups_of.control_group, str(groups_of.network[0]), str(groups_of.network[-1])}


@given(st.floats(0, 1), st.sampled_from(sorted(SCOPES.values())))
def test_a_chosen_ipv6_group_is_transient_of_its_scope_and_by_its_id_given_by_a_host(
    chance: float, scope: int
) -> None:
    group = ipaddress.IPv6Address(ipv6_groups(scope).choose(chance))
    assert group.packed[:2] == bytes((0xFF, 0x10 | scope))
    assert 0x8000_0000 <= int.from_bytes(group.packed[2:]) <= 0xFFFF_FFFF


@pytest.mark.parametrize("reserved", sorted(RESERVED))
def test_a_chance_that_points_at_a_reserved_group_takes_the_next(reserved: str) -> None:
    network = IPV4_GROUPS.network
    position = int(ipaddress.IPv4Address(reserved)) - int(network[0])
    chance = (position + 0.5) / network.num_addresses
    following = str(network[(position + 1) % network.num_addresses])
    expected = "239.255.0.1" if following in RESERVED else following
    assert IPV4_GROUPS.choose(chance) == expected


@RANGES
def test_a_group_that_is_taken_is_not_chosen(groups_of: GroupRange) -> None:
    first = groups_of.choose(0.5)
    second = groups_of.choose(0.5, [first])
    assert second != first
    assert groups_of.choose(0.5, [first, second]) not in (first, second)


def test_when_all_groups_are_taken_one_is_shared_but_no_reserved_one() -> None:
    everything = set(map(str, IPV4_GROUPS.network))
    assert IPV4_GROUPS.choose(1.0, everything) in everything - RESERVED
    assert IPV4_GROUPS.choose(0.3, everything - {"239.255.1.2"}) == "239.255.1.2"


@pytest.mark.parametrize(
    ("chosen", "winner"),
    [
        (["239.255.9.200", "239.255.10.3", "239.255.9.30"], "239.255.10.3"),
        (["ff12::9000:1", "ff12::a000:0", "ff12::9fff:ffff"], "ff12::a000:0"),
    ],
)
def test_of_groups_chosen_at_once_the_later_record_wins_for_everyone(chosen: list[str], winner: str) -> None:
    assert groups.winning_group(chosen) == winner
    assert groups.winning_group(reversed(chosen)) == winner
    assert groups.winning_group(chosen[:1]) == chosen[0]
