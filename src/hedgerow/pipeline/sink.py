"""The sink `hedgerow`: rows become publications at a broker, and a batch that comes again is dropped there.

    alarms.writeStream.format("hedgerow").options(broker="mqtt://localhost", query="alarms").start()

A row has `topic` (string), `payload` (binary or string) and, if they are not to be 1 and false, `qos`
(integer) and `retain` (boolean). Rows of QoS 1 and 2 are acknowledged by the broker before the batch commits:
each is published at least once. When a batch fails in the middle, or Spark ends before it commits, all of it
comes again, with the same message ids (`identities`), and a node drops what it has seen.

Executors publish, each task over a connection of its own. Spark's output mode is append: it offers no other
to sinks in Python.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from hedgerow.errors import ConfigError, HedgerowError
from hedgerow.pipeline.options import WriteOptions, write_options
from hedgerow.pipeline.publications import Publication, identities, publish, read_rows

if TYPE_CHECKING:
    from pyarrow import RecordBatch

logger = logging.getLogger(__name__)

_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "payload": (BinaryType, StringType),
    "qos": (ByteType, ShortType, IntegerType, LongType),
    "retain": (BooleanType,),
}
_NEEDED = ("topic", "payload")
# Of the streaming engine, in each of its tasks.
_BATCH_PROPERTY = "streaming.sql.batchId"
_QUERY_PROPERTY = "sql.streaming.queryId"
_SECONDS_MASK = 2**31 - 1


@dataclass
class Sent(WriterCommitMessage):
    """What a task did."""

    published: int
    skipped: int
    example: str = ""
    """Why the first of those was skipped."""


class StreamPublisher(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = write_options(options)
        _check_columns(schema)

    def write(self, iterator: Iterator[RecordBatch]) -> Sent:
        context = _task()
        batch = context.getLocalProperty(_BATCH_PROPERTY)
        query = context.getLocalProperty(_QUERY_PROPERTY)
        if batch is None or query is None:
            raise HedgerowError(
                f"this Spark does not tell its tasks {_BATCH_PROPERTY} and {_QUERY_PROPERTY}, from which the "
                "sink makes message ids; use Spark 4.3"
            )
        return _write(iterator, self._options, query, int(batch), context.partitionId())

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        _tell_skipped(messages, f"batch {batchId} of {self._options.query}")


class BatchPublisher(DataSourceArrowWriter):
    """For `df.write`: each call is a batch of its own, and a task that is tried again repeats its ids."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = write_options(options)
        _check_columns(schema)
        self._try = token_hex(16)
        self._batch = int(time.time()) & _SECONDS_MASK

    def write(self, iterator: Iterator[RecordBatch]) -> Sent:
        return _write(iterator, self._options, "", self._batch, _task().partitionId(), self._try)

    def commit(self, messages: list[Any]) -> None:
        _tell_skipped(messages, f"a write of {self._options.query}")


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _write(
    iterator: Iterator[RecordBatch],
    options: WriteOptions,
    run: str,
    batch: int,
    partition: int,
    salt: str = "",
) -> Sent:
    publications: list[Publication] = []
    refusals: list[str] = []
    rows = 0
    for record_batch in iterator:
        read_rows(record_batch, rows, publications, refusals)
        rows += record_batch.num_rows
    if refusals and not options.skips_invalid:
        raise HedgerowError(
            f"partition {partition} of batch {batch} has {len(refusals)} rows that cannot be published; "
            f"nothing of it was. {refusals[0]}. Mend the query, or set the option invalid to skip"
        )
    if publications:
        origin = f"{options.query}.{partition}"
        ids = identities(origin, run, batch, publications, salt)
        refusals += publish(options, origin, publications, ids)
    return Sent(rows - len(refusals), len(refusals), refusals[0] if refusals else "")


def _tell_skipped(messages: list[Any], where: str) -> None:
    skipped = [message for message in messages if isinstance(message, Sent) and message.skipped]
    if skipped:
        count = sum(message.skipped for message in skipped)
        logger.warning("%s: %d rows were not published, such as: %s", where, count, skipped[0].example)


def _check_columns(schema: StructType) -> None:
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            raise ConfigError(
                f"column {field.name}: rows to publish have {', '.join(_COLUMNS)}; select these, "
                "with what else is to be told in the payload (to_json, say)"
            )
        if not isinstance(field.dataType, kinds):
            names = " or ".join(kind.typeName() for kind in kinds)
            raise ConfigError(f"column {field.name} is {field.dataType.simpleString()}: it must be {names}")
    for name in _NEEDED:
        if name not in schema.fieldNames():
            raise ConfigError(f"rows to publish need the column {name}")
