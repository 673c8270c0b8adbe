"""A bronze table as sixty days of one batch a second leave it, without having to wait for them.

What is there: a compacted file for each hour, the batches since the last compaction, the log of the last
twelve hours with what it says was removed, and its sum. The hours before the last two are one file under many
names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from hedgerow.pipeline.delta import LOG, UPKEEP, Delta, statistics_of
from tests.pipeline.rows import message

DAYS = 60
ROWS = 10  # of a batch
QUERY = "ingest-delta"
LAST = 5_183_470
"""The version after which people come: soon after it a compaction, a vacuum and a sum of the log are due."""
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def build(place: Path, schema: pa.Schema) -> None:
    """The table bronze below `place`, with the schema that the job gives it."""
    table = Delta(place, "bronze", ("date", "hour"))
    where, log = Path(table.where), Path(table.where) / LOG
    table.create(schema)
    first = (log / f"{0:020}.json").read_text()
    summed_up = LAST - LAST % UPKEEP.checkpoint_every
    compacted = LAST - LAST % UPKEEP.compact_every
    lines = [json.dumps(action) for action in _sum(where, schema, compacted, summed_up)]
    (log / f"{0:020}.json").write_text("\n".join([first.strip(), *lines]))
    DeltaTable(table.where).create_checkpoint()
    (log / f"{0:020}.json").unlink()
    _as_of(log, summed_up)
    for version in range(LAST - _seconds(UPKEEP.log_kept), LAST + 1):
        if version <= summed_up:
            actions: list[dict[str, Any]] = [_add(where, version, None), _number(version)]
        else:
            actions = [_add(where, version, _rows(version, 1, schema)), _number(version)]
        _write(log / f"{version:020}.json", actions)


def _as_of(log: Path, version: int) -> None:
    """Under the number of this version, with the sums before it, which nobody has removed yet."""
    made = log / f"{0:020}.checkpoint.parquet"
    for earlier in range(version - _seconds(UPKEEP.log_kept), version, UPKEEP.checkpoint_every):
        os.link(made, log / f"{earlier:020}.checkpoint.parquet")
    made.rename(log / f"{version:020}.checkpoint.parquet")
    last = json.loads((log / "_last_checkpoint").read_text())
    (log / "_last_checkpoint").write_text(json.dumps({**last, "version": version}))


def _sum(where: Path, schema: pa.Schema, compacted: int, summed_up: int) -> Iterator[dict[str, Any]]:
    old = where / "old.parquet"
    pq.write_table(pa.Table.from_batches([_rows(0, 3_600, schema)]), old, compression="zstd")
    for hour in range(DAYS * 24):
        ends_at = _at(compacted) - timedelta(hours=hour)
        path = where / _partition(ends_at) / f"hour-{hour}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        if hour < 2:
            rows = _rows(compacted - 3_600 * (hour + 1) + 1, 3_600, schema)
            pq.write_table(pa.Table.from_batches([rows]), path, compression="zstd")
        else:
            os.link(old, path)
        yield _added(where, path, ends_at - timedelta(hours=1), ends_at)
    old.unlink()
    for version in range(compacted + 1, summed_up + 1):
        yield _add(where, version, _rows(version, 1, schema))
    for version in range(compacted - _seconds(UPKEEP.log_kept), compacted):
        now_ms = int(datetime.now(UTC).timestamp() * 1_000)
        at = _at(version)
        removed = {"path": f"{_partition(at)}/{version}.parquet", "deletionTimestamp": now_ms}
        removed |= {"dataChange": False, "extendedFileMetadata": True, "size": 9_000}
        yield {"remove": {**removed, "partitionValues": _values(at)}}
    yield _number(summed_up)


def _rows(version: int, batches: int, schema: pa.Schema) -> pa.RecordBatch:
    """Of these batches, without what partitions the table."""
    columns = [name for name in schema.names if name not in ("date", "hour")]
    rows = []
    for number in range(batches * ROWS):
        at = _at(version + number // ROWS)
        values = [*message((version * ROWS) + number, received_at=at, topic=f"farm/{number % ROWS}")]
        rows.append(dict(zip(columns, [*values, None], strict=True)))
    return pa.RecordBatch.from_pylist(rows, pa.schema([schema.field(name) for name in columns]))


def _add(where: Path, version: int, rows: pa.RecordBatch | None) -> dict[str, Any]:
    """What a batch says; without rows its file has been compacted and removed."""
    path = where / _partition(_at(version)) / f"{version}.parquet"
    if rows is None:
        return _said(where, path, 9_000, json.dumps({"numRecords": ROWS}), _at(version))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_batches([rows]), path, compression="zstd")
    return _said(where, path, path.stat().st_size, statistics_of(pq.read_metadata(path)), _at(version))


def _added(where: Path, path: Path, begins_at: datetime, ends_at: datetime) -> dict[str, Any]:
    statistics = json.loads(statistics_of(pq.read_metadata(path)))
    for bound, at in (("minValues", begins_at), ("maxValues", ends_at)):
        statistics[bound]["received_at"] = at.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return _said(where, path, path.stat().st_size, json.dumps(statistics), ends_at)


def _said(where: Path, path: Path, size: int, statistics: str, at: datetime) -> dict[str, Any]:
    name = str(path.relative_to(where))
    return {"add": {"path": name, "partitionValues": _values(at), "size": size, "modificationTime": 0,
                    "dataChange": True, "stats": statistics}}  # fmt: skip


def _number(version: int) -> dict[str, Any]:
    return {"txn": {"appId": QUERY, "version": version, "lastUpdated": 0}}


def _write(path: Path, actions: list[dict[str, Any]]) -> None:
    info = {"commitInfo": {"timestamp": int(datetime.now(UTC).timestamp() * 1_000), "operation": "WRITE"}}
    path.write_text("\n".join(json.dumps(action) for action in [info, *actions]))


def _at(version: int) -> datetime:
    return NOW - timedelta(seconds=LAST - version)


def _values(at: datetime) -> dict[str, str]:
    return {"date": f"{at:%Y-%m-%d}", "hour": str(at.hour)}


def _partition(at: datetime) -> str:
    return "/".join(f"{name}={value}" for name, value in _values(at).items())


def _seconds(time: timedelta) -> int:
    return int(time.total_seconds())
