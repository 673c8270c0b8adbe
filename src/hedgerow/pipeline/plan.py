"""From hot topics to the plans that mobile brokers follow (`docs/mobility.md`), each retained on
`$hedgerow/plan/<broker>`.

A broker is to keep its In.Registry: the topics that were kept when they last had events. One without events
in the journals gets the plan of all brokers together. A plan's version is the time of its calculation in
microseconds, so that it grows over restarts, and a batch that comes again, or a history that is replayed,
changes nothing: what is not newer is refused by the broker, what has expired is not published. It expires
`validity_s` after its calculation: when the pipeline stops, brokers count for themselves again.

Published is a plan that names other topics than the one before, and any before that expires. A broker that
cannot be reached is written to the log and tried with the next batch; the query goes on. So it does when it
is so far behind that plans have expired before they are there, and the log says it once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sql

import hedgerow
from hedgerow.errors import ConnectError, HedgerowError, TopicError, reason_of
from hedgerow.hot.plan import MAX_PLAN_TOPICS, HotPlan
from hedgerow.hot.plan_codec import encode_plan
from hedgerow.message import Message, Properties
from hedgerow.pipeline.jobs.hot import MAX_AHEAD_S, registries
from hedgerow.topics import validate_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

VALIDITY_S = 30.0
PATIENCE_S = 10.0  # for all plans of a batch: meanwhile the query waits
MICROSECONDS = 1_000_000

Publish = Callable[[Sequence[Message]], None]


def plan_topic(broker: str) -> str:
    return f"$hedgerow/plan/{broker}"


@dataclass
class _Registry:
    kept: dict[str, None] = field(default_factory=dict)  # In.Registry, what had events last at the end
    version: int = 0
    """The newest calculation, in microseconds of Unix time."""


class Planner:
    """`publish_plans` is for `foreachBatch` of a query whose batches are rows of `hot_topics`.

    `brokers` are those that get a plan; without any, all that have rows. `publish` sends, and raises what
    `to_broker` does; tests give their own.
    """

    def __init__(
        self,
        publish: Publish,
        brokers: Iterable[str] = (),
        validity_s: float = VALIDITY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._publish = publish
        self._brokers = tuple(brokers)
        self._validity_s = validity_s
        self._clock = clock
        self._registries: dict[str | None, _Registry] = {}
        self._published: dict[str, HotPlan] = {}
        self._is_behind = False

    def publish_plans(self, batch: DataFrame, batch_id: int) -> None:
        now = self._clock()
        self.learn(latest_rows(batch).collect(), now)
        plans = self.due(now)
        self._tell_whether_behind(now)
        messages = [message for broker, plan in plans.items() for message in _messages(broker, plan, now)]
        if not messages:
            return
        try:
            self._publish(messages)
        except (HedgerowError, OSError) as error:
            logger.warning("the plans of batch %d are not published: %s", batch_id, reason_of(error))
            return
        self._published |= plans

    def _tell_whether_behind(self, now: float) -> None:
        newest = max((registry.version for registry in self._registries.values()), default=None)
        age_s = 0.0 if newest is None else now - newest / MICROSECONDS
        was_behind, self._is_behind = self._is_behind, age_s >= self._validity_s
        if self._is_behind and not was_behind:
            logger.warning(
                "no plans: the newest calculation is %.0f s old, and a plan is valid for %g s",
                age_s,
                self._validity_s,
            )

    def learn(self, rows: Iterable[Any], now: float) -> None:
        """Rows as of `latest_rows`."""
        newest = round((now + MAX_AHEAD_S) * MICROSECONDS)
        for row in sorted(rows, key=lambda row: (row.version, row.topic)):
            # A plan of a time to come would be the newest until that time has come.
            if row.version > newest:
                continue
            registry = self._registries.setdefault(row.broker, _Registry())
            registry.version = max(registry.version, row.version)
            registry.kept.pop(row.topic, None)
            if row.kept and _is_topic(row.topic):
                registry.kept[row.topic] = None
        for registry in self._registries.values():
            for topic in list(registry.kept)[: len(registry.kept) - MAX_PLAN_TOPICS]:
                del registry.kept[topic]

    def due(self, now: float) -> dict[str, HotPlan]:
        """Broker → the plan that is to be published."""
        brokers = self._brokers or tuple(filter(None, self._registries))
        plans = {broker: plan for broker in brokers if (plan := self._plan(broker)) is not None}
        return {broker: plan for broker, plan in plans.items() if self._is_due(broker, plan, now)}

    def _plan(self, broker: str) -> HotPlan | None:
        own, overall = self._registries.get(broker), self._registries.get(None)
        # When a broker's own rows have ended long ago, the network's are the better guess.
        if overall is not None and (own is None or own.version <= overall.version - self._validity_us):
            own = overall
        if own is None:
            return None
        return HotPlan(frozenset(own.kept), own.version, own.version / MICROSECONDS + self._validity_s)

    @property
    def _validity_us(self) -> int:
        return round(self._validity_s * MICROSECONDS)

    def _is_due(self, broker: str, plan: HotPlan, now: float) -> bool:
        before = self._published.get(broker)
        if plan.expires_at <= now or (before is not None and plan.version <= before.version):
            return False
        return before is None or plan.keep != before.keep or before.expires_at <= now + self._validity_s / 2


def latest_rows(hot: DataFrame) -> DataFrame:
    """`broker`, `topic`, `kept` and `version`: where each topic is, as far as a plan can name it."""
    latest = registries(hot).withColumn("version", sql.unix_micros("ranked_at"))
    # Whoever publishes can invent topics without end, and these rows go to the driver.
    side = Window.partitionBy("broker", "kept").orderBy(sql.col("version").desc(), sql.col("topic"))
    return (
        latest.withColumn("number", sql.row_number().over(side))
        .where(sql.col("number") <= MAX_PLAN_TOPICS)
        .select("broker", "topic", "kept", "version")
    )


def to_broker(url: str, **options: Any) -> Publish:
    """Publishes to the broker at `url`; `options` are those of `hedgerow.connect`.

    HedgerowError or OSError: not all of them are there.
    """

    async def send(messages: Sequence[Message]) -> None:
        async with asyncio.timeout(PATIENCE_S), hedgerow.connect(url, follow=False, **options) as bus:
            for message in messages:
                await bus.send(message)

    def publish(messages: Sequence[Message]) -> None:
        try:
            asyncio.run(send(messages))
        except TimeoutError as error:
            raise ConnectError(f"{url} has not taken them within {PATIENCE_S:g} s") from error

    return publish


def _messages(broker: str, plan: HotPlan, now: float) -> Sequence[Message]:
    """One, or none for a broker or a plan that nobody could follow."""
    try:
        topic = validate_name(plan_topic(broker))
        payload = encode_plan(plan, now)
    except ValueError as error:
        logger.warning("no plan for %r: %s", broker, error)
        return ()
    # The broker forgets it when it has expired.
    properties = Properties(message_expiry_interval=ceil(plan.expires_at - now))
    return (Message(topic, payload, qos=1, retain=True, properties=properties),)


def _is_topic(topic: str) -> bool:
    try:
        validate_name(topic)
    except TopicError:
        return False
    return True
