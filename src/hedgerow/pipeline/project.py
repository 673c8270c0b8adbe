"""`project`: the jobs as a project of Spark Declarative Pipelines, for `spark-pipelines run`.

Spark then keeps the tables and the checkpoints itself. The project has the functions of the jobs and nothing
of theirs: bronze is a streaming table, and readings and quarantine are made of all of it, each message in
exactly one of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow.pipeline.files import replace_text
from hedgerow.pipeline.places import directory_of
from hedgerow.pipeline.rules import load_rules

_SPECIFICATION = """\
name: hedgerow
storage: {storage}
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.session.timeZone: UTC
  spark.sql.shuffle.partitions: "2"
"""

_TABLES = '''\
"""The tables of Hedgerow's pipeline, of the functions that `hedgerow pipeline run` has too."""

from pathlib import Path

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

from hedgerow.pipeline.jobs import ingest, readings as reading
from hedgerow.pipeline.rules import load_rules
from hedgerow.pipeline.source import columns_schema

JOURNALS = {journals!r}
RULES = load_rules({rules})
COLUMNS = ingest.bronze_schema(columns_schema()).names
spark = SparkSession.active()


def best() -> DataFrame:
    """Each message once, parsed."""
    return reading.taken_copies(reading.parse(spark.read.table("bronze"), RULES, columns=COLUMNS))


@pipelines.table(comment="every message of the journals, once", partition_cols=["date", "hour"])
def bronze() -> DataFrame:
    return ingest.bronze(spark.readStream.format("hedgerow").option("journals", JOURNALS).load())


@pipelines.materialized_view(comment="what sensors measured, by the rules")
def readings() -> DataFrame:
    return reading.readings_of(best())


@pipelines.materialized_view(comment="what cannot be read, with the reason")
def quarantine() -> DataFrame:
    return reading.quarantine_of(best(), COLUMNS)
'''


def write_project(out: Path, journals: Sequence[str], rules: Path | None) -> None:
    """Into a directory that is not there yet, or empty. ConfigError: it is not, or the rules are wrong."""
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} has something in it; name a new directory with --out")
    load_rules(rules)
    patterns = json.dumps([str(directory_of(journal)) for journal in journals])
    path = "" if rules is None else f"Path({str(rules.absolute())!r})"
    replace_text(out / "transformations/tables.py", _TABLES.format(journals=patterns, rules=path))
    storage = (out / "storage").absolute()
    storage.mkdir()
    replace_text(out / "spark-pipeline.yml", _SPECIFICATION.format(storage=storage.as_uri()))
