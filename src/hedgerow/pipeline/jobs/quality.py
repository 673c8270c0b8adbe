"""`quality`: what became of messages between two ends, from the journals of both.

Input: bronze rows of several journals. A journal is that of a broker (a node's own, or a recorder's beside
it; its name is the column `broker`), or of a *subscriber*, which has what an application received, copies
and all (`hedgerow sub --journal`: transport `subscriber`, its name is the column `client`). One message is
one id wherever it is found; rows without an id are left out.

`deliveries` has a row for each message and each end that should have it; `quality` sums them up.

| `kind` | `source` → `target` |
| --- | --- |
| link | the origin's broker (or the publisher that gives ids) → a broker |
| subscriber | the same → a subscriber |
| hop | a neighbour, or the far end of a bridge → the node that has it from there, as its journal says |

What was *published* is what the origin's journal has, and what any other has (`basis` "journal"); without
the origin's journal, what any journal has ("known"): a message that no journal has is then not missed.

**Lost** is exact between the first and the last message of a topic that the far end has. What was published
before the first (`before`) may be older than the subscription; what is behind the last (`open_end`) may be
under way still. A topic of which the far end has nothing is no topic of it. Without the source's journal
`lost` is what is missing at least; where nothing is known to be missing it is null, as nobody knows, and not
0. So always published = before + delivered + lost + open_end, a null counting as 0.

**Delay** is `received_at` at the target less `received_at` in the source's journal, or `published_at` where
the source has none. Both are clocks of different machines: a negative delay is kept as it is, counted in
`negative`, and `clock_skew_s` says how far the clocks are apart at least. Values that a subscriber got as
retained, and times that bronze clamped, have no delay. Percentiles are exact, of delays in steps of 10 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

SUBSCRIBER_TRANSPORT = "subscriber"
# Of what came from another broker, whose name is the column `client`.
HOP_TRANSPORTS = ("neighbour", "bridge")
# Spark's exact percentile remembers each distinct value: microseconds would be as many as there are messages.
DELAY_STEP_S = 1e-5

DELIVERY_COLUMNS = (
    "kind", "source", "target", "origin", "epoch", "sequence", "topic", "basis", "state", "copies",
    "duplicates", "sent_at", "received_at", "delay_s",
)  # fmt: skip
"""`state`: before, delivered, lost or open_end. `copies`: how often the target has it."""
QUALITY_COLUMNS = (
    "kind", "source", "target", "topic", "basis", "published", "before", "delivered", "lost", "open_end",
    "duplicates", "gaps", "delay_p50_s", "delay_p95_s", "delay_p99_s", "delay_max_s", "negative",
    "clock_skew_s", "first_at", "last_at",
)  # fmt: skip
"""`topic` null: all topics. `duplicates`: copies beyond the first. `gaps`: ranges of lost messages. `lost`
and `gaps` null: not known."""
_DELAYS = ("delay_p50_s", "delay_p95_s", "delay_p99_s", "delay_max_s")
LATENCY_COLUMNS = ("kind", "source", "target", "start", "delivered", "lost", *_DELAYS)
"""`start`: of a minute."""
GAP_COLUMNS = (
    "kind", "source", "target", "origin", "epoch", "topic", "first_sequence", "last_sequence", "missing",
    "from_at", "to_at",
)  # fmt: skip
"""Each a range of messages in a row, of one topic, that were lost; `missing` of the sequences in between were
of this topic. The times are those of the first and the last at the source."""


def quality(bronze: DataFrame, subscribers: Mapping[str, str] | None = None) -> DataFrame:
    """QUALITY_COLUMNS, for each link, hop and subscriber: one row for each topic, and one for all.

    `subscribers` (journal id → name) are journals that are to count as subscribers', such as a recorder's.
    """
    return summarise(deliveries(bronze, subscribers))


def deliveries(bronze: DataFrame, subscribers: Mapping[str, str] | None = None) -> DataFrame:
    """DELIVERY_COLUMNS: each message, for each end that has messages of its origin and topic."""
    messages = _messages(_arrivals(bronze, subscribers or {}))
    return _judge(_expected(messages))


def summarise(deliveries: DataFrame) -> DataFrame:
    """QUALITY_COLUMNS of `deliveries`."""
    keys = ("kind", "source", "target")
    counted = deliveries.withColumn("begins_gap", _begins_gap())
    with_topics = counted.withColumn("which", sql.explode(sql.array(sql.struct("topic"), _all_topics())))
    return (
        with_topics.groupBy(*keys, sql.col("which.topic").alias("topic"))
        .agg(*_figures())
        .select(*keys, "topic", *(name for name in QUALITY_COLUMNS if name not in (*keys, "topic")))
    )


def gaps(deliveries: DataFrame) -> DataFrame:
    """GAP_COLUMNS of `deliveries`."""
    order = Window.partitionBy("kind", "source", "target", "origin", "topic", "epoch").orderBy("sequence")
    keys = ("kind", "source", "target", "origin", "epoch", "topic")
    return (
        deliveries.withColumn("begins_gap", _begins_gap())
        .withColumn("gap", sql.sum(sql.col("begins_gap").cast("long")).over(order))
        .where(sql.col("state") == "lost")
        .groupBy(*keys, "gap")
        .agg(
            sql.min("sequence").alias("first_sequence"),
            sql.max("sequence").alias("last_sequence"),
            sql.count("*").alias("missing"),
            sql.min("sent_at").alias("from_at"),
            sql.max("sent_at").alias("to_at"),
        )
        .select(*GAP_COLUMNS)
    )


def latency(deliveries: DataFrame) -> DataFrame:
    """LATENCY_COLUMNS of `deliveries`: what became of the messages of each minute, by the source's clock
    where it has a journal."""
    minute = sql.date_trunc("MINUTE", sql.coalesce("sent_at", "received_at"))
    return (
        deliveries.where(sql.col("state").isin("delivered", "lost"))
        .withColumn("start", minute)
        .where(sql.col("start").isNotNull())
        .groupBy("kind", "source", "target", "start")
        .agg(
            sql.count_if(sql.col("state") == "delivered").alias("delivered"),
            sql.count_if(sql.col("state") == "lost").alias("lost"),
            *_percentiles(),
        )
        .select(*LATENCY_COLUMNS)
    )


def _percentiles() -> list[Column]:
    delays = sql.percentile("delay_s", sql.array(*(sql.lit(share) for share in (0.5, 0.95, 0.99, 1.0))))
    return [delays[at].alias(name) for at, name in enumerate(_DELAYS)]


def _arrivals(bronze: DataFrame, subscribers: Mapping[str, str]) -> DataFrame:
    """Each row, with the end whose journal has it and the neighbour that it came from."""
    is_subscriber = sql.col("transport") == SUBSCRIBER_TRANSPORT
    name = sql.when(is_subscriber, sql.coalesce("client", "broker")).otherwise(sql.col("broker"))
    if subscribers:
        names = sql.create_map(*(sql.lit(word) for pair in subscribers.items() for word in pair))
        name = sql.coalesce(names[sql.col("journal")], name)
        is_subscriber = is_subscriber | names[sql.col("journal")].isNotNull()
    is_subscriber = sql.coalesce(is_subscriber, sql.lit(False))
    is_hop = sql.col("transport").isin(*HOP_TRANSPORTS) & ~is_subscriber
    via = sql.when(is_hop, sql.coalesce("client", "transport"))  # A foreign broker has no name.
    is_clamped = sql.col("clamped").isNotNull() if "clamped" in bronze.columns else sql.lit(False)
    return bronze.where(sql.col("origin").isNotNull()).select(
        "origin",
        "epoch",
        "sequence",
        "topic",
        "journal",
        name.alias("end"),
        is_subscriber.alias("is_subscriber"),
        via.alias("via"),
        (is_subscriber & sql.col("retain")).alias("is_old_value"),
        "published_at",
        sql.when(~is_clamped, sql.col("received_at")).alias("received_at"),
    )


def _messages(arrivals: DataFrame) -> DataFrame:
    """One row for each message, with all its arrivals: the only shuffle of all rows."""
    is_at_origin = ~sql.col("is_subscriber") & (sql.col("end") == sql.col("origin"))
    arrival = sql.struct("journal", "end", "is_subscriber", "via", "is_old_value", "received_at")
    return arrivals.groupBy("origin", "epoch", "sequence").agg(
        # A bridge may give a topic another name at the other side; the message is the same.
        sql.coalesce(sql.min(sql.when(is_at_origin, sql.col("topic"))), sql.min("topic")).alias("topic"),
        sql.min("published_at").alias("published_at"),
        sql.collect_list(arrival).alias("arrivals"),
    )


def _expected(messages: DataFrame) -> DataFrame:
    """Each message for each stream of its origin and topic, with what of it arrived there.

    A stream is what an end has of an origin's topic, and how far it reaches.
    """
    place = sql.struct("epoch", "sequence")
    seen = messages.select("origin", "topic", place.alias("place"), sql.explode("arrivals").alias("at"))
    ends = seen.select(
        "origin",
        "topic",
        "place",
        sql.when(sql.col("at.is_subscriber"), sql.lit("subscriber")).otherwise(sql.lit("link")).alias("kind"),
        sql.col("origin").alias("source"),
        sql.col("at.end").alias("target"),
    ).where((sql.col("kind") == "subscriber") | (sql.col("target") != sql.col("origin")))
    hops = seen.where(sql.col("at.via").isNotNull()).select(
        "origin", "topic", "place", sql.lit("hop").alias("kind"), sql.col("at.via").alias("source"),
        sql.col("at.end").alias("target"),
    )  # fmt: skip
    streams = (
        ends.unionByName(hops)
        .groupBy("origin", "topic", "kind", "source", "target")
        .agg(sql.min("place").alias("first"), sql.max("place").alias("last"))
    )
    journalled = seen.where(~sql.col("at.is_subscriber")).select(sql.col("at.end").alias("source")).distinct()
    streams = streams.join(
        sql.broadcast(journalled.withColumn("is_journalled", sql.lit(True))), on="source", how="left"
    )
    return messages.join(sql.broadcast(streams), on=["origin", "topic"], how="inner")


def _judge(expected: DataFrame) -> DataFrame:
    at_target = "filter(arrivals, a -> a.end = target AND a.is_subscriber = (kind = 'subscriber'))"
    at_source = "filter(arrivals, a -> a.end = source AND NOT a.is_subscriber)"
    at = sql.struct("epoch", "sequence")
    state = (
        sql.when(sql.col("copies") > 0, sql.lit("delivered"))
        .when(at < sql.col("first"), sql.lit("before"))
        .when(at > sql.col("last"), sql.lit("open_end"))
        .otherwise(sql.lit("lost"))
    )
    is_hop = sql.col("kind") == "hop"
    delay_s = (sql.col("received_at").cast("double") - sql.col("sent_at").cast("double")) / DELAY_STEP_S
    return (
        expected.withColumn("at_target", sql.expr(at_target))
        .withColumn("at_source", sql.expr(at_source))
        .withColumn("over", sql.expr("filter(at_target, a -> kind != 'hop' OR a.via = source)"))
        # By another way, or never at this neighbour: nothing that this hop should have brought.
        .where(
            ~is_hop | (sql.size("over") > 0) | ((sql.size("at_source") > 0) & (sql.size("at_target") == 0))
        )
        .withColumn("copies", sql.size("over"))
        .withColumn("duplicates", sql.expr("copies - size(array_distinct(transform(over, a -> a.journal)))"))
        .withColumn("received_at", sql.expr("array_min(transform(over, a -> a.received_at))"))
        .withColumn("source_at", sql.expr("array_min(transform(at_source, a -> a.received_at))"))
        .withColumn("sent_at", sql.coalesce("source_at", sql.when(~is_hop, sql.col("published_at"))))
        .withColumn("is_old_value", sql.expr("exists(over, a -> a.is_old_value)"))
        .withColumn("delay_s", sql.when(~sql.col("is_old_value"), sql.round(delay_s) * DELAY_STEP_S))
        .withColumn("state", state)
        .withColumn(
            "basis", sql.when(sql.col("is_journalled"), sql.lit("journal")).otherwise(sql.lit("known"))
        )
        .select(*DELIVERY_COLUMNS)
    )


def _begins_gap() -> Column:
    order = Window.partitionBy("kind", "source", "target", "origin", "topic", "epoch").orderBy("sequence")
    before = sql.coalesce(sql.lag("state").over(order), sql.lit(""))
    return (sql.col("state") == "lost") & (before != "lost")


def _all_topics() -> Column:
    return sql.struct(sql.lit(None).cast("string").alias("topic"))


def _figures() -> list[Column]:
    return [
        sql.min("basis").alias("basis"),
        sql.count("*").alias("published"),
        *(sql.count_if(sql.col("state") == name).alias(name) for name in ("before", "delivered", "open_end")),
        _as_far_as_known(sql.count_if(sql.col("state") == "lost")).alias("lost"),
        sql.sum(sql.col("duplicates").cast("long")).alias("duplicates"),
        _as_far_as_known(sql.count_if("begins_gap")).alias("gaps"),
        *_percentiles(),
        sql.count_if(sql.col("delay_s") < 0).alias("negative"),
        sql.when(sql.min("delay_s") < 0, -sql.min("delay_s"))
        .when(sql.min("delay_s") >= 0, sql.lit(0.0))
        .alias("clock_skew_s"),
        sql.min("received_at").alias("first_at"),
        sql.max("received_at").alias("last_at"),
    ]


def _as_far_as_known(count: Column) -> Column:
    """Null for 0 where the source has no journal to say so."""
    return sql.when((count > 0) | (sql.min("basis") == "journal"), count)


SUMMARIES: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    "quality": summarise,
    "gaps": gaps,
    "latency": latency,
}
"""Of `deliveries`, by the name of the table."""
