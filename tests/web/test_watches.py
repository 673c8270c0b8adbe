"""The message viewer's subscriptions: what they show, to whom, and how little they may cost."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hedgerow.bridges.commands import NEW_BRIDGE
from hedgerow.broker.port import Port
from hedgerow.message import Message
from hedgerow.node.server import Server
from hedgerow.web import watches
from hedgerow.web.view import WatchView, everything
from hedgerow.web.watches import Watches
from tests.node.peers import running
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with running() as server:
        yield server


@pytest.fixture
def watched(server: Server) -> Watches:
    return Watches(server)


def publish(server: Server, topic: str, payload: bytes = b"x", retain: bool = False) -> None:
    Port(server.broker, "test", lambda message: None).publish(
        Message(topic, payload, 0, retain), server.clock()
    )
    server.flush()


def filters(server: Server) -> set[str]:
    return set(server.broker.subscriptions.local.counts)


def topics(view: WatchView) -> list[str]:
    return [row.topic for row in view.messages]


async def test_messages_are_shown_newest_first_behind_what_is_retained(
    server: Server, watched: Watches
) -> None:
    publish(server, "farm/soil", b"wet", retain=True)
    publish(server, "house/door", b"open", retain=True)
    assert topics(watched.look("anna", "farm/#", everything)) == ["farm/soil"]
    publish(server, "farm/wind", b"4")
    publish(server, "house/lamp", b"on")
    publish(server, "farm/rain", b"0")
    view = watched.look("anna", "farm/#", everything)
    assert topics(view) == ["farm/rain", "farm/wind", "farm/soil"]
    assert [row.number for row in view.messages] == [3, 2, 1]
    assert [row.retain for row in view.messages] == [False, False, True]
    assert view.messages[1].payload == b"4"
    assert view.messages[1].message_id.startswith(f"{server.node_id}/")


async def test_rights_are_asked_for_each_message(server: Server, watched: Watches) -> None:
    def may_read(topic: str) -> bool:
        return topic.startswith("farm/")

    publish(server, "house/door", retain=True)
    watched.look("anna", "#", may_read)
    publish(server, "farm/wind")
    publish(server, "house/door")
    assert topics(watched.look("anna", "#", may_read)) == ["farm/wind"]
    # And asked again: the right may have gone.
    assert topics(watched.look("anna", "#", lambda topic: False)) == []


async def test_viewers_do_not_share_a_watch(server: Server, watched: Watches) -> None:
    watched.look("anna", "#", everything)
    watched.look("ben", "#", lambda topic: False)
    publish(server, "secret")
    assert topics(watched.look("anna", "#", everything)) == ["secret"]
    assert topics(watched.look("ben", "#", lambda topic: False)) == []


async def test_commands_to_bridges_are_shown_to_nobody(server: Server, watched: Watches) -> None:
    watched.look("anna", "$SYS/broker/bridge/#", everything)
    publish(server, NEW_BRIDGE, b"connection north\naddress 192.0.2.1\nremote_password secret\n")
    await until(lambda: bool(watched.look("anna", "$SYS/broker/bridge/#", everything).messages), "the answer")
    shown = watched.look("anna", "$SYS/broker/bridge/#", everything).messages
    assert NEW_BRIDGE not in {row.topic for row in shown}
    assert not any(b"secret" in row.payload for row in shown)


@pytest.mark.parametrize(
    ("topic_filter", "problem"),
    [
        ("a/#/b", "'#' is not alone"),
        ("a+", "'+' shares"),
        ("$share/g/a", "shared"),
        ("a" * 2_000, "more than"),
    ],
)
async def test_a_filter_that_is_none_is_a_problem_and_no_subscription(
    server: Server, watched: Watches, topic_filter: str, problem: str
) -> None:
    before = filters(server)
    view = watched.look("anna", topic_filter, everything)
    assert problem in view.problem
    assert view.messages == ()
    assert len(watched) == 0
    assert filters(server) == before


async def test_a_watch_that_nobody_looks_at_is_gone(server: Server, watched: Watches) -> None:
    watched.look("anna", "farm/#", everything)
    assert "farm/#" in filters(server)
    await until(lambda: len(watched) == 0, "the watch to end")
    assert "farm/#" not in filters(server)


async def test_what_comes_too_fast_is_left_out_until_the_next_second(
    server: Server, watched: Watches
) -> None:
    publish(server, "farm/soil", retain=True)
    watched.look("anna", "farm/#", everything)
    for _ in range(2 * watches.MAX_PER_S):
        publish(server, "farm/wind")
    assert not server.broker.subscriptions.route("farm/wind").ports
    assert "farm/#" in filters(server)  # Neighbours see nobody come and go.
    view = watched.look("anna", "farm/#", everything)
    assert topics(view) == ["farm/wind"] * watches.MAX_PER_S
    assert view.left_out > 0
    await until(lambda: bool(server.broker.subscriptions.route("farm/wind").ports), "the next second")
    publish(server, "farm/rain")
    view = watched.look("anna", "farm/#", everything)
    assert topics(view)[0] == "farm/rain"
    assert "farm/soil" not in topics(view)  # What is retained is not told again.


async def test_so_many_messages_and_bytes_are_kept(server: Server, watched: Watches) -> None:
    publish(server, "before", retain=True)
    watched.look("anna", "#", everything)
    names = [f"t{number}" for number in range(watches.MAX_MESSAGES)]
    for name in names:
        publish(server, name)
    assert topics(watched.look("anna", "#", everything)) == names[::-1]
    watched.look("ben", "+", everything)
    for name in ("one", "two", "three"):
        publish(server, name)
    publish(server, "large", b"x" * (watches.MAX_BYTES - 2))
    assert topics(watched.look("ben", "+", everything)) == ["large", "three", "two"]
    publish(server, "huge", b"x" * (watches.MAX_BYTES + 1))
    (row,) = watched.look("ben", "+", everything).messages
    assert (row.topic, len(row.payload)) == ("huge", watches.MAX_BYTES)


async def test_a_paused_watch_keeps_what_it_has_and_costs_nothing(server: Server, watched: Watches) -> None:
    watched.look("anna", "farm/#", everything)
    publish(server, "farm/wind")
    watched.look("anna", "farm/#", everything, is_paused=True)
    assert "farm/#" not in filters(server)
    publish(server, "farm/rain")
    assert topics(watched.look("anna", "farm/#", everything, is_paused=True)) == ["farm/wind"]
    watched.look("anna", "farm/#", everything)
    publish(server, "farm/hail")
    assert topics(watched.look("anna", "farm/#", everything)) == ["farm/hail", "farm/wind"]


async def test_there_are_so_many_watches(server: Server, watched: Watches) -> None:
    for viewer in ("ben", *(f"viewer-{number}" for number in range(1, watches.MAX_WATCHES))):
        assert watched.look(viewer, "#", everything).problem == ""
    assert "try again later" in watched.look("dora", "#", everything).problem
    assert len(watched) == watches.MAX_WATCHES
    watched.look("ben", "#", everything, is_paused=True)
    assert watched.look("dora", "#", everything).problem == ""
    assert len(watched) == watches.MAX_WATCHES


async def test_one_viewer_cannot_take_them_all(server: Server, watched: Watches) -> None:
    for number in range(watches.MAX_WATCHES):
        watched.look("anna", f"t/{number}", everything)
    assert len(watched) == watches.MAX_WATCHES_OF_ONE
    assert watched.look("ben", "#", everything).problem == ""
