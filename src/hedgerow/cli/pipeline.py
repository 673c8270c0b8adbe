"""`hedgerow pipeline COMMAND`: Spark over the journals of a fabric.

`run [JOB…]` reads journals into tables until it is told to stop, `run --once` until nothing is left. SIGINT
and SIGTERM let the batches under way finish; whatever ends it, the next run goes on where this one was.
SIGUSR1 has `quality`, which is no stream, calculated now.
`check` looks for damage in journals, and needs no Spark. Progress goes to standard error: one line that
changes on a terminal, lines of what has changed elsewhere.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from glob import glob
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from hedgerow.cli import added_commands, module_of
from hedgerow.cli.long_runs import signals_as_exceptions
from hedgerow.cli.parsing import UsageError
from hedgerow.cli.pipeline_options import add_options
from hedgerow.cli.progress_line import ProgressLine
from hedgerow.cli.stop_signals import StopSignals
from hedgerow.client.urls import BROKER_SCHEMES, parse_url
from hedgerow.errors import ConfigError
from hedgerow.journal.io.files import is_journal
from hedgerow.pipeline.places import is_in_store, state_of
from hedgerow.pipeline.report.sections import added_sections

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hedgerow.pipeline.metrics import ProgressMetrics
    from hedgerow.pipeline.progress import Progress
    from hedgerow.pipeline.queries import QuerySettings
    from hedgerow.pipeline.runner import Runner

JOBS = ("ingest", "readings", "hot", "anomalies", "rollup", "quality", "devices")
TABLES = (
    "bronze", "readings", "quarantine", "hot", "anomalies", "late", "rollup", "last", "devices", "quality",
    "gaps", "latency", "sweep",
)  # fmt: skip
WORDS_AFTER: dict[str, str | tuple[str, ...]] = {"run": JOBS, "check": "DIR", "files": TABLES}
"""What a shell completes."""
OPTION_FLAGS = {
    "startingPosition": "--start",
    "startingTime": "--start",
}
LOG = "_spark.log"
QUIET_S = 5.0  # between two lines about one job where nobody sees a line change
EXAMPLES = """\
examples:
  hedgerow pipeline run --journal /var/lib/hedgerow/journal --tables tables --once
  hedgerow pipeline run ingest hot --journal 'journals/*' --tables tables --broker mqtt://house
  hedgerow pipeline run --master spark://10.0.0.7:7077 --journal /srv/journals/north --tables /srv/tables
  hedgerow pipeline report --tables tables
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "hedgerow pipeline COMMAND [OPTIONS]"
    texts = [each.text for each in COMMANDS.values()] + [each.HELP for each in _added().values()]
    parser.epilog = "\n".join(["commands:", *(f"  {text}" for text in texts), "", EXAMPLES])
    names = [*COMMANDS, *_added()]
    parser.add_argument("command", metavar="COMMAND", choices=names, help=f"one of: {', '.join(names)}")
    parser.add_argument("words", metavar="WORD", nargs="*", help="what the command is about")
    add_options(parser)
    for each in _added().values():
        each.add_arguments(parser)


def _added() -> dict[str, Any]:
    """The modules of commands that other packages add to `hedgerow pipeline`."""
    prefix = "pipeline."
    found = added_commands()
    return {name.removeprefix(prefix): module_of(name) for name in found if name.startswith(prefix)}


def run(arguments: argparse.Namespace) -> int:
    command = COMMANDS.get(arguments.command) or _added_command(arguments.command)
    if arguments.words and not command.takes_words:
        raise UsageError(f'what is "{arguments.words[0]}"? {arguments.command} takes options alone')
    if command.takes_spark:
        from hedgerow.pipeline.session import need_spark

        need_spark()
    for name in command.needs:
        if not getattr(arguments, name):
            raise UsageError(NEEDED[name])
    return command.run(arguments)


def _added_command(name: str) -> Command:
    def run(arguments: argparse.Namespace) -> int:
        with signals_as_exceptions():
            return int(_added()[name].run(arguments, lambda: _spark(arguments), Teller()))

    return Command(run, "")


# The commands


def run_jobs(arguments: argparse.Namespace) -> int:
    from hedgerow.pipeline.metrics import ProgressMetrics
    from hedgerow.pipeline.queries import check_jobs
    from hedgerow.pipeline.runner import Runner

    jobs = check_jobs(tuple(arguments.words))
    settings = read_settings(arguments)
    metrics, teller = ProgressMetrics(), Teller()

    def tell(news: Progress) -> None:
        metrics.tell(news)
        teller(news)

    with (
        signals_as_exceptions(),
        _unhurt_by_requests(),
        _serving(metrics, arguments.metrics),
        _spark(arguments) as spark,
    ):
        runner = Runner(spark, settings, tell, state_of(settings.tables) / LOG)
        with _heeding_signals(runner):
            runner.run(jobs)
    return 0


