"""Messages as the data source gives them, for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from hedgerow.journal import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType([StructField("journal", StringType()), *from_arrow_schema(schema()).fields])
RECEIVED_AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def message(position: int, **given: Any) -> tuple[Any, ...]:
    """A row; what is not given is something ordinary."""
    row = {
        "journal": "j1",
        "position": position,
        "origin": "node",
        "epoch": 1,
        "sequence": position,
        "broker": "b",
        "transport": "mqtt",
        "client": "c",
        "topic": "a/b",
        "payload": b"1",
        "qos": 1,
        "retain": False,
        "properties": None,
        "published_at": None,
        "received_at": RECEIVED_AT,
    }
    return tuple({**row, **given}[field.name] for field in SCHEMA)


def messages(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA)
