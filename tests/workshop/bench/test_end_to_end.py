"""Ways from one broker to another: rows beside the peer, promises, and ways that are not open."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.bridge import MOSQUITTO, OUR_BRIDGES, PEER_BRIDGE, STAGES, Bridge
from hedgerow_workshop.bench.end_to_end import QOS_0, QOS_1, Stage, measure, wait_until_open
from hedgerow_workshop.bench.rounds import FULL, Plan

MOMENT = Plan(rounds=1, warm_up_s=0.02, round_s=0.05, starts=1)


def stand_ins() -> tuple[Bridge, ...]:
    """Our bridges, carried by Mosquitto: out and in."""
    if MOSQUITTO.version() is None:
        pytest.skip("mosquitto is not installed; `make test` fetches it where it can")
    return tuple(replace(each, carrier=MOSQUITTO, far=MOSQUITTO, at_least=None) for each in OUR_BRIDGES)


def test_only_the_rows_asked_for() -> None:
    ours = stand_ins()
    stages = [replace(stage, ours=ours) for stage in STAGES]
    result = measure(stages, MOMENT, ["qos1-64-mosquitto-hedgerow"])
    assert [row.name for row in result.rows] == ["qos1-64-mosquitto-hedgerow"]
    busy = result.about["busy"]
    assert isinstance(busy, dict)
    assert {name: list(each) for name, each in busy.items()} == {
        "qos1-64": ["mosquitto-hedgerow", "mosquitto-mosquitto"]
    }


def test_a_ratio_below_what_is_promised_is_said() -> None:
    ours = replace(stand_ins()[0], at_least=1e9)
    result = measure([Stage(QOS_1, (ours,), PEER_BRIDGE)], MOMENT)
    assert re.fullmatch(
        r"\['qos1-64-hedgerow-hedgerow: .*× is less than the 1e\+09× that we promise'\]",
        str(result.about["notes"]),
    )


def test_without_mosquitto_its_ways_are_left_out() -> None:
    absent = replace(MOSQUITTO, name="absent", version=lambda: None)
    far_absent = replace(OUR_BRIDGES[1], carrier=MOSQUITTO, far=absent)
    peer = replace(PEER_BRIDGE, carrier=absent, far=absent)
    result = measure([Stage(QOS_0, (stand_ins()[0], far_absent), peer)], MOMENT)
    assert [(row.name, row.peers) for row in result.rows] == [("qos0-64-hedgerow-hedgerow", {})]
    assert result.peers == []
    assert result.about["notes"] == ["absent: not installed"]


def test_a_way_on_which_nothing_comes_through() -> None:
    """Mosquitto's leaves a note; ours ends the bench."""
    hasty = replace(MOMENT, open_s=0.5)
    ours = stand_ins()[0]
    result = measure([Stage(QOS_0, (ours,), replace(PEER_BRIDGE, pattern="elsewhere/#"))], hasty)
    assert result.about["notes"] == ["mosquitto-mosquitto: no message came through within 0.5 s"]
    assert [row.peers for row in result.rows] == [{}]
    with pytest.raises(BenchError, match=r"hedgerow-hedgerow: no message came through within 0.5 s"):
        measure([Stage(QOS_0, (replace(ours, pattern="elsewhere/#"),), None)], hasty)


@contextmanager
def probed(passes_on: Callable[[int], Sequence[int]]) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A publisher and a subscriber, and between them something that passes on these messages, by their
    numbers, when it has heard the one with this number."""
    (publisher, source), (sink, subscriber) = socket.socketpair(), socket.socketpair()

    def serve() -> None:
        heard: list[bytes] = []
        while received := source.recv(65_536):
            heard.append(received)
            sink.sendall(b"".join(heard[number] for number in passes_on(len(heard) - 1)))

    serving = threading.Thread(target=serve)
    serving.start()
    with source, sink, subscriber:
        try:
            yield publisher, subscriber
        finally:
            publisher.close()
            serving.join()


@pytest.mark.parametrize(
    ("passed_on", "needed"),
    [
        pytest.param({2: [2]}, 3, id="the first are lost"),
        pytest.param({3: [0, 1, 2], 4: [3, 4]}, 5, id="all are late"),
        pytest.param({1: [0], 3: [3]}, 4, id="one is lost after the first that came"),
    ],
)
def test_a_way_is_open_when_nothing_is_under_way_any_more(
    passed_on: dict[int, list[int]], needed: int
) -> None:
    sent = []

    def pass_on(number: int) -> Sequence[int]:
        sent.append(number)
        return passed_on.get(number, ())

    with probed(pass_on) as (publisher, subscriber):
        wait_until_open(publisher, subscriber, (), FULL.open_s, lost_s=0.1)
        subscriber.setblocking(False)
        with pytest.raises(BlockingIOError):
            subscriber.recv(1)
    assert len(sent) == needed


def test_a_subscriber_that_is_thrown_out() -> None:
    publisher, source = socket.socketpair()
    sink, subscriber = socket.socketpair()
    sink.close()
    with (
        publisher,
        source,
        subscriber,
        pytest.raises(BenchError, match="closed the connection of a subscriber that waited"),
    ):
        wait_until_open(publisher, subscriber, (), FULL.open_s)
