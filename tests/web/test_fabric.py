"""What the fabric's statuses say together, and that nothing in them can do harm."""

from __future__ import annotations

import json

import pytest

from hedgerow.topics import STATUS_PREFIX
from hedgerow.web import fabric as limits
from hedgerow.web.fabric import FORGET_S, SILENT_S, Fabric
from tests.web.statuses import NOW, farm, link, mesh, status, tell, tell_meshes


def test_a_status_is_read_whole() -> None:
    fabric = Fabric()
    tell(fabric, "barn", 17, links=[link("north")], hot=[["farm/wind", 19, "here"]], unknown={"x": [1]})
    node = fabric.nodes["barn"]
    assert (node.status.number, node.status.kind, node.status.counts["clients"]) == (17, "node", 3)
    (end,) = node.status.links
    assert (end.to, end.round_trip_ms, end.out_ledger["published"], end.in_ledger["duplicates"]) == (
        "north", 1.25, 1204, 10,
    )  # fmt: skip
    assert node.status.hot is not None
    assert node.status.hot[0].served == "here"
    assert node.delay_s == pytest.approx(0.02)
    assert fabric.ignored == 0


def test_what_is_missing_has_defaults() -> None:
    fabric = Fabric()
    fabric.receive(STATUS_PREFIX + "barn", b'{"version":1}', NOW)
    node = fabric.nodes["barn"]
    assert (node.status.kind, node.status.links, node.status.hot, node.lost) == ("node", (), None, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2}, {"version": "1"}, {"number": "17"}, {"number": 1.5}, {"number": True}, {"at": None},
        {"at": "now"}, {"urls": "mqtt://x"}, {"urls": [1]}, {"kind": 7}, {"links": {}}, {"links": [1]},
        {"links": [{"to": 5}]}, {"links": [{"round_trip_ms": "1"}]}, {"links": [{"out": {"published": "1"}}]},
        {"totals": [1]}, {"totals": {"received": 1.5}}, {"totals": {"received": 1 << 70}},
        {"counts": {str(key): key for key in range(1000)}}, {"hot": [["a", 1]]},
        {"hot": [["a", "1", "here"]]}, {"hot": "farm"}, {"events": [{"number": "1"}]}, {"events": 3},
        {"journal": 3}, {"pipeline": [1]}, {"at": float("nan")},
    ],
)  # fmt: skip
def test_a_wrong_type_is_counted_and_dropped(change: dict[str, object]) -> None:
    fabric = Fabric()
    payload = json.dumps({**json.loads(status("barn")), **change}).encode()
    fabric.receive(STATUS_PREFIX + "barn", payload, NOW)
    assert fabric.nodes == {}
    assert fabric.ignored == 1


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("barn", b'{"version":1}'),
        ("$hedgerow/status/", b'{"version":1}'),
        ("$hedgerow/status/barn/other", b'{"version":1}'),
        ("$hedgerow/status/barn/meshes", b'{"version":1,"filters":{}}'),  # of a node that never said anything
        ("$hedgerow/status/barn", b""),
        ("$hedgerow/status/barn", b"\xff\xfe"),
        ("$hedgerow/status/barn", b"[1]"),
        ("$hedgerow/status/barn", b'{"version":1,"at":NaN}'),
        ("$hedgerow/status/barn", b'{"version":1,"at":1e999}'),
        ("$hedgerow/status/barn", b'{"version":1,"number":' + b"9" * 5000 + b"}"),
        ("$hedgerow/status/barn", b"[" * 200_000),
        ("$hedgerow/status/barn", b'{"version":1,"x":"' + b"x" * limits.MAX_PAYLOAD + b'"}'),
    ],
)
def test_what_is_no_status_is_counted_and_dropped(topic: str, payload: bytes) -> None:
    fabric = Fabric()
    fabric.receive(topic, payload, NOW)
    assert fabric.nodes == {}
    assert fabric.ignored == 1


def test_rates_are_of_two_statuses_by_the_senders_clock() -> None:
    fabric = Fabric()
    tell(fabric, "barn", 1)
    assert fabric.nodes["barn"].rates is None
    tell(fabric, "barn", 2, at=NOW + 3.1, uptime_s=103.0)  # 2.1 s after the first, by its own clock
    rates = fabric.nodes["barn"].rates
    assert rates is not None
    assert (rates.received, rates.sent) == pytest.approx((10 / 2.1, 20 / 2.1))
    tell(fabric, "barn", 3, at=NOW - 9000, uptime_s=105.0)
    rates = fabric.nodes["barn"].rates
    assert rates is not None
    assert rates.received == 5.0, "the clock was set back: two seconds passed all the same"
    for number in range(4, 100):
        tell(fabric, "barn", number, uptime_s=103.0 + number)
    assert len(fabric.nodes["barn"].history) == limits.HISTORY