@contextmanager
def _serving(metrics: ProgressMetrics, address: tuple[str, int] | None) -> Iterator[None]:
    if address is None:
        yield
        return
    from hedgerow.pipeline.metrics import serving

    with serving(metrics, *address) as url:
        print(f"metrics: {url}", file=sys.stderr, flush=True)
        yield


def run_report(arguments: argparse.Namespace) -> int:
    from hedgerow.pipeline.report.report import PAGE, write_report

    has_tables = arguments.tables is not None
    asked = [(each, places) for each in added_sections() if (places := each.places(arguments))]
    directories = [state_of(arguments.tables)] if has_tables else []
    directories += [place for _, places in asked for place in places]
    if not directories:
        options = ["--tables PLACE", *(each.option for each in added_sections())]
        raise ConfigError(f"a report is about {', '.join(options)}{', or both' if options[1:] else ''}")
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"{directory}: there is no such directory")
    page = arguments.out or directories[0] / (PAGE if has_tables else asked[0][0].page)
    with signals_as_exceptions(), _spark(arguments) as spark:
        sections = [section for each, places in asked for section in each.sections(spark, places)]
        write_report(spark, page, arguments.tables, sections, arguments.form)
    print(f"report: {page}")
    return 0


def run_cluster(arguments: argparse.Namespace) -> int:
    import tempfile

    from hedgerow.pipeline.cluster import Cluster

    with (
        signals_as_exceptions(),
        tempfile.TemporaryDirectory(prefix="hedgerow-cluster-") as directory,
        Cluster(Path(directory), arguments.workers, arguments.cores, arguments.memory) as cluster,
    ):
        print(f"master {cluster.url}", flush=True)
        for worker in cluster.workers:
            assert worker.process is not None
            print(f"{worker.name}: process {worker.process.pid}", flush=True)
        print("Ctrl-C ends it", file=sys.stderr, flush=True)
        while True:
            time.sleep(3_600)


def run_check(arguments: argparse.Namespace) -> int:
    from hedgerow.journal import check

    directories = [*arguments.journal, *arguments.words]
    if not directories:
        raise UsageError("check DIR…: which journals?")
    is_whole = True
    for name in directories:
        report = check(Path(name))
        print(f"{name}: {report}")
        is_whole &= report.is_whole
    return 0 if is_whole else 1


def run_replay(arguments: argparse.Namespace) -> int:
    from hedgerow.pipeline.replay import replay_quarantine
    from hedgerow.pipeline.rules import load_rules

    rules = load_rules(arguments.rules)
    start, end = arguments.since, arguments.until
    if start is not None and end is not None and start >= end:
        raise ConfigError("--from is not before --to")
    if arguments.bronze and start is None:
        raise UsageError("--bronze reads all of bronze: say from when on with --from TIME")
    with signals_as_exceptions(), _spark(arguments) as spark:
        replayed = replay_quarantine(spark, arguments.tables, rules, start, end, from_bronze=arguments.bronze)
    print(replayed)
    return 0


def run_files(arguments: argparse.Namespace) -> int:
    from hedgerow.pipeline.tables import table_uris

    if len(arguments.words) != 1:
        raise UsageError("files TABLE: which table, such as bronze?")
    for uri in table_uris(arguments.tables, arguments.words[0]):
        print(uri)
    return 0


def write_project(arguments: argparse.Namespace) -> int:
    from hedgerow.pipeline.project import write_project

    if arguments.out is None:
        raise UsageError("where does it go? Give --out DIR")
    write_project(arguments.out, arguments.journal, arguments.rules)
    print(f"cd {arguments.out} && spark-pipelines run")
    return 0


class Command(NamedTuple):
    run: Callable[[argparse.Namespace], int]
    text: str
    needs: tuple[str, ...] = ()
    """Options without which it cannot be."""
    takes_words: bool = False
    takes_spark: bool = True


NEEDED = {
    "journal": "which journal? Give --journal DIR, that of a node (`up --journal`) or a recorder",
    "tables": "which tables? Give --tables PLACE, a directory or a URL",
    "rules": "which rules? Give --rules FILE",
}

COMMANDS = {
    "run": Command(
        run_jobs,
        f"run [JOB…]   carry out jobs: {', '.join(JOBS)} (default: all)",
        ("journal", "tables"),
        True,
    ),
    "replay-quarantine": Command(
        run_replay, "replay-quarantine   parse with other rules what could not be read", ("tables", "rules")
    ),
    "report": Command(run_report, "report       the tables as one HTML file"),
    "cluster": Command(run_cluster, "cluster      a Spark master and workers on this machine, to try one"),
    "files": Command(
        run_files,
        "files TABLE   the files of a table, for any program that reads Parquet",
        ("tables",),
        True,
        False,
    ),
    "project": Command(write_project, "project      the jobs as a project for spark-pipelines", ("journal",)),
    "check": Command(run_check, "check DIR…   look for damage in journals", (), True, False),
}


# What people write


