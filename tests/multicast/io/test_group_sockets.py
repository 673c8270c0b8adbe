"""Sockets by topic: those that hear, those that send, and what is done when there are too many."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hedgerow.multicast.groups import CONTROL_TOPIC
from hedgerow.multicast.io import sockets
from hedgerow.multicast.io.group_sockets import MAX_GROUPS, MAX_SENDERS, Receivers, Senders, SocketStats
from hedgerow_workshop.programs import free_udp_port
from tests.multicast.io.members import loopback, open_files, stranger_on_loopback
from tests.waiting import until

ONE, OTHER = "239.255.9.1", "239.255.9.2"


# Hearing


class Heard:
    """Tells which datagrams came for which topic."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.stats = SocketStats()
        self.came: list[tuple[str, bytes]] = []

    def read(self, receiver: socket.socket, topic: str) -> None:
        self.came.append((topic, receiver.recv(100)))

    async def wait_for(self, *came: tuple[str, bytes]) -> None:
        await until(lambda: len(self.came) >= len(came), f"{came}")
        assert self.came == list(came)
        self.came.clear()


@contextmanager
def receiving(max_groups: int = MAX_GROUPS) -> Iterator[tuple[Receivers, Heard]]:
    heard = Heard(free_udp_port())
    receivers = Receivers(loopback(), heard.port, heard.stats, heard.read, max_groups)
    try:
        yield receivers, heard
    finally:
        receivers.close()


def say(heard: Heard, *groups: str) -> None:
    """Something to each group, from a stranger."""
    with stranger_on_loopback() as stranger:
        for group in groups:
            stranger.sendto(group.encode(), (group, heard.port))


async def test_a_topic_is_heard_at_its_groups_and_no_others() -> None:
    with receiving() as (receivers, heard):
        assert receivers.hear("t", [ONE])
        receivers.hear("end", ["239.255.9.9"])
        for groups, came in (([ONE], {ONE}), ([ONE, OTHER], {ONE, OTHER}), ([OTHER], {OTHER}), ([], set())):
            assert receivers.hear("t", groups)
            for group in (ONE, OTHER):
                say(heard, group)
                # What is sent later arrives later: when this is here, nothing else is under way.
                say(heard, "239.255.9.9")
                expected = [("t", group.encode())] if group in came else []
                await heard.wait_for(*expected, ("end", b"239.255.9.9"))


async def test_a_topic_that_is_forgotten_is_heard_no_more_and_leaves_nothing_open() -> None:
    before = open_files()
    with receiving() as (receivers, _):
        receivers.hear("t", [ONE, OTHER])
        assert open_files() == before + 2
        receivers.forget("t")
        receivers.forget("t")
        assert open_files() == before
        assert receivers.topics == []


async def test_all_groups_are_joined_again_when_the_interfaces_have_changed() -> None:
    with receiving() as (receivers, heard):
        receivers.hear("t", [ONE])
        receivers.hear("not known yet", [])
        (before,) = receivers.opened["t", ONE]
        receivers.set_choice(loopback())
        assert before.fileno() == -1
        say(heard, ONE)
        await heard.wait_for(("t", ONE.encode()))


async def test_the_control_group_is_read_while_others_wait() -> None:
    with receiving() as (receivers, heard):
        receivers.hear("t", [ONE])
        receivers.hear(CONTROL_TOPIC, [OTHER])
        receivers.set_reading(False)
        say(heard, ONE, OTHER)
        await heard.wait_for((CONTROL_TOPIC, OTHER.encode()))
        receivers.set_choice(loopback())
        say(heard, ONE, OTHER)
        await heard.wait_for((CONTROL_TOPIC, OTHER.encode()))
        receivers.set_reading(True)
        await heard.wait_for(("t", ONE.encode()))


async def test_a_group_that_cannot_be_joined_is_counted_and_its_reason_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with receiving() as (receivers, heard):
        for topic in ("t", "u"):
            assert not receivers.hear(topic, ["127.0.0.1"])
        assert heard.stats.groups_refused == 2
    assert caplog.text.count("could not be joined") == 1


async def test_the_number_of_groups_is_bounded_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with receiving(max_groups=4) as (receivers, heard):
        joined = [receivers.hear(f"t/{number}", [f"239.255.9.{number}"]) for number in range(6)]
        assert joined == [True] * 4 + [False] * 2
        assert heard.stats.groups_refused == 2
    assert caplog.text.count("topics are heard already") == 1


