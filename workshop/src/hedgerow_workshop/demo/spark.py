"""The pipeline over the farm's journals: one process, which is started first, since Spark takes its time.

All jobs run in it. Where it fails, as on a machine that is too busy for Spark's own patience, it is started
again a few times, and goes on from its checkpoints. At the end its tables are read from here, without Spark,
and beside them stands what was published. Nobody reads them afterwards, so that it is killed, with Java and
the workers that it has started: they would go on writing where all files are about to be removed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hedgerow.errors import HedgerowError
from hedgerow.extras import install_command
from hedgerow.message import Message, MessageId
from hedgerow.pipeline import progress
from hedgerow.pipeline.progress import Progress
from hedgerow_workshop.demo.farm import SENSOR_TOPICS
from hedgerow_workshop.demo.ledger import Key, key_of
from hedgerow_workshop.lab.harness.programs import LabProgram
from hedgerow_workshop.programs import descendants
from hedgerow_workshop.tables import load_rows

JOBS = ("ingest", "readings", "hot", "anomalies", "quality")  # whose results the summary tells
MAX_STARTS = 3
GONE_S = 10.0
POLL_S = 0.01
# Java's second compiler is for programs that run longer: it took 16 of 46 s of processor time until the plan.
# Without it Java makes room for less code than all jobs come to, and compiles no more when that is full.
JAVA = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


class Learned(NamedTuple):
    """What the jobs have made of the messages."""

    readings: int
    sensors: int
    """Each field of each for itself."""
    anomalies: int
    links: int
    """From a publisher to a broker that has messages of it, by the job `quality`."""
    lost: int
    """On these links; without the datagrams of sensors."""
    datagrams: int
    """Lost on these links, of the sensors'."""
    unknown: int = 0
    """Links of which nothing is known to be lost, nor that nothing is: the publisher has no journal."""

    def __str__(self) -> str:
        unknown = f", not known of {self.unknown} of them" if self.unknown else ""
        return (
            f"{self.readings:,} readings of {self.sensors} sensors and fields, {self.anomalies:,} anomalies; "
            f"on {self.links} links {self.lost:,} messages and {self.datagrams:,} datagrams lost{unknown}"
        )


def why_not() -> str:
    """What Spark lacks here; nothing if it can run."""
    if find_spec("pyspark") is None:
        return f"it is not installed ({install_command('spark')})"
    from hedgerow.pipeline.java import find_java

    try:
        find_java()
    except HedgerowError as error:
        return str(error)
    return ""