def test_a_restart_is_no_rate_and_no_loss() -> None:
    fabric = Fabric()
    tell(fabric, "barn", 50)
    tell(fabric, "barn", 51)
    tell(fabric, "barn", 1, at=NOW + 60, uptime_s=0.5)
    node = fabric.nodes["barn"]
    assert (node.rates, node.missing, node.status.number) == (None, 0, 1)
    tell(fabric, "barn", 1, at=0.0, uptime_s=0.2)  # and a clock that was lost with the power
    tell(fabric, "north", 50)
    tell(fabric, "north", 1, at=0.0, uptime_s=0.2)
    assert fabric.nodes["north"].status.at == 0.0


def test_a_status_that_was_asked_for_at_the_node_itself_has_no_number() -> None:
    fabric = Fabric()
    tell(fabric, "barn", 50)
    tell(fabric, "barn", 0, at=NOW + 52, uptime_s=152.0)
    tell(fabric, "barn", 53)
    assert (fabric.nodes["barn"].missing, fabric.ignored) == (0, 0)


@pytest.mark.parametrize("told", [5, None, [1, 2], {"rows": float("nan"), "deep": {"x": [1]}}])
def test_what_a_client_says_of_its_pipeline_hides_no_node(told: object) -> None:
    fabric = Fabric()
    tell(fabric, "barn", 1, pipeline={"hot": told})
    assert list(fabric.nodes["barn"].status.pipeline) == ["hot"]


def test_gaps_in_the_numbers_are_missing_statuses_and_count_as_lost() -> None:
    fabric = Fabric()
    tell(fabric, "barn", 1)
    tell(fabric, "barn", 5, totals={"dropped": 7})
    assert fabric.nodes["barn"].missing == 3
    assert fabric.nodes["barn"].lost == 10
    fabric.begin_counting()
    tell(fabric, "barn", 50)
    tell(fabric, "barn", 52)
    assert fabric.nodes["barn"].missing == 4, "what came before a new subscription is not missing"


def test_an_outdated_status_changes_nothing() -> None:
    fabric = Fabric()
    tell(fabric, "barn", 5)
    tell(fabric, "barn", 4)
    tell(fabric, "barn", 5)
    assert fabric.nodes["barn"].status.number == 5
    assert fabric.ignored == 2


def test_a_clock_that_is_ahead_gives_a_negative_delay() -> None:
    fabric = Fabric()
    tell(fabric, "barn", 1, at=NOW + 4)
    assert fabric.nodes["barn"].delay_s == pytest.approx(-2.98)


def test_a_node_falls_silent_and_is_forgotten_with_its_meshes() -> None:
    fabric = farm()
    heard_at = fabric.nodes["barn"].heard_at
    assert not fabric.nodes["barn"].is_silent(heard_at + SILENT_S)
    assert fabric.nodes["barn"].is_silent(heard_at + SILENT_S + 0.1)
    assert set(fabric.meshes["farm/#"]) == {"barn", "north"}
    fabric.receive(STATUS_PREFIX + "late", status("late", 1, at=NOW), heard_at + FORGET_S + 1)
    assert list(fabric.nodes) == ["late"]
    assert fabric.meshes == {}


def test_meshes_replace_what_the_node_said_before() -> None:
    fabric = farm()
    tell_meshes(fabric, "barn", {"other/#": mesh("barn")}, more_filters=4)
    assert set(fabric.meshes["farm/#"]) == {"north"}
    assert fabric.meshes["other/#"]["barn"].core == "barn"
    assert fabric.nodes["barn"].more_filters == 4
    tell_meshes(fabric, "north", {})
    assert set(fabric.meshes) == {"other/#"}


def test_events_are_kept_once_each_and_for_an_hour() -> None:
    fabric = Fabric()

    def told(*numbers: int) -> list[dict[str, object]]:
        return [{"number": n, "at": NOW + n, "kind": "joined", "text": f"{n}"} for n in numbers]

    tell(fabric, "barn", 1, events=told(1, 2))
    tell(fabric, "barn", 2, events=told(3, 2))
    assert [event.number for event in fabric.nodes["barn"].events] == [1, 2, 3]
    tell(fabric, "barn", 3, events=told(*range(4, 24)))
    for number in range(4, 20):
        tell(fabric, "barn", number, events=told(*range(number * 20, number * 20 + 20)))
    assert len(fabric.nodes["barn"].events) == limits.MAX_EVENTS
    fabric.nodes["barn"].heard_at = NOW + 350
    fabric.forget(NOW + FORGET_S + 350)
    assert [event.number for event in fabric.nodes["barn"].events] == list(range(350, 400))


def test_nodes_are_bounded() -> None:
    fabric = Fabric(max_nodes=10)
    for number in range(30):
        tell(fabric, f"node-{number}")
    assert len(fabric.nodes) == 10
    assert fabric.ignored == 20
    tell(fabric, "node-3", 2)
    assert fabric.nodes["node-3"].status.number == 2, "those that are known go on"


