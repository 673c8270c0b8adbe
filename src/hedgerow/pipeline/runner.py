"""Runs jobs: once, in order, until nothing is left; or as long as nobody says stop.

A stop lets the batches that are under way finish. It is never needed for the tables' sake: what is ended in
any other way goes on from its checkpoint.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from hedgerow.errors import HedgerowError
from hedgerow.pipeline import progress
from hedgerow.pipeline.files import rotate
from hedgerow.pipeline.gaps import GAPS, read_gaps
from hedgerow.pipeline.locks import Lock
from hedgerow.pipeline.places import state_of
from hedgerow.pipeline.progress import Progress, QueryWatch
from hedgerow.pipeline.queries import OF_JOURNALS, STREAMS, SUMMARIES, QuerySettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

LOOK_S = 0.5
STOP_S = 30.0
# After the start jobs that read tables start too, whatever the others have come to. With fifteen busy
# programs beside it on two cores, a first plan took 99 s.
LATER_S = 180.0
SUMMARY_S = 300.0  # between two summaries, while streams run
SUMMARY_GROUP = "hedgerow summaries"
BACK_OFF_S = 1.0  # before a job that failed begins again; twice as long each time that it does no batch
MAX_BACK_OFF_S = 300.0
ROTATE_EVERY_S = 60.0
PUBLISH_EVERY_S = 5.0  # between two publications of progress
MUTE_S = 60.0  # after one that failed: each may take seconds, and a stop waits for it

Tell = Callable[[Progress], None]


@dataclass
class Retry:
    """Of a job that failed."""

    at: float
    wait_s: float


class Runner:
    """`tell` is given what has changed. `log`: what Java says, which is kept short."""

    def __init__(
        self,
        spark: SparkSession,
        settings: QuerySettings,
        tell: Tell,
        log: Path | None = None,
        back_off_s: float = BACK_OFF_S,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._tell = tell
        self._told: dict[str, Progress] = {}
        self._state = state_of(settings.tables)
        self._to_publish: dict[str, Progress] = {}
        self._publish_at = 0.0
        self._is_mute = False
        self._summary_at = 0.0
        self._locks: dict[str, Lock] = {}
        self._log = log
        self._rotate_at = 0.0
        self._back_off_s = back_off_s
        self._retries: dict[str, Retry] = {}
        self._summary: threading.Thread | None = None
        self._telling = threading.Lock()
        self.is_stopping = False

    def run(self, jobs: tuple[str, ...]) -> None:
        """HedgerowError: a job cannot begin, or failed where it was to run once, and why. One that fails
        later begins again after a while, and the others go on."""
        try:
            if self._settings.every_s is None:
                self._run_once(jobs)
            else:
                self._run_on(jobs)
        except (Py4JError, ConnectionError) as error:
            # A signal to the whole group, as `timeout` and systemd send it, ends Java before us.
            if not self.is_stopping:
                raise HedgerowError(f"Spark has ended: {explain(error)}") from error
        finally:
            for lock in self._locks.values():
                lock.release()
            if self._settings.publish is not None:
                self._settings.publish.close()

    def stop(self) -> None:
        """May be called from a signal handler."""
        self.is_stopping = True

    def summarise_soon(self) -> None:
        """While streams run. May be called from a signal handler."""
        self._summary_at = 0.0

    def _run_once(self, jobs: tuple[str, ...]) -> None:
        for job in jobs:
            if self.is_stopping:
                return
            if job in SUMMARIES:
                self._summarise(job)
            else:
                self._wait_for(self._start(job))

    def _run_on(self, jobs: tuple[str, ...]) -> None:
        """First the jobs that read journals: where all queries begin at once, the first plan comes when all
        of them are compiled, after 68 s of processor time and not 41 s."""
        watches: list[QueryWatch] = []
        starting = [job for job in jobs if job in OF_JOURNALS]
        later = [job for job in jobs if job in STREAMS and job not in OF_JOURNALS]
        summaries = [job for job in jobs if job in SUMMARIES]
        later_at = time.monotonic() + LATER_S
        self._summary_at = time.monotonic() + SUMMARY_S
        try:
            while not self.is_stopping:
                for job in starting:
                    watches += self._start(job)
                starting = []
                self._look_and_restart(watches)
                self._rotate()
                if later and (all(watch.is_under_way for watch in watches) or time.monotonic() >= later_at):
                    starting, later = later, []
                if time.monotonic() >= self._summary_at:
                    # Before it begins: who asks meanwhile asks for what this one may not have seen.
                    self._summary_at = time.monotonic() + SUMMARY_S
                    self._summarise_beside(summaries)
                time.sleep(LOOK_S)
        finally:
            self._stop_summary()
            self._stop(watches)

    def _summarise_beside(self, jobs: list[str]) -> None:
        """On a thread of its own: it reads all of bronze, and neither how long it takes nor that it fails is
        of any concern to the streams. One that is under way is not begun a second time, but once more."""
        if self._summary is not None and self._summary.is_alive():
            self._summary_at = time.monotonic() + LOOK_S
            return

        def summarise() -> None:
            self._spark.sparkContext.setJobGroup(SUMMARY_GROUP, "summaries", interruptOnCancel=True)
            for job in jobs:
                try:
                    self._summarise(job)
                except HedgerowError as error:
                    if not self.is_stopping:
                        logger.error("%s; it is calculated again in %g s", error, SUMMARY_S)

        self._summary = threading.Thread(target=summarise, name="summaries", daemon=True)
        self._summary.start()

    def _stop_summary(self) -> None:
        """As with a batch it may finish, for a time."""
        if self._summary is None:
            return
        self._summary.join(STOP_S)
        if self._summary.is_alive():
            with suppress(Py4JError, ConnectionError):
                self._spark.sparkContext.cancelJobGroup(SUMMARY_GROUP)
            self._summary.join(STOP_S)

    def _start(self, job: str) -> list[QueryWatch]:
        start, _ = STREAMS[job]
        if job not in self._locks:
            self._locks[job] = Lock(self._settings.tables, job)
        try:
            return [QueryWatch(job, query) for query in start(self._spark, self._settings)]
        except Exception as error:
            raise HedgerowError(f"{job}: {explain(error)}") from error

    def _wait_for(self, watches: list[QueryWatch]) -> None:
        try:
            while any(watch.query.isActive for watch in watches) and not self.is_stopping:
                self._look(watches)
                time.sleep(LOOK_S / 5)
            self._look(watches)
        finally:
            self._stop(watches)

    def _look(self, watches: list[QueryWatch]) -> None:
        for watch in watches:
            error = watch.query.exception()
            if error is not None and self.is_stopping:
                continue  # Java was told to stop as well.
            if error is not None:
                reason = explain(error)
                self._report(replace(watch.look(), state="failed", reason=reason))
                raise HedgerowError(f"{watch.job}: {reason}")
            self._report(watch.look())

    def _look_and_restart(self, watches: list[QueryWatch]) -> None:
        for watch in list(watches):
            error = None if self.is_stopping else watch.query.exception()
            if error is None:
                news = watch.look()
                if news.rows:
                    self._retries.pop(watch.job, None)
                self._report(news)
            elif watch in watches:  # Another query of the job may have taken it out.
                others = [each for each in watches if each.job == watch.job]
                watches[:] = [each for each in watches if each.job != watch.job]
                for each in others:
                    each.query.stop()
                self._fail(watch.job, explain(error), watch.look())
        for job, retry in list(self._retries.items()):
            if time.monotonic() >= retry.at and all(watch.job != job for watch in watches):
                try:
                    watches += self._start(job)
                except HedgerowError as error:
                    self._fail(job, str(error), Progress(job, "failed"))

    def _fail(self, job: str, reason: str, last: Progress) -> None:
        before = self._retries.get(job)
        wait_s = self._back_off_s if before is None else min(2 * before.wait_s, MAX_BACK_OFF_S)
        self._retries[job] = Retry(time.monotonic() + wait_s, wait_s)
        logger.error("%s failed: %s; it begins again in %g s", job, reason, wait_s)
        self._report(replace(last, state="failed", reason=reason))

    def _rotate(self) -> None:
        if self._log is not None and time.monotonic() >= self._rotate_at:
            self._rotate_at = time.monotonic() + ROTATE_EVERY_S
            rotate(self._log)

    def _stop(self, watches: list[QueryWatch]) -> None:
        """Each after its batch. One whose batch takes too long is interrupted: it will be done again."""
        give_up_at = time.monotonic() + STOP_S
        for watch in watches:
            was_active = watch.query.isActive
            while watch.query.status["isTriggerActive"] and time.monotonic() < give_up_at:
                time.sleep(LOOK_S / 10)
            watch.query.stop()
            if watch.query.exception() is None:
                self._report(replace(watch.look(), state="stopped" if was_active else "finished"))

    def _summarise(self, job: str) -> None:
        summarise, _ = SUMMARIES[job]
        self._report(Progress(job, "running"))
        began_at = time.monotonic()
        try:
            summarise(self._spark, self._settings)
        except Exception as error:
            reason = explain(error)
            self._report(Progress(job, "stopped" if self.is_stopping else "failed", reason=reason))
            raise HedgerowError(f"{job}: {reason}") from error
        self._report(Progress(job, "finished", batch_s=time.monotonic() - began_at))

    def _report(self, news: Progress) -> None:
        with self._telling:  # Summaries have a thread of their own.
            self._report_alone(news)

    def _report_alone(self, news: Progress) -> None:
        before = self._told.get(news.job)
        if before is not None and replace(before, unreadable=0) == news:
            return
        if news.behind is not None:  # It reads journals.
            gaps = read_gaps(str(self._state / GAPS))
            news = replace(news, unreadable=sum(gap.end - gap.start for gap in gaps))
        self._told[news.job] = news
        progress.store(news, self._state)
        self._tell(news)
        self._to_publish[news.job] = news
        is_late = time.monotonic() >= self._publish_at
        if is_late or (news.state != "running" and not self._is_mute):
            self._publish()

    def _publish(self) -> None:
        """For dashboards. One that is away misses nothing that it could not do without."""
        news, self._to_publish = self._to_publish, {}
        self._publish_at = time.monotonic() + PUBLISH_EVERY_S
        if self._settings.publish is None:
            return
        messages = [progress.message(each) for each in news.values()]
        try:
            self._settings.publish(messages)
            self._is_mute = False
        except (HedgerowError, OSError) as error:
            logger.warning("progress is not published: %s", error)
            self._is_mute = True
            self._publish_at = time.monotonic() + MUTE_S


def explain(error: BaseException) -> str:
    """One line: our own words where a part of ours said why, the first of Spark's otherwise."""
    text = str(error)
    ours = re.findall(r"^(?:hedgerow\.errors\.)\w+: (.+)$", text, re.MULTILINE)
    if ours:
        return str(ours[-1])
    if isinstance(error, HedgerowError):
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The first line may be of the bridge to Java; what happened there is the next.
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__