class PipelineProgram(LabProgram):
    def __init__(self, directory: Path, journals: Path) -> None:
        super().__init__("Spark", directory)
        self.started_at = 0.0  # for the first time
        self.asked_at = 0.0
        self.starts = 0
        self._launched_at = 0.0  # for the last time, as files have it
        self.asked_of = 0  # which start
        self._command: list[str] = []
        self.tables = directory / "tables"
        self._journals = journals
        self._temporary = directory / "tmp"
        self._temporary.mkdir()

    def start(self, broker: str, plan_for: str) -> None:
        words = ["pipeline", "run", *JOBS, "--journal", f"{self._journals}/*", "--tables", str(self.tables)]
        # On a busy machine Spark may be a minute behind the farm, and its plan is still worth following.
        words += ["--broker", broker, "--plan-for", plan_for, "--plan-validity", "3 min"]
        words += ["--conf", f"spark.local.dir={self._temporary}"]
        # What Spark and Java put aside is in our directory, and gone with it.
        options = f"-Djava.io.tmpdir={self._temporary} {JAVA}"
        environment = [f"TMPDIR={self._temporary}", f"JAVA_TOOL_OPTIONS={options}"]
        self.run(["/usr/bin/env", *environment, sys.executable, "-m", "hedgerow", *words])

    def run(self, command: list[str]) -> None:
        self.started_at = time.monotonic()
        self._command = command
        self._launch()

    def _launch(self) -> None:
        self.starts += 1
        self._launched_at = time.time()
        self.launch(self._command)

    def start_again(self) -> bool:
        """After it has ended by itself. False: it has failed too often."""
        self.end()
        if self.starts >= MAX_STARTS:
            return False
        self._launch()
        return True

    @property
    def is_under_way(self) -> bool:
        """Has it told of a job since it was last started?"""
        told = (self.tables / progress.DIRECTORY).glob("*.json")
        return any(each.stat().st_mtime >= self._launched_at for each in told)

    def end(self) -> None:
        if self.process is None:
            return
        # Where there is no /proc, none: Java ends by itself when Python is gone.
        started = list(descendants(self.process.pid))
        self.kill()
        for pid in started:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        give_up_at = time.monotonic() + GONE_S
        while any(map(_is_running, started)) and time.monotonic() < give_up_at:
            time.sleep(POLL_S)

    # What has become of the journals

    def journalled(self) -> int:
        """Rows of all journals."""
        from hedgerow.journal import JournalReader
        from hedgerow.journal.io.files import is_journal

        return sum(JournalReader(each).end_position for each in self._journals.iterdir() if is_journal(each))

    def unread(self) -> int:
        """Of these, those that are not in bronze yet; without what cannot be read, which never will be."""
        ingest = self._ingest()
        return max(0, self.journalled() - ingest.total_rows - ingest.unreadable)

    def rows(self) -> int:
        """Of all journals, that are in the first table."""
        return self._ingest().total_rows

    def _ingest(self) -> Progress:
        return progress.load(self.tables).get("ingest", Progress("ingest", "running"))

    def keys(self) -> Iterator[tuple[str, Key]]:
        """Of all rows of bronze, with the journal that each is of."""
        columns = ("journal", "topic", "payload", "origin", "epoch", "sequence")
        for row in load_rows(str(self.tables), "bronze", columns):
            message_id = MessageId(row["origin"], row["epoch"], row["sequence"])
            yield row["journal"], key_of(Message(row["topic"], row["payload"], id=message_id))

    def summarise(self) -> None:
        """Have the job `quality`, which is no stream, calculated with all that is there, once it runs."""
        self.asked_at = time.time()
        self.asked_of = 0
        self._ask()

    def _ask(self) -> None:
        """Before it is under way the signal would end it."""
        if self.asked_of != self.starts and self.is_under_way and not self.has_ended:
            self.asked_of = self.starts
            self.send(signal.SIGUSR1)

    def has_learned(self) -> bool:
        """Are the jobs done with what is in bronze, and `quality` since it was asked for?"""
        self._ask()
        found = progress.load(self.tables)
        if "quality" not in found or found["quality"].state != "finished":
            return False
        if (self.tables / progress.DIRECTORY / "quality.json").stat().st_mtime < self.asked_at:
            return False
        taken = {job: each.total_rows for job, each in found.items()}
        if taken.get("readings", 0) < taken.get("ingest", 0):
            return False
        # It tells how far it is after each batch, and no readings come any more.
        files = [path.stat().st_mtime for path in (self.tables / "readings").rglob("*.parquet")]
        judged = self.tables / progress.DIRECTORY / "anomalies.json"
        return judged.exists() and judged.stat().st_mtime >= max(files, default=0.0)

    def learned(self) -> Learned:
        tables = str(self.tables)
        readings = [
            (row["sensor"], row["field"]) for row in load_rows(tables, "readings", ("sensor", "field"))
        ]
        found = load_rows(tables, "anomalies", ("sensor", "field", "kind", "at"))
        links = [
            row
            for row in load_rows(tables, "quality", ("kind", "source", "target", "topic", "lost"))
            if row["kind"] == "link" and row["topic"] is not None
        ]
        datagrams = sum(row["lost"] or 0 for row in links if row["topic"] in SENSOR_TOPICS.values())
        return Learned(
            readings=len(readings),
            sensors=len(set(readings)),
            anomalies=len({tuple(row.values()) for row in found}),
            links=len({(row["source"], row["target"]) for row in links}),
            lost=sum(row["lost"] or 0 for row in links) - datagrams,
            datagrams=datagrams,
            unknown=len({(row["source"], row["target"]) for row in links if row["lost"] is None}),
        )


def _is_running(pid: int) -> bool:
    """One that has ended may wait for whoever is its parent now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
