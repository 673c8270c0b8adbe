"""Multicast DNS by the real library on the loopback interface: groups of topics, and other members."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hedgerow.multicast.groups import IPV4_GROUPS, mdns_label
from hedgerow.multicast.io import mdns
from hedgerow.multicast.io.interfaces import choose
from hedgerow.multicast.io.options import MulticastOptions
from hedgerow.multicast.peers import PeerAddress
from hedgerow.multicast.topic_groups import NamedGroups
from hedgerow.node.clock import SteadyClock
from hedgerow_workshop.programs import free_udp_port
from tests.multicast.io.members import members, own_topic
from tests.waiting import until


@pytest.fixture
def topic() -> str:
    return own_topic()


class Namer:
    """A member as far as multicast DNS is concerned."""

    def __init__(self, chance: float, port: int = 9, **times: Any) -> None:
        self.clock = SteadyClock()
        self.groups = NamedGroups(IPV4_GROUPS, lambda: chance, **times)
        self.peers: list[PeerAddress] = []
        self.chosen: list[str | None] = []
        self.multicast_dns = mdns.MulticastDns(
            choose(MulticastOptions(("lo",), ip=4)),
            port,
            10,
            random.randbytes(8),
            self.clock,
            lambda address, sender: self.peers.append(address),
            self.groups,
            self._note,
        )

    def _note(self, topics: list[str]) -> None:
        self.chosen += [self.groups.group_to_send(topic) for topic in topics]

    @property
    def is_ready(self) -> bool:
        return self.groups.is_ready

    def hear(self, topic: str) -> None:
        self.groups.set_hearing(topic, True, self.clock())
        self.multicast_dns.flush()

    def publish(self, topic: str, publishing: bool = True) -> None:
        self.groups.set_publishing(topic, publishing, self.clock())
        self.multicast_dns.flush()


@asynccontextmanager
async def namers(*chances: float, **times: Any) -> AsyncIterator[list[Namer]]:
    made = [Namer(chance, **times) for chance in chances]
    try:
        yield made
    finally:
        await asyncio.gather(*(namer.multicast_dns.stop() for namer in made))


async def test_two_publishers_that_choose_at_once_converge_on_one_group(topic: str) -> None:
    async with namers(0.25, 0.75, 0.0, decide_s=0.0) as (low, high, subscriber):
        subscriber.hear(topic)
        await until(lambda: low.is_ready and high.is_ready, "multicast DNS")
        for publisher in (low, high):
            publisher.publish(topic)
        # In one turn of the loop, so neither has heard of the other.
        assert (low.chosen, high.chosen) == (["239.255.64.0"], ["239.255.192.0"])
        await until(
            lambda: low.groups.group_to_send(topic) == high.groups.group_to_send(topic) == "239.255.192.0",
            "both to keep the same",
        )
        await until(
            lambda: {"239.255.64.0", "239.255.192.0"} == {*subscriber.groups.groups_to_hear(topic)},
            "the subscriber to hear both, as long as either may be used",
        )


async def test_a_later_publisher_reuses_the_group_and_a_later_subscriber_finds_it(topic: str) -> None:
    async with namers(0.25) as (first,):
        first.publish(topic)
        await until(lambda: first.groups.group_to_send(topic) is not None, "a group")
        # It decides once it has heard of the group; however busy the machine is, not before.
        async with namers(0.75, 0.0, decide_s=30.0) as (second, subscriber):
            subscriber.hear(topic)
            second.publish(topic)
            await until(lambda: second.groups.group_to_send(topic) is not None, "the same group")
            assert second.chosen == ["239.255.64.0"]
            await until(
                lambda: subscriber.groups.groups_to_hear(topic) == ("239.255.64.0",), "it to be heard"
            )


async def test_a_subscriber_that_waits_hears_of_a_new_publisher_without_asking(topic: str) -> None:
    async with namers(0.0, ask_again_s=(3600.0,)) as (subscriber,):
        subscriber.hear(topic)
        await until(lambda: subscriber.is_ready, "multicast DNS")
        await until(lambda: subscriber.groups.deadline > subscriber.clock() + 60, "its one question")
        async with namers(0.5) as (publisher,):
            publisher.publish(topic)
            await until(lambda: bool(subscriber.groups.groups_to_hear(topic)), "the group", timeout_s=5)


async def test_a_publisher_that_ceases_withdraws_and_another_keeps_the_name(topic: str) -> None:
    async with namers(0.5, 0.5) as (leaver, stays):
        leaver.publish(topic)
        await until(lambda: leaver.groups.group_to_send(topic) is not None, "a group")
        stays.publish(topic)
        await until(lambda: stays.groups.group_to_send(topic) == "239.255.128.0", "the same group")
        leaver.publish(topic, False)
        await until(lambda: not leaver.multicast_dns.announced, "its withdrawal")
        async with namers(0.9) as (late,):
            late.publish(topic)
            await until(lambda: late.groups.group_to_send(topic) is not None, "the group that is in use")
            assert late.chosen == ["239.255.128.0"]


async def test_a_group_that_is_found_while_a_member_leaves_is_not_joined(topic: str) -> None:
    async with members(1, free_udp_port()) as (leaver,):
        leaver.subscribe(topic)
        await until(lambda: topic in leaver.receivers.topics, "the subscription")
        stopping = asyncio.create_task(leaver.stop())
        # Comes in the turn of the loop in which the member closes its sockets, before multicast DNS ends.
        name = f"{mdns_label(topic)}.local."
        asyncio.get_running_loop().call_soon(
            leaver.multicast_dns.receive_address, name, "239.255.220.27", False
        )
        await stopping
        assert leaver.groups.groups_to_hear(topic) == ("239.255.220.27",)
        assert leaver.receivers.topics == []


async def test_members_find_each_other_and_not_those_of_another_port() -> None:
    port = free_udp_port()
    async with members(2, port) as (one, other), members(1, free_udp_port()) as (stranger,):
        found = {each: each.member.peers.known for each in (one, other, stranger)}
        for peers in found.values():
            peers.clear()  # They have heard each other's multicast.
        await until(lambda: ("127.0.0.1", other.own_port) in found[one], "one to find the other")
        await until(lambda: ("127.0.0.1", one.own_port) in found[other], "the other to find one")
        await until(lambda: stranger.multicast_dns.is_browsing, "the stranger to look")
        assert ("127.0.0.1", one.own_port) not in found[stranger]


async def test_what_the_library_cannot_do_is_said_once_and_the_rest_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr("zeroconf.asyncio.AsyncZeroconf", refuse)
    async with members(2, free_udp_port()) as (publisher, subscriber):
        subscriber.subscribe("a")
        publisher.say("a", b"new", qos=1)
        await until(lambda: subscriber.payloads == [b"new"], "the message of a new topic")
        await until(lambda: "multicast DNS does not work here" in caplog.text, "a word about it")
    said = [record for record in caplog.records if "multicast DNS" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.WARNING] * 2  # one for each member
    assert "Address already in use" in caplog.text


async def test_stopping_at_any_moment_ends_everything(topic: str) -> None:
    for delay_s in (0.0, 0.02, 0.1, 0.4):
        tasks = asyncio.all_tasks()
        async with namers(0.5) as (namer,):
            namer.publish(topic)
            await asyncio.sleep(delay_s)
        assert asyncio.all_tasks() == tasks
        assert not namer.multicast_dns.is_open


async def test_a_group_that_was_announced_before_anyone_wanted_to_know_is_reused_at_once(topic: str) -> None:
    """Nobody repeats an announcement within a second of it."""
    async with namers(0.25, 0.75) as (first, second):
        await until(lambda: first.is_ready and second.is_ready, "multicast DNS")
        first.publish(topic)
        await until(lambda: first.groups.group_to_send(topic) is not None, "a group")
        name = f"{mdns_label(topic)}.local."
        await until(lambda: bool(second.multicast_dns.heard(name)), "its announcement")
        second.publish(topic)
        await until(lambda: second.groups.group_to_send(topic) is not None, "the same group")
        assert second.chosen == ["239.255.64.0"]
