"""What `hedgerow pipeline` takes, and how it is read."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from pathlib import Path

from hedgerow.cli import client_options
from hedgerow.cli.option_values import broker_url, duration, real, whole
from hedgerow.errors import ConfigError
from hedgerow.journal.config import read_filter
from hedgerow.node.values import read_addresses
from hedgerow.pipeline.places import directory_of, location_of
from hedgerow.pipeline.report.sections import added_sections

MAX_EVERY_S = 86_400
MAX_LATE_S, MAX_AHEAD_S = 366 * 86_400, 86_400
MIN_KEPT_S, MAX_KEPT_S = 86_400, 100 * 366 * 86_400
MAX_ROWS_PER_BATCH = 1_000_000_000
MIN_PLAN_VALIDITY_S, MAX_PLAN_VALIDITY_S = 1, 86_400


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_spark_arguments(parser)
    _add_run_arguments(parser)
    _add_other_arguments(parser)


def _add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("Spark").add_argument
    add("--master", metavar="URL", default="local[*]", help="local[*] (default), spark://HOST:PORT, yarn, …")
    add(
        "--conf",
        type=_read_spark_setting,
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Spark; may be repeated",
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("run", "from journals to tables").add_argument
    add(
        "--journal",
        type=_read_journal,
        metavar="DIR",
        action="append",
        default=[],
        help="a journal, or a pattern such as 'journals/*'; may be repeated",
    )
    add(
        "--tables",
        type=_read_tables,
        metavar="PLACE",
        help="where the tables are: a directory that all workers reach, or a URL such as s3://bucket/lake",
    )
    add("--once", action="store_true", help="end when nothing is left")
    add(
        "--metrics",
        metavar="HOST:PORT",
        type=_read_address,
        help="serve how far the jobs are there, for Prometheus, such as localhost:9109",
    )
    add(
        "--every",
        type=duration(0, MAX_EVERY_S),
        metavar="TIME",
        default="1s",
        help="how often it looks for more (1s); more is fewer files",
    )
    add(
        "--topic",
        type=read_filter,
        metavar="FILTER",
        action="append",
        default=[],
        help="only these topics; may be repeated",
    )
    add(
        "--start",
        metavar="WHERE",
        default="earliest",
        help="of the first run: earliest (default), latest, or a time such as 2026-01-31T00:00Z",
    )
    add("--rules", metavar="FILE", type=Path, help="how payloads are read (default: the farm's table)")
    add(
        "--form",
        choices=("parquet", "delta", "iceberg"),
        help="of the bronze table (that which it has; a new one: delta)",
    )
    add(
        "--keep",
        type=duration(MIN_KEPT_S, MAX_KEPT_S),
        metavar="TIME",
        help="for which rows of tables are kept, such as 90d (for ever)",
    )
    add("--ignore-missing", action="store_true", help="go on without journals that are gone")
    add(
        "--rows-per-batch",
        metavar="N",
        type=whole(1, MAX_ROWS_PER_BATCH),
        help="at most so many in one batch (1,000,000)",
    )
    add(
        "--late",
        type=duration(0, MAX_LATE_S),
        metavar="TIME",
        default="1min",
        help="by which a reading may be older than its sensor's newest to be judged (1min)",
    )
    add(
        "--ahead",
        type=duration(0, MAX_AHEAD_S),
        metavar="TIME",
        default="1min",
        help="by which a sensor's clock may be ahead to be believed (1min)",
    )
    add(
        "--broker",
        type=broker_url,
        metavar="URL",
        help="publish plans for mobile brokers, and progress, there",
    )
    add(
        "--plan-for",
        metavar="NAME",
        action="append",
        default=[],
        help="a broker that is to get a plan (default: those that journals are of); may be repeated",
    )
    add(
        "--plan-validity",
        type=duration(MIN_PLAN_VALIDITY_S, MAX_PLAN_VALIDITY_S),
        metavar="TIME",
        default="30s",
        help="that a plan is followed without a newer one (30s)",
    )
    add("--share", metavar="SHARE", type=real(0, 1), default=0.5, help="of topics that a plan keeps (0.5)")
    add("--capacity", metavar="N", type=whole(0), help="topics that a plan keeps at most")
    client_options.add_login_arguments(parser.add_argument_group("at the broker").add_argument)


def _add_other_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("replay-quarantine").add_argument
    add("--from", dest="since", type=_read_time, metavar="TIME", help="of messages received then or later")
    add("--to", dest="until", type=_read_time, metavar="TIME", help="of messages received before then")
    add("--bronze", action="store_true", help="also those of bronze that no rule knew when they came")
    add = parser.add_argument_group("report").add_argument
    for each in added_sections():
        each.add_arguments(add)
    add(
        "--out", metavar="PATH", type=Path, help="the file (report.html beside the tables); of project, where"
    )
    add = parser.add_argument_group("cluster").add_argument
    add("--workers", metavar="N", type=whole(1), default=2, help="worker processes (2)")
    add("--cores", metavar="N", type=whole(1), default=1, help="of each worker (1)")
    add("--memory", type=_read_memory, metavar="SIZE", default="1g", help="of each worker (1g)")


def _read_spark_setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ConfigError(f'"{text}" is not KEY=VALUE such as spark.executor.memory=2g')
    return key, value


def _read_time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f'"{text}" is not a time such as 2026-01-31T00:00Z') from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _read_address(text: str) -> tuple[str, int]:
    for address in read_addresses(text, Path()):
        return address.host, address.port
    raise ConfigError(f'"{text}" is not an address such as localhost:9109')


def _read_journal(text: str) -> str:
    """A path stays as it is written."""
    return str(directory_of(text)) if ":/" in text else text


def _read_tables(text: str) -> str:
    return location_of(text) if ":/" in text else text.rstrip("/")


def _read_memory(text: str) -> str:
    """In Spark's words."""
    if not re.fullmatch("[1-9][0-9]{0,8}[kmgt]b?", text.lower()):
        raise ConfigError(f'"{text}" is not a size such as 512m or 1g')
    return text