async def test_the_limit_onopen_files_is_raised_and_then_respected(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    stats = SocketStats()
    choice = loopback()
    receivers = Receivers(choice, free_udp_port(), stats, lambda receiver, topic: None)
    here = open_files()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (here + 5, hard))
        for number in range(40):
            assert receivers.hear(f"t/{number}", [f"239.255.9.{number}"])
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        receivers.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_files() == here


async def test_overruns_are_counted() -> None:
    port = free_udp_port()
    stats = SocketStats()
    receivers = Receivers(loopback(), port, stats, lambda receiver, topic: None)
    receivers.set_reading(False)
    receivers.hear("t", ["239.255.9.9"])
    (receiver,) = receivers.opened["t", "239.255.9.9"]
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_304)
    with stranger_on_loopback() as stranger:
        for _ in range(50):
            stranger.sendto(bytes(1000), ("239.255.9.9", port))
    try:
        assert 0 < receivers.overruns < 50
        dropped = receivers.overruns
    finally:
        receivers.close()
    assert receivers.overruns == dropped


# Sending


@contextmanager
def sending(
    groups: dict[str, str], stats: SocketStats | None = None, max_senders: int = MAX_SENDERS
) -> Iterator[Senders]:
    """Senders to topics whose groups are in this table, which may change."""
    senders = Senders(loopback(), free_udp_port(), "link", stats or SocketStats(), groups.get, max_senders)
    try:
        yield senders
    finally:
        senders.close()


def where(senders: Senders, topic: str) -> list[str]:
    return [sender.getpeername()[0] for sender in senders.opened.get(topic, [])]


def test_a_topic_is_sent_to_its_group_by_a_socket_that_stays() -> None:
    with sending({"t": ONE}) as senders:
        sends = senders.open("t")
        assert len(sends) == 1
        assert senders.sends == {"t": sends}
        assert where(senders, "t") == [ONE]


def test_a_topic_whose_group_is_unknown_is_counted_and_looked_for_again() -> None:
    groups: dict[str, str] = {}
    stats = SocketStats()
    with sending(groups, stats) as senders:
        assert senders.open("t") == []
        assert stats.unresolved == 1
        assert senders.sends == {}
        groups["t"] = ONE
        assert senders.open("t")


def test_a_socket_is_given_up_when_its_topic_is_found_elsewhere() -> None:
    groups = {"t": ONE}
    with sending(groups) as senders:
        sends = senders.open("t")
        senders.look_again("t")
        assert senders.sends == {"t": sends}
        groups["t"] = OTHER
        senders.look_again("t")
        senders.look_again("never sent to")
        assert senders.sends == {}
        senders.open("t")
        assert where(senders, "t") == [OTHER]


def test_of_too_many_sockets_the_one_opened_first_is_closed() -> None:
    before = open_files()
    with sending(dict.fromkeys("abcde", ONE), max_senders=3) as senders:
        for topic in "abcde":
            senders.open(topic)
        assert list(senders.sends) == ["c", "d", "e"]
        assert open_files() == before + 3
    assert open_files() == before


def test_an_interface_that_refuses_is_counted_and_tried_again() -> None:
    def refuse(*arguments: object) -> socket.socket:
        raise OSError(101, "Network is unreachable")

    stats = SocketStats()
    with sending({"t": ONE}, stats) as senders:
        senders.open_sender = refuse
        assert senders.open("t") == []
        assert senders.sends == {}
        assert stats.send_errors == 1
        senders.open_sender = sockets.open_sender
        assert len(senders.open("t")) == 1


def test_what_one_interface_refuses_goes_by_the_others() -> None:
    sent: list[bytes] = []

    def refuse(datagram: bytes) -> int:
        raise OSError(100, "Network is down")

    def send(datagram: bytes) -> int:
        sent.append(datagram)
        return len(datagram)

    stats = SocketStats()
    with sending({}, stats) as senders:
        senders.send_each([refuse, send], b"x")
        assert sent == [b"x"]
        assert stats.send_errors == 1


def test_sockets_are_opened_anew_when_the_interfaces_have_changed() -> None:
    with sending({"t": ONE}) as senders:
        senders.open("t")
        senders.set_choice(loopback())
        assert senders.sends == {}
        assert senders.open("t")
