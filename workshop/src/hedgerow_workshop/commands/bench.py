"""`hedgerow bench NAME`: measurements beside other programs, as a table and as JSON."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from hedgerow.cli.long_runs import signals_as_exceptions
from hedgerow_workshop.bench.report import BenchRequest, BenchResult, table, write_json
from hedgerow_workshop.commands.json_files import check_json_file

BENCHES: dict[str, tuple[str, str]] = {
    "devices": (
        "hedgerow_workshop.bench.devices",
        "thousands of devices that each say little, beside Mosquitto and others",
    ),
    "broker": (
        "hedgerow_workshop.bench.broker",
        "long runs, single messages and memory beside Mosquitto and others",
    ),
    "bridge": ("hedgerow_workshop.bench.bridge", "messages through a bridge, beside Mosquitto's own bridge"),
    "dashboard": (
        "hedgerow_workshop.bench.dashboard",
        "first paint and freshness of the dashboard, and what it costs",
    ),
    "federation": (
        "hedgerow_workshop.bench.federation",
        "messages along a line of brokers, beside Mosquitto's bridges",
    ),
    "monitoring": (
        "hedgerow_workshop.bench.monitoring",
        "what it costs to count hot topics, beside not counting",
    ),
    "multicast": (
        "hedgerow_workshop.bench.multicast",
        "messages without a broker, beside bare sockets and Zenoh",
    ),
    "pipeline": (
        "hedgerow_workshop.bench.pipeline",
        "from the fabric into Spark, beside Spark's own Parquet source",
    ),
    "replay": ("hedgerow_workshop.bench.replay", "reading a node's past, and what live clients notice of it"),
    "sensors": ("hedgerow_workshop.bench.sensors", "UDP sensors, beside a bare echo of the same packets"),
}
"""Each is a module with `run(BenchRequest) -> BenchResult`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "benches:\n" + "\n".join(f"  {name:<12}{text}" for name, (_, text) in BENCHES.items())
    parser.add_argument("name", metavar="NAME", choices=BENCHES, help=f"one of: {', '.join(BENCHES)}")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the rows to FILE")
    parser.add_argument(
        "--quick", action="store_true", help="shorter rounds: within a minute or two, and less exact"
    )
    parser.add_argument("--only", metavar="ROW", nargs="+", default=[], help="only these rows")
    parser.add_argument(
        "--peers",
        metavar="PEER",
        nargs="*",
        help="only these peers; without a name, none (default: all installed)",
    )


def run(arguments: argparse.Namespace) -> int:
    file: Path | None = arguments.json
    check_json_file(file)
    peers = None if arguments.peers is None else tuple(arguments.peers)
    request = BenchRequest(arguments.quick, tuple(arguments.only), peers)
    bench = import_module(BENCHES[arguments.name][0])
    with signals_as_exceptions():
        result: BenchResult = bench.run(request)
    if file is not None:
        write_json(file, result)
    print(table(result))
    return 0
