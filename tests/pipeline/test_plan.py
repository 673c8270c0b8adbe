"""Which plans are published, and when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pytest

from hedgerow.errors import ConnectError
from hedgerow.hot.plan import MAX_PLAN_TOPICS, HotPlan
from hedgerow.hot.plan_codec import decode_plan
from hedgerow.message import Message
from hedgerow.pipeline.plan import Planner, to_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = 1_790_000_000.0
SECOND = 1_000_000
VERSION = round(NOW) * SECOND


class Row(NamedTuple):
    broker: str | None
    topic: str
    kept: bool
    version: int = VERSION


class Planned:
    """A planner whose clock and publications are at hand."""

    def __init__(self, *brokers: str) -> None:
        self.now = NOW
        self.sent: list[Message] = []
        self.refuses = False
        self.planner = Planner(self.publish, brokers, 30.0, lambda: self.now)

    def publish(self, messages: Sequence[Message]) -> None:
        if self.refuses:
            raise ConnectError("nobody is there")
        self.sent += messages

    def due(self, *rows: Row) -> dict[str, HotPlan]:
        self.planner.learn(rows, self.now)
        return self.planner.due(self.now)


def test_a_broker_is_to_keep_what_was_kept_when_it_last_had_events() -> None:
    rows = [Row("tractor", "silent", True, VERSION - SECOND), Row("tractor", "busy", True)]
    rows += [Row("tractor", "cold", False), Row("barn", "hay", True), Row(None, "busy", True)]
    assert Planned().due(*rows) == {
        "tractor": HotPlan(frozenset({"silent", "busy"}), VERSION, NOW + 30),
        "barn": HotPlan(frozenset({"hay"}), VERSION, NOW + 30),
    }


def test_a_topic_leaves_the_plan_when_it_is_delegated() -> None:
    planned = Planned()
    planned.due(Row("tractor", "soil", True), Row("tractor", "wind", False))
    later = VERSION + SECOND
    plans = planned.due(Row("tractor", "soil", False, later), Row("tractor", "wind", True, later))
    assert plans == {"tractor": HotPlan(frozenset({"wind"}), later, NOW + 31)}


def test_brokers_without_events_get_the_plan_of_all() -> None:
    planned = Planned("tractor", "drone")
    rows = [Row("tractor", "soil", True), Row("barn", "hay", True), Row(None, "hay", True)]
    plans = planned.due(*rows)
    assert {broker: set(plan.keep) for broker, plan in plans.items()} == {
        "tractor": {"soil"},
        "drone": {"hay"},
    }
    planned.now += 40
    plans = planned.due(Row(None, "milk", True, VERSION + 40 * SECOND))
    assert plans["tractor"].keep == {"hay", "milk"}, "its own events have ended long ago"


def test_without_rows_there_are_no_plans() -> None:
    assert Planned("tractor").due() == {}


@pytest.mark.parametrize("version", [VERSION - 30 * SECOND, VERSION + 61 * SECOND])
def test_neither_the_past_nor_the_future_is_planned(version: int) -> None:
    assert Planned().due(Row("tractor", "soil", True, version)) == {}


def test_a_plan_names_the_newest_topics_that_it_has_room_for() -> None:
    rows = [Row("tractor", f"t{number}", True, VERSION + number) for number in range(MAX_PLAN_TOPICS + 2)]
    (plan,) = Planned().due(*rows, Row("tractor", "no/+/name", True)).values()
    assert plan.keep == {f"t{number}" for number in range(2, MAX_PLAN_TOPICS + 2)}


def test_batches(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """Published once, again when it changes, before it expires, and after a failure."""
    planned = Planned()

    def run(second: int, *kept: tuple[str, bool], batch_id: int = 0) -> list[HotPlan]:
        """A batch that comes at that second, with the calculations of that one and of the one before."""
        planned.now, before = NOW + second, len(planned.sent)
        rows = [("tractor", topic, is_kept, at) for topic, is_kept in kept for at in (second - 1, second)]
        hot = spark.createDataFrame(rows, "broker string, topic string, kept boolean, second int")
        at = f"timestamp_seconds({VERSION // SECOND} + second) AS calculation_at"
        planned.planner.publish_plans(hot.selectExpr("broker", "topic", "kept", at), batch_id)
        plans = [decode_plan(message.payload, planned.now) for message in planned.sent[before:]]
        assert not any(isinstance(plan, str) for plan in plans)
        return [plan for plan in plans if isinstance(plan, HotPlan)]

    soil, wind = [("soil", True), ("wind", False)], [("soil", False), ("wind", True)]
    assert run(1, *soil) == [HotPlan(frozenset({"soil"}), VERSION + SECOND, NOW + 31)]
    assert run(1, *soil) == [], "the same batch again"
    assert run(2, *soil) == [], "nothing new"
    assert run(3, *wind) == [HotPlan(frozenset({"wind"}), VERSION + 3 * SECOND, NOW + 33)]
    assert run(2, *soil) == [], "an older batch again"
    assert run(17, *wind) == [], "it is valid for 16 s more"
    assert len(run(19, *wind)) == 1, "it would expire"
    planned.refuses = True
    assert run(20, *soil, batch_id=7) == []
    assert "the plans of batch 7 are not published: nobody is there" in caplog.text
    planned.refuses = False
    assert [plan.keep for plan in run(21, *soil)] == [{"soil"}]
    assert {(message.topic, message.qos, message.retain) for message in planned.sent} == {
        ("$hedgerow/plan/tractor", 1, True)
    }
    assert planned.sent[0].properties == {"message_expiry_interval": 30}
    assert json.loads(planned.sent[0].payload)["version"] == 1


def test_who_is_too_far_behind_says_it_once(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    planned = Planned()
    at = f"timestamp_seconds({VERSION // SECOND}) AS calculation_at"
    hot = spark.createDataFrame([("tractor", "soil", True)], "broker string, topic string, kept boolean")
    for second, plans, words in ((40, 0, 1), (41, 0, 1), (29, 1, 1), (42, 1, 2)):
        planned.now = NOW + second
        planned.planner.publish_plans(hot.selectExpr("*", at), 0)
        assert len(planned.sent) == plans
        assert caplog.text.count("s old, and a plan is valid for 30 s") == words
    assert "no plans: the newest calculation is 40 s old" in caplog.text


def test_a_name_that_is_no_topic_gets_no_plan(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    planned = Planned()
    rows = [("bad/#", "soil", True), ("good", "soil", True)]
    hot = spark.createDataFrame(rows, "broker string, topic string, kept boolean")
    at = f"timestamp_seconds({VERSION // SECOND}) AS calculation_at"
    planned.planner.publish_plans(hot.selectExpr("*", at), 0)
    assert [message.topic for message in planned.sent] == ["$hedgerow/plan/good"]
    assert "no plan for 'bad/#'" in caplog.text


def test_nobody_at_the_url() -> None:
    with pytest.raises((ConnectError, OSError)):
        to_broker("mqtt://127.0.0.1:1", timeout=1.0)([Message("t", b"")])
