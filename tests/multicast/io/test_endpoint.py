"""A member's sockets on the loopback interface: what is sent, what is heard, and what is refused."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.multicast.groups import CONTROL_GROUP_IPV4, CONTROL_TOPIC
from hedgerow.multicast.io import sockets
from hedgerow.multicast.io.endpoint import MulticastEndpoint, say_in_clear
from hedgerow.multicast.io.options import MulticastOptions
from hedgerow_workshop.programs import free_udp_port
from tests.multicast.io.members import Recorder, members, open_files, own_topic, stranger_on_loopback
from tests.waiting import until


async def test_a_message_reaches_those_who_subscribed_and_no_others() -> None:
    async with members(3, free_udp_port()) as (publisher, subscriber, other):
        subscriber.subscribe("home/+/status")
        other.subscribe("garden/#")
        publisher.say("home/vacuum/status", b"done", qos=1)
        publisher.say("garden/gate", b"open", qos=1)
        await until(lambda: bool(subscriber.received and other.received), "both messages")
        assert subscriber.payloads == [b"done"]
        assert other.payloads == [b"open"]
        assert publisher.received == []


async def test_a_topic_goes_on_in_its_own_group_once_that_is_known() -> None:
    topic = own_topic()
    async with members(2, free_udp_port()) as (publisher, subscriber):
        subscriber.subscribe(topic)
        publisher.say(topic, b"first")
        assert publisher.stats.unresolved == 1
        await until(lambda: subscriber.payloads == [b"first"], "the message by way of the control group")
        await until(lambda: publisher.groups.group_to_send(topic) is not None, "the topic's group")
        await until(lambda: bool(subscriber.groups.groups_to_hear(topic)), "the subscriber to hear of it")
        publisher.member.publisher.outgoing[topic].new_until = 0.0  # no longer new: its own group alone
        publisher.say(topic, b"second")
        await until(lambda: subscriber.payloads == [b"first", b"second"], "the message by the topic's group")
        assert publisher.stats.unresolved == 1


async def test_the_first_message_of_a_turn_leaves_at_once_and_the_others_leave_together() -> None:
    async with members(2, free_udp_port()) as (publisher, subscriber):
        subscriber.subscribe("a")
        publisher.say("a", b"warm")
        await until(lambda: subscriber.payloads == [b"warm"], "the first message")
        await asyncio.sleep(0)
        before = publisher.member.stats.datagrams_sent
        publisher.say("a", b"0")
        one = publisher.member.stats.datagrams_sent - before
        assert one > 0
        for number in range(1, 11):
            publisher.say("a", b"%d" % number)
        assert publisher.member.stats.datagrams_sent - before == one
        await until(lambda: len(subscriber.received) == 12, "all of them")
        assert publisher.member.stats.datagrams_sent - before == 2 * one
        assert subscriber.payloads[1:] == [b"%d" % number for number in range(11)]


async def test_a_large_message_and_many_small_ones() -> None:
    async with members(2, free_udp_port()) as (publisher, subscriber):
        subscriber.subscribe("#")
        publisher.say("large", bytes(range(256)) * 1024, qos=1)
        for number in range(500):
            publisher.say("small", b"%d" % number, qos=1)
        await until(lambda: len(subscriber.received) == 501, "everything, however the buffers overflowed")
        assert [each.payload for each in subscriber.received if each.topic == "large"] == [
            bytes(range(256)) * 1024
        ]
        small = [each.payload for each in subscriber.received if each.topic == "small"]
        assert small == [b"%d" % number for number in range(500)]


async def test_hostile_datagrams_are_counted_and_change_nothing() -> None:
    port = free_udp_port()
    async with members(2, port) as (publisher, subscriber):
        subscriber.subscribe("a")
        with stranger_on_loopback() as stranger:
            for garbage in (b"", b"x", bytes(1400), b"\1" * 9000):
                stranger.sendto(garbage, (CONTROL_GROUP_IPV4, port))
                stranger.sendto(garbage, ("127.0.0.1", subscriber.own_port))
        stats = subscriber.member.stats
        await until(lambda: (stats.malformed, stats.sealed) == (6, 2), "the garbage to be counted")
        publisher.say("a", b"still here", qos=1)
        await until(lambda: subscriber.payloads == [b"still here"], "the message")


async def test_the_own_port_is_the_next_one_or_any() -> None:
    port = free_udp_port()
    async with members(2, port) as (first, second):
        assert first.own_port == port + 1
        assert second.own_port not in (port, port + 1)
        assert first.name == f"multicast://lo:{port}"


async def test_a_peer_given_by_address_or_name_is_greeted() -> None:
    port = free_udp_port()
    async with members(1, port) as (first,):
        address = ("127.0.0.1", first.own_port)
        for peer in (f"127.0.0.1:{first.own_port}", f"localhost:{first.own_port}"):
            async with members(1, port, MulticastOptions(peers=(peer,))) as (second,):
                known = second.member.peers.known
                await until(partial(known.__contains__, address), f"{peer} to be a peer")
                assert known[address].is_configured


async def test_keys_keep_strangers_out_and_are_reloaded(tmp_path: Path) -> None:
    port = free_udp_port()
    old, new = f"1 {'11' * 32}\n", f"2 {'22' * 32}\n"
    path = tmp_path / "keys"
    path.write_text(old)
    options = MulticastOptions(key_file=path)
    async with members(2, port, options) as (publisher, subscriber), members(1, port) as (stranger,):
        subscriber.subscribe("a")
        stranger.subscribe("a")
        publisher.say("a", b"sealed", qos=1)
        stranger.say("a", b"in clear", qos=1)
        await until(lambda: subscriber.payloads == [b"sealed"], "the sealed message")
        await until(lambda: subscriber.member.stats.clear > 0, "the clear one to be refused")
        assert stranger.received == []
        path.write_text(new + old)
        publisher.set_keys(publisher.read_keys())
        publisher.say("a", b"of the new key", qos=1)
        await until(lambda: subscriber.member.stats.forged > 0, "a frame that no key opens")
        subscriber.set_keys(subscriber.read_keys())
        publisher.say("a", b"again", qos=1)
        await until(lambda: b"again" in subscriber.payloads, "the message of the new key")
        path.write_text("nonsense")
        with pytest.raises(ConfigError, match="keys:1"):
            subscriber.set_keys(subscriber.read_keys())
        publisher.say("a", b"as before", qos=1)
        await until(lambda: b"as before" in subscriber.payloads, "a message after a key file that is wrong")


async def test_that_nothing_is_encrypted_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    say_in_clear.cache_clear()
    async with members(2, free_udp_port()):
        pass
    said = [record for record in caplog.records if "in clear" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.WARNING]


async def test_stopping_tells_the_others_and_leaves_nothing_open() -> None:
    open_before = open_files()
    async with members(2, free_udp_port()) as (stays, leaver):
        leaver.subscribe("a")
        leaver.say("b", b"bye", qos=1)
        address = ("127.0.0.1", leaver.own_port)
        known = stays.member.peers.known
        await until(lambda: address in known, "its datagrams")
        await leaver.stop()
        await until(lambda: address not in known, "its farewell")
        await leaver.stop()  # again: nothing happens
    await until(lambda: open_files() == open_before, "the sockets to be closed")


async def test_a_cancelled_stop_still_leaves_nothing_open() -> None:
    open_before = open_files()
    member = Recorder(MulticastOptions(("lo",), ip=4, port=free_udp_port()))
    await member.start()
    member.say("b", b"bye", qos=1)
    stopping = asyncio.ensure_future(member.stop())
    await asyncio.sleep(0.01)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await until(lambda: open_files() == open_before, "everything to be closed")


async def test_what_cannot_be_sent_is_counted() -> None:
    topic = own_topic()

    def refuse(*arguments: object) -> socket.socket:
        raise OSError(101, "Network is unreachable")

    async with members(1, free_udp_port()) as (member,):
        member.say(topic, b"x")
        await until(lambda: member.groups.group_to_send(topic) is not None, "the topic's group")
        member.senders.open_sender = refuse
        member.say(topic, b"x")
        assert member.stats.send_errors == 1
        member.senders.open_sender = sockets.open_sender
        member.say(topic, b"x")
        await until(lambda: topic in member.senders.sends, "sending to work again")
        for sender in member.senders.opened[topic]:
            sender.shutdown(socket.SHUT_WR)
        member.say(topic, b"x")
        await asyncio.sleep(0)
        assert member.stats.send_errors == 2


async def test_while_reading_is_paused_nothing_is_delivered_and_qos_1_comes_afterwards() -> None:
    topic = own_topic()
    async with members(2, free_udp_port()) as (publisher, subscriber):
        subscriber.subscribe(topic)
        publisher.say(topic, b"first", qos=1)
        await until(lambda: subscriber.payloads == [b"first"], "the first message")
        await until(
            lambda: subscriber.receivers.opened.keys() > {(CONTROL_TOPIC, CONTROL_GROUP_IPV4)}, "a group"
        )
        publisher.member.publisher.outgoing[topic].new_until = 0.0
        subscriber.set_reading(False)
        for number in range(20):
            publisher.say(topic, b"%d" % number, qos=1)
        heard = subscriber.member.stats.datagrams_received
        async with members(1, subscriber.options.port):
            await until(lambda: subscriber.member.stats.datagrams_received > heard, "the control group")
        assert subscriber.payloads == [b"first"]
        subscriber.set_reading(True)
        await until(lambda: len(subscriber.received) == 21, "the rest")


async def test_without_multicast_dns_ipv4_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))  # without SO_REUSEPORT: nobody else may have it
        monkeypatch.setattr("hedgerow.multicast.io.mdns.MDNS_PORT", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=r"multicast DNS here, and UDP port \d+ cannot be shared"):
            await MulticastEndpoint(MulticastOptions(("lo",), ip=4, port=free_udp_port())).start()