def test_what_is_held_is_bounded_and_given_back() -> None:
    fabric = Fabric(max_held=20_000)
    filters = {f"topic/{number}": mesh("barn") for number in range(100)}
    for number in range(10):
        tell(fabric, f"node-{number}")
        tell_meshes(fabric, f"node-{number}", filters)
    assert fabric.ignored > 5
    assert sum(len(node.meshes) for node in fabric.nodes.values()) == 100, "11 kB each: of one of them"
    fabric.forget(NOW + 2 * FORGET_S)
    tell(fabric, "again", 1)
    tell_meshes(fabric, "again", filters)
    assert len(fabric.nodes["again"].meshes) == 100


def test_what_is_told_anew_takes_the_room_of_what_was_told_before() -> None:
    fabric = Fabric(max_held=20_000)
    for number in range(1, 50):  # each a little longer than the one before
        tell(fabric, "barn", number, software="x" * (4_000 + number))
        tell_meshes(fabric, "barn", {f"{'y' * number}/{each}": mesh("barn") for each in range(50)})
    assert fabric.ignored == 0
    assert fabric.nodes["barn"].status.number == 49
    assert len(fabric.meshes) == 50


def test_lists_are_cut_to_what_a_node_may_say() -> None:
    fabric = Fabric()
    tell(fabric, "barn", links=[link(f"n{n}") for n in range(2000)], hot=[["t", 1, "here"]] * 200)
    status_read = fabric.nodes["barn"].status
    assert len(status_read.links) == 500
    assert status_read.hot is not None
    assert len(status_read.hot) == 50


def test_the_name_is_that_of_the_topic() -> None:
    """The ACL, and the rule that clients cannot publish there, are of topics: the JSON proves nothing."""
    fabric = Fabric()
    fabric.receive(STATUS_PREFIX + "mole", json.dumps({"version": 1, "node": "barn"}).encode(), NOW)
    assert list(fabric.nodes) == ["mole"]


def test_only_nodes_that_may_be_read_are_visible() -> None:
    fabric = farm()
    assert [node.node_id for node in fabric.visible(lambda topic: True)] == ["barn", "north", "south"]
    assert [node.node_id for node in fabric.visible(lambda topic: topic.endswith("/north"))] == ["north"]


@pytest.mark.parametrize(
    "change",
    [{"at": -1.7e308}, {"uptime_s": 1.7e308}, {"hot": [["a", 1.7e308, "here"]]},
     {"links": [{"round_trip_ms": 1.7e308}]}],
)  # fmt: skip
def test_a_number_that_no_page_can_reckon_with_is_dropped(change: dict[str, object]) -> None:
    fabric = Fabric()
    tell(fabric, "barn", 1, **change)
    assert fabric.ignored == 1


def test_statuses_of_the_same_moment_have_no_rate() -> None:
    fabric = Fabric()
    for number in range(1, 4):
        tell(fabric, "barn", number, uptime_s=number * 5e-324, totals={"received": number << 60})
    assert fabric.nodes["barn"].rates is None


def test_no_nesting_hides_a_node_or_raises() -> None:
    for depth in range(850, 1_000):
        fabric = Fabric()
        payload = status("barn", pipeline={"job": {"a": "HERE"}})
        fabric.receive(
            STATUS_PREFIX + "barn", payload.replace(b'"HERE"', b"[" * depth + b"]" * depth), NOW
        )  # Some can be read and not be written.
        assert len(fabric.nodes) + fabric.ignored == 1


def test_long_words_of_events_are_not_kept() -> None:
    fabric = Fabric()
    words = {"number": 1, "at": NOW, "kind": "x" * 10_000, "text": "x" * 10_000}
    tell(fabric, "barn", events=[words])
    (event,) = fabric.nodes["barn"].events
    assert len(event.kind + event.text) < 1_000


def test_who_is_silent_makes_place_for_who_speaks() -> None:
    fabric = Fabric(max_nodes=3)
    for name in ("a", "b", "c"):
        tell(fabric, name)
        tell_meshes(fabric, name, {"farm/#": mesh(name)})
    tell(fabric, "b", SILENT_S + 2)
    tell(fabric, "new", SILENT_S + 2)
    assert set(fabric.nodes) == {"b", "c", "new"}
    assert set(fabric.meshes["farm/#"]) == {"b", "c"}


def test_who_fills_what_is_held_does_not_silence_the_others() -> None:
    fabric = Fabric(max_nodes=5, max_held=10_000)
    tell(fabric, "barn")
    for number in range(1, 9):
        tell(fabric, f"invented-{number % 4}", number, software="x" * 4_000)
    assert fabric.ignored > 0
    tell(fabric, "barn", 2, software="x" * 1_200)
    assert fabric.nodes["barn"].status.number == 2
