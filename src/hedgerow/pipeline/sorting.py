"""Parsed messages into `readings` and `quarantine`: each of them into exactly one, whatever is killed.

A batch is decided once and made in one step (`steps`). Which messages are in which table is known from the
batches before (`seen`), so that a copy of another journal is dropped whenever it comes. Where the copy that
came first could not be read and a later one can, the message moves: it goes into readings, and the files of
quarantine that have it are replaced by others without it.

Beside the checkpoint of the query, in `_checkpoints/readings-steps`, are

    NUMBER.json        a step; replay.json is one of `replay`
    NUMBER.parquet     the ids that it adds to `seen`, where there are some
    base-NUMBER.parquet    all ids up to this batch
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from hedgerow.pipeline import seen
from hedgerow.pipeline.delta import UPKEEP, Delta, Upkeep, WrittenFile
from hedgerow.pipeline.divide import query_life
from hedgerow.pipeline.growth import FILE
from hedgerow.pipeline.jobs import readings
from hedgerow.pipeline.lake import Writing, to_arrow, write_files
from hedgerow.pipeline.seen import Seen
from hedgerow.pipeline.steps import Change, Step, is_possible, load_step, make_step, store_step
from hedgerow.pipeline.tables import check_lake_belongs, checkpoint_place, read_table, table_place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

READINGS, QUARANTINE = "readings", "quarantine"
REPLAY = "replay"
FOLD_EVERY = 64  # batches whose ids are files of their own
KEPT_STEPS = 16
_ID = ["origin", "epoch", "sequence"]


def struct(text: str) -> StructType:
    """Needs a session."""
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    return schema


def quarantine_schema(bronze: StructType) -> StructType:
    return StructType(
        [*bronze.fields, *(StructField(name, StringType()) for name in readings.QUARANTINE_ADDED)]
    )


class Sorter:
    """Of the tables below `place`; one at a time. `files`: at most so many of a table in one batch. Every
    `fold_every` batches their ids become one file, and of `kept_steps` batches the steps are kept."""

    def __init__(
        self,
        spark: SparkSession,
        place: str,
        bronze: StructType,
        files: int,
        upkeep: Upkeep = UPKEEP,
        fold_every: int = FOLD_EVERY,
        kept_steps: int = KEPT_STEPS,
    ) -> None:
        self.place = place
        self.seen = Seen()
        self._spark = spark
        self._files = files
        self._upkeep = upkeep
        self._fold_every = fold_every
        self._kept_steps = kept_steps
        self._steps = Path(checkpoint_place(place, "readings-steps"))
        self._last = -1
        self._bronze = bronze.names
        self._schemas = {READINGS: struct(readings.READING_SCHEMA), QUARANTINE: quarantine_schema(bronze)}
        check_lake_belongs(place, self._schemas, READINGS)
        self._steps.mkdir(parents=True, exist_ok=True)
        for name, schema in self._schemas.items():
            self._table(name).create(to_arrow(schema))
        self._recover()

    def sort(self, parsed: DataFrame, batch_id: int) -> None:
        """A batch of `readings.parse`. One that was decided is made as it was decided."""
        path = self._steps / f"{batch_id:012}.json"
        step = load_step(path)
        if step is None or not is_possible(step, self.place):
            step = self._prepare(parsed, batch_id)
            store_step(path, step)
        make_step(step, self.place, self._upkeep)
        self._remember(batch_id)

    def table(self, name: str) -> DataFrame:
        """As it is now."""
        return read_table(self._spark, self.place, name, schema=self._schemas[name])

    def replay(self, parsed: DataFrame, replaced: Sequence[str], kept: DataFrame) -> None:
        """In one step: the parsed messages into the two tables, and `kept` into quarantine, where `replaced`
        are the files that had them."""
        query = f"{REPLAY}/{uuid.uuid4()}"
        rows = parsed.persist()
        try:
            ids = readings.words(rows).drop("copies").toArrow()
            refused = readings.quarantine_of(rows, self._bronze)
            refused = refused.unionByName(kept.select(*refused.columns))
            changes = {
                QUARANTINE: Change(self._write(refused, QUARANTINE, REPLAY), list(replaced)),
                READINGS: Change(self._write(readings.readings_of(rows), READINGS, REPLAY), []),
            }
        finally:
            rows.unpersist()
        seen.store_words(ids, self._steps / f"{REPLAY}.parquet")
        store_step(self._steps / f"{REPLAY}.json", Step(query, 0, changes))
        self._finish_replay()

    def _prepare(self, parsed: DataFrame, batch_id: int) -> Step:
        parsed = parsed.persist()
        try:
            ids = readings.words(parsed).toArrow()
            known = self.seen.known(ids)
            rows, moved = parsed, None
            if known.num_rows or any(ids["copies"].to_pylist()):
                best = readings.best_copies(parsed)
                rows = readings.new_messages(best, seen.as_rows(self._spark, known)).persist()
                ids = readings.words(rows).toArrow()
                moved = rows.where("is_moved").select(*_ID)
            try:
                return self._step(rows, moved, ids.drop_columns(["copies"]), batch_id)
            finally:
                rows.unpersist()
        finally:
            parsed.unpersist()

    def _step(self, rows: DataFrame, moved: DataFrame | None, ids: pa.Table, batch_id: int) -> Step:
        prefix = f"{batch_id:08}"
        refused = readings.quarantine_of(rows, self._bronze)
        replaced = [] if moved is None else self._files_with(moved)
        if replaced and moved is not None:
            kept = self.rows(QUARANTINE, replaced).join(sql.broadcast(moved), on=_ID, how="left_anti")
            refused = refused.unionByName(kept.select(*refused.columns))
        changes = {
            QUARANTINE: Change(self._write(refused, QUARANTINE, prefix), replaced),
            READINGS: Change(self._write(readings.readings_of(rows), READINGS, prefix), []),
        }
        if ids.num_rows:
            seen.store_words(ids, self._steps / f"{batch_id:012}.parquet")
        return Step(f"readings/{query_life(self._spark)}", batch_id, changes)

    def _files_with(self, moved: DataFrame) -> list[str]:
        """The files of quarantine that have these messages."""
        if moved.isEmpty():
            return []
        return files_of(self.rows(QUARANTINE).join(sql.broadcast(moved), on=_ID, how="left_semi"))

    def rows(self, name: str, files: list[str] | None = None) -> DataFrame:
        """Of a table, or of these files of it, with the column `FILE`."""
        source = self._spark.read.format("hedgerow-table").option("withFile", "true")
        if files is not None:
            source = source.option("files", json.dumps(files))
        return source.load(table_place(self.place, name))

    def _write(self, rows: DataFrame, name: str, prefix: str) -> list[WrittenFile]:
        rows = rows.select(*self._schemas[name].names).coalesce(self._files)
        return write_files(rows, Writing(table_place(self.place, name), (), False, prefix))

    def _table(self, name: str) -> Delta:
        return Delta(self.place, name, upkeep=self._upkeep)

    # What is known from before

    def _recover(self) -> None:
        """What was decided is made. Whoever was here before may have been killed in the middle of it."""
        bases = sorted(self._steps.glob("base-*.parquet"))
        if bases:
            self.seen = Seen(seen.load_words(bases[-1]))
            self._last = int(bases[-1].stem.removeprefix("base-"))
        for path in sorted(self._steps.glob("[0-9]*.json")):
            # The last of them is the query's to make: with its batch it comes again.
            if int(path.stem) > self._last:
                self._last = int(path.stem)
                self._add_ids(self._steps / f"{path.stem}.parquet", self._last)
        self._finish_replay()

    def _remember(self, batch_id: int) -> None:
        if batch_id <= self._last:
            return
        self._last = batch_id
        self._add_ids(self._steps / f"{batch_id:012}.parquet", batch_id)
        if batch_id % self._fold_every == self._fold_every - 1:
            self._fold()

    def _add_ids(self, path: Path, batch_id: int) -> None:
        if path.exists():
            self.seen.add(seen.load_words(path), batch_id)

    def _fold(self) -> None:
        """One file of ids in place of many. The newest steps stay: their batches may come again."""
        base = self._steps / f"base-{max(self._last, 0):012}.parquet"
        self.seen.store(base)
        for path in self._steps.glob("base-*.parquet"):
            if path != base:
                path.unlink()
        for path in self._steps.glob("[0-9]*"):
            number = int(path.stem)
            if number <= self._last and (
                path.suffix == ".parquet" or number <= self._last - self._kept_steps
            ):
                path.unlink()

    def _finish_replay(self) -> None:
        path, ids = self._steps / f"{REPLAY}.json", self._steps / f"{REPLAY}.parquet"
        step = load_step(path)
        if step is None:
            return
        if is_possible(step, self.place):
            make_step(step, self.place, self._upkeep)
            self._add_ids(ids, max(self._last, 0))
            self._fold()
        path.unlink()
        ids.unlink(missing_ok=True)


def files_of(rows: DataFrame) -> list[str]:
    """That have these rows, of `Sorter.rows`."""
    return sorted(row[FILE] for row in rows.select(FILE).distinct().collect())