def read_settings(arguments: argparse.Namespace) -> QuerySettings:
    from hedgerow.pipeline.delta import UPKEEP, Upkeep
    from hedgerow.pipeline.options import read_options
    from hedgerow.pipeline.queries import QuerySettings, source_options
    from hedgerow.pipeline.rules import load_rules
    from hedgerow.pipeline.session import is_here
    from hedgerow.pipeline.tables import form_of

    if arguments.broker is not None and parse_url(arguments.broker).scheme.name not in BROKER_SCHEMES:
        raise ConfigError(f"--broker {arguments.broker}: plans are published over MQTT")
    settings = QuerySettings(
        journals=tuple(arguments.journal),
        tables=arguments.tables,
        rules=load_rules(arguments.rules),
        topics=tuple(arguments.topic),
        start=arguments.start,
        form=arguments.form or form_of(arguments.tables, "bronze") or "delta",
        rows_per_batch=arguments.rows_per_batch,
        every_s=None if arguments.once else arguments.every,
        broker=arguments.broker,
        connect=_connect_options(arguments),
        ignore_missing=arguments.ignore_missing,
        late_s=arguments.late,
        ahead_s=arguments.ahead,
        plan_for=tuple(arguments.plan_for),
        plan_validity_s=arguments.plan_validity,
        share=arguments.share,
        capacity=arguments.capacity,
        upkeep=UPKEEP if arguments.keep is None else Upkeep(rows_kept=timedelta(seconds=arguments.keep)),
    )
    # Before Spark is started for nothing.
    try:
        read_options(source_options(settings, "ingest"))
    except ConfigError as error:
        raise ConfigError(_in_our_words(str(error))) from None
    if is_here(arguments.master):
        _look_for_journals(settings)
    return settings


def _in_our_words(text: str) -> str:
    """What the data source says of its options, which have other names here."""
    for option, flag in OPTION_FLAGS.items():
        text = text.replace(f"option {option}", flag)
    return text


def _look_for_journals(settings: QuerySettings) -> None:
    for pattern in settings.journals:
        if any(letter in pattern for letter in "*?["):
            if not glob(pattern):  # noqa: PTH207 - a pattern may be absolute
                print(f"hedgerow pipeline: no journal matches {pattern} yet", file=sys.stderr)
        elif not is_journal(Path(pattern)):
            inside = Path(pattern) / "journal"
            hint = f"; did you mean {inside}?" if is_journal(inside) else ""
            raise ConfigError(
                f"{pattern} holds no journal{hint or '; name the directory that a node writes'}"
            )
    if not is_in_store(settings.tables) and Path(settings.tables).is_file():
        raise ConfigError(f"--tables {settings.tables}: not a directory")


def _connect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of `hedgerow.connect`; what is not given is left to the URL."""
    names = {"username": "username", "password": "password", "cafile": "ca_file", "cert": "cert_file"}
    names |= {"key": "key_file", "insecure": "insecure"}
    return {name: value for word, name in names.items() if (value := getattr(arguments, word))}


@contextmanager
def _spark(arguments: argparse.Namespace) -> Iterator[SparkSession]:
    """The session; ended however the block is left."""
    from hedgerow.pipeline.session import open_session

    print(f"starting Spark on {arguments.master}", file=sys.stderr, flush=True)
    log = None if arguments.tables is None else state_of(arguments.tables) / LOG
    spark = open_session("hedgerow", arguments.master, dict(arguments.conf), log)
    if spark.sparkContext.uiWebUrl is not None:
        print(f"Spark's web interface: {spark.sparkContext.uiWebUrl}", file=sys.stderr, flush=True)
    try:
        yield spark
    finally:
        with suppress(Exception):  # Where Java has ended already there is nothing to stop.
            spark.stop()


@contextmanager
def _unhurt_by_requests() -> Iterator[None]:
    """While Spark starts and stops nobody can make a summary, and SIGUSR1 would end what has no handler.

    It is not ignored: Java would inherit that."""
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def _heeding_signals(runner: Runner) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for a stop, the second one ends it. SIGUSR1 asks for summaries."""

    signals = StopSignals()

    def stop(number: int, frame: FrameType | None) -> None:
        runner.stop()
        if signals.asks_again():
            signal.signal(number, before[number] or signal.SIG_DFL)
            signal.raise_signal(number)

    def summarise(number: int, frame: FrameType | None) -> None:
        runner.summarise_soon()

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGUSR1: summarise}
    before: dict[int, Any] = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Teller:
    """Progress for people."""

    def __init__(self) -> None:
        self._terminal = ProgressLine(sys.stderr) if sys.stderr.isatty() else None
        self._said: dict[str, tuple[str, float]] = {}

    def __call__(self, progress: Progress) -> None:
        line = progress.line()
        if self._terminal is not None and progress.state == "running":
            self._terminal.show(line)
            return
        state, at = self._said.get(progress.job, ("", 0.0))
        now = time.monotonic()
        if progress.state != state or now - at >= QUIET_S:
            self._said[progress.job] = (progress.state, now)
            if self._terminal is not None:
                self._terminal.say(line)
            else:
                print(line, file=sys.stderr, flush=True)
