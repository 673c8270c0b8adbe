"""What happens on the farm, and what is measured of it.

Five steps share the seconds that the story has; one that needs more takes more. Counted is what is published
once everything has found everything. A step that waits in vain ends the story with a StoryError. However it
ends, whatever was broken is mended, and what is on its way may arrive: then the ledger says what is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from hedgerow.errors import HedgerowError, counted
from hedgerow_workshop.demo.farm import FIELDS, HOUSE, NORTH, SOUTH, TRACTOR, DemoFarm
from hedgerow_workshop.demo.ledger import Ledger
from hedgerow_workshop.demo.people import FARMER, LISTENERS, PANEL, PLACES, WORKERS, People
from hedgerow_workshop.demo.robots import MOP, ROBOTS, VACUUM, Robots
from hedgerow_workshop.demo.spark import Learned, PipelineProgram
from hedgerow_workshop.demo.terminal import Terminal
from hedgerow_workshop.demo.watch import Watch
from hedgerow_workshop.tables import Reckoning, reckon

STEPS = 5
PATIENCE_S = 30.0
PLAN_PATIENCE_S = 150.0  # With ten busy programs beside it on two cores, 84 s were measured.
INGESTED_S = 60.0  # An idle machine takes one or two; what is late then is not called lost.
LEARNED_S = 90.0  # With twelve busy programs beside it on two cores, 38 s and more than 60 s were measured.
SETTLE_S = 1.0  # A mesh around a broker that is not ours may bring a message twice while it forms.
DEAD_S = 1.0
CUT_S = 3.0  # Probes find a silent cut within two seconds.
DRIVE_S = 2.5  # until the tractor is on its own: two seconds, and the farm's `TAKEOVER_AFTER_S` half gone
REMEMBER_S = 60.0
QUIET_S = 0.5  # after the last message: what is doubled would come now
POLL_S = 0.05


class StoryError(HedgerowError):
    """Something did not come."""


@dataclass
class Cast:
    """All who take part. `robots` and `pipeline` are None where the machine cannot have them."""

    farm: DemoFarm
    people: People
    watch: Watch
    robots: Robots | None
    pipeline: PipelineProgram | None


@dataclass
class InSpark:
    """What was found in the tables at the end."""

    reckoning: Reckoning | None = None
    """None: it was not looked, since the story was ended before."""
    unread: int = 0
    """Rows of the journals that were not in bronze in time: nothing is said of what is missing there."""
    learned: Learned | None = None
    failures: int = 0
    """How often it was started again."""
    has_no_plan: bool = False
    """None came in time."""
    gave_up: str = ""
    """Why the rest of the story goes on without it."""

    @property
    def is_wrong(self) -> bool:
        found = self.reckoning
        if self.gave_up or self.has_no_plan:
            return True
        return found is not None and (bool(found.doubled) or (bool(found.lost) and not self.unread))


class Story:
    def __init__(
        self, cast: Cast, filters: Mapping[str, Collection[str]], terminal: Terminal, seconds: float
    ) -> None:
        self.ledger = Ledger(filters)
        self.measured: dict[str, float] = {}
        """Seconds, by what took them; without what the story did not come to."""
        self.took: dict[str, float] = {}
        """Seconds of each part, without what it waited for the story's own pace."""
        self.in_spark = None if cast.pipeline is None else InSpark()
        self.people = cast.people
        self.dashboard = cast.farm.dashboard
        self._cast = cast
        self._listeners = tuple(filters)
        self._places = PLACES if cast.robots is None else (*PLACES, ROBOTS)
        self._terminal = terminal
        self._seconds = seconds
        self._began_at = time.monotonic()
        self._doing = "the farm starts"
        self._step = 0

    async def tell(self) -> None:
        steps = {
            "finding": self._find,
            "the kill": self._kill,
            "the cut": self._cut,
            "the drive": self._drive,
            "the plan": self.follow_plan,
        }
        for number, (name, step) in enumerate(steps.items(), 1):
            self._step = number
            with self._timed(name):
                text = await step()
            self._terminal.step(f"{number}/{STEPS}", time.monotonic() - self._began_at, text)
            await self._linger(self._began_at + self._seconds * number / STEPS)

    async def end(self) -> None:
        """Mend what is broken, and let what is on its way arrive."""
        with self._timed("mending"):
            await self._mend()

    async def _mend(self) -> None:
        farm, people = self._cast.farm, self.people
        self._doing = "waiting for what is on its way"
        people.pause()
        farm.restore_internet()
        await farm.revive(SOUTH)
        if farm.tractor_is_at != HOUSE:
            farm.arrive(HOUSE)
        give_up_at = time.monotonic() + PATIENCE_S
        while (self.ledger.lost or people.unacknowledged) and time.monotonic() < give_up_at:
            await self._tick()
        await self._linger(time.monotonic() + QUIET_S)

    async def look_into_spark(self) -> None:
        """When nothing is published any more: is all of it in bronze, and what have the jobs learned?"""
        if self._cast.pipeline is not None and self.in_spark is not None:
            with self._timed("a look into Spark"):
                await self._look_into(self._cast.pipeline, self.in_spark)

    async def _look_into(self, pipeline: PipelineProgram, found: InSpark) -> None:
        self._doing = "waiting for Spark to have read the journals"
        began_at = time.monotonic()
        if await self._is_within(lambda: bool(found.gave_up) or not pipeline.unread(), INGESTED_S):
            self._note("all in Spark", time.monotonic() - began_at)
        if found.gave_up:
            return
        found.unread = pipeline.unread()
        published = self.ledger.acknowledged
        found.reckoning = await asyncio.to_thread(lambda: reckon(published, pipeline.keys()))
        if found.unread:
            return
        self._doing = "waiting for what Spark makes of it"
        pipeline.summarise()
        is_over = lambda: bool(found.gave_up) or pipeline.has_learned()  # noqa: E731
        if await self._is_within(is_over, LEARNED_S) and not found.gave_up:
            found.learned = await asyncio.to_thread(pipeline.learned)

    async def go_on(self) -> None:
        """For as long as somebody looks."""
        self._doing = "the farm goes on"
        self.people.resume()
        while True:
            begun_at = time.monotonic()
            await self._linger(begun_at + REMEMBER_S)
            self.ledger.forget_before(begun_at)

    # The steps: each gives what it has come to

    async def _find(self) -> str:
        cast = self._cast
        hellos = cast.people.ledger
        began_at = time.monotonic()
        await cast.people.listen()
        await cast.people.begin()
        if cast.robots is not None:
            await cast.robots.begin()
        found_at = await self._through(
            hellos, 0.0, self._places, self._listeners, "everyone to hear everyone"
        )
        self._note("found", found_at - began_at)
        # The settling is not part of what is counted.
        await self._linger(time.monotonic() + SETTLE_S)
        cast.people.count_in(self.ledger)
        who = f"{len(PLACES)} places" + ("" if cast.robots is None else " and the robots")
        return (
            f"everything finds everything: all {len(self._listeners)} listeners hear from {who} "
            f"after {found_at - began_at:.1f} s"
        )

    async def _kill(self) -> str:
        farm, ledger = self._cast.farm, self.ledger
        await self._through(ledger, 0.0, self._places, self._listeners, "traffic that is counted")
        self._doing = f"{SOUTH} is killed"
        killed_at = time.monotonic()
        farm.kill(SOUTH)
        others = [place for place in self._places if place != SOUTH]
        listeners = [name for name in self._listeners if LISTENERS.get(name, ("",))[0] != SOUTH]
        healed_at = await self._through(ledger, killed_at, others, listeners, "the others to hear each other")
        await self._linger(killed_at + DEAD_S)
        self._doing = f"{SOUTH} is started again"
        await farm.revive(SOUTH)
        back_at = time.monotonic()
        await self._through(ledger, back_at, self._places, self._listeners, f"{SOUTH} to be heard again")
        await self.until(lambda: not ledger.waiting(self._listeners, back_at), "what was published meanwhile")
        caught_up_at = time.monotonic()
        self._note("healed", healed_at - killed_at)
        self._note("all caught up", caught_up_at - back_at)
        return (
            f"{SOUTH} is killed: the others hear each other after {healed_at - killed_at:.1f} s. It is back "
            f"after {back_at - killed_at:.1f} s; {caught_up_at - back_at:.1f} s later everything has arrived"
        )

    async def _cut(self) -> str:
        farm, ledger = self._cast.farm, self.ledger
        # Else what has just passed the link would be counted as what passed it while it was cut.
        await self.until(lambda: not ledger.lost, "what is on its way")
        self._doing = "the internet link is gone"
        farm.cut_internet()
        cut_at = time.monotonic()
        await self._linger(cut_at + max(CUT_S, self._seconds / STEPS - 1.0))
        restored_at = time.monotonic()
        at_home = (FARMER, PANEL)
        fields = ledger.heard_between(cut_at, restored_at, FIELDS, WORKERS)
        home = ledger.heard_between(cut_at, restored_at, (HOUSE, TRACTOR), at_home)
        robots = ledger.heard_between(cut_at, restored_at, (ROBOTS,), (FARMER, MOP, VACUUM))
        waited = ledger.lost
        farm.restore_internet()
        self._doing = "the internet link is back"
        await self.until(lambda: not ledger.waiting(self._listeners, restored_at), "what waited for the link")
        delivered_at = time.monotonic()
        self._note("internet back", delivered_at - restored_at)
        by_robots = f" and {robots} of the robots" if self._cast.robots is not None else ""
        return (
            f"the internet link is gone for {restored_at - cut_at:.1f} s: {fields} deliveries in the fields, "
            f"{home} at the house{by_robots}; {waited} wait, and are made within "
            f"{delivered_at - restored_at:.1f} s when it is back"
        )

    async def _drive(self) -> str:
        farm, ledger = self._cast.farm, self.ledger
        self._doing = "the tractor drives out of reach"
        left_at = time.monotonic()
        farm.leave()
        await self._linger(left_at + DRIVE_S)
        texts = [f"at {NORTH} in {await self._hand_over(NORTH):.1f} s"]
        texts.append(f"at {SOUTH} in {await self._hand_over(SOUTH):.1f} s")
        texts.append(f"at the {HOUSE} in {await self._hand_over(HOUSE):.1f} s")
        home_at = time.monotonic()
        await self.until(lambda: not ledger.waiting(self._listeners, home_at), "what waited for the tractor")
        return (
            f"the tractor drives, {DRIVE_S:g} s of it without a link; its topics are handed over "
            f"{', '.join(texts)}, and everything has arrived"
        )

    async def _hand_over(self, station: str) -> float:
        """How long it takes from the tractor's arrival until topics are delegated there and all hear it."""
        self._doing = f"the tractor arrives at {station}"
        arrived_at = time.monotonic()
        watch = self._cast.watch
        watch.begin()
        self._cast.farm.arrive(station)
        await self.until(lambda: watch.delegated_s(station) is not None, f"topics delegated to {station}")
        delegated_s = watch.delegated_s(station)
        assert delegated_s is not None
        through_at = await self._through(
            self.ledger,
            arrived_at,
            self._places,
            self._listeners,
            f"everyone to hear the tractor at {station}",
        )
        taken_s = max(delegated_s, through_at - arrived_at)
        self._note(f"hand-over to {station}", taken_s)
        return taken_s

    async def follow_plan(self) -> str:
        cast, watch = self._cast, self._cast.watch
        self._doing = "waiting for the plan of hot topics from Spark"
        await self._is_within(lambda: cast.pipeline is None or watch.plan is not None, PLAN_PATIENCE_S)
        pipeline = cast.pipeline
        if pipeline is None:
            return "no plan of hot topics: the pipeline does not run"
        if watch.plan is None or watch.planned_at is None:
            if self.in_spark is not None:
                self.in_spark.has_no_plan = True
            return f"no plan of hot topics has come from Spark within {PLAN_PATIENCE_S:g} s"
        after_s, kept = watch.planned_at - pipeline.started_at, counted(watch.plan["topics"], "topic")
        self._note("plan", after_s)
        return (
            f"the plan of hot topics has come from Spark, {after_s:.1f} s after it was started: the tractor "
            f"keeps {kept}; {pipeline.rows():,} rows of the journals are in a table"
        )

    # How it waits

    async def _through(
        self, ledger: Ledger, since: float, places: Collection[str], listeners: Collection[str], what: str
    ) -> float:
        try:
            await self.until(lambda: ledger.through_at(since, places, listeners) is not None, what)
        except StoryError as error:
            raise StoryError(f"{error}; not heard: {ledger.unheard(since, places, listeners)}") from None
        through_at = ledger.through_at(since, places, listeners)
        assert through_at is not None
        return through_at

    async def until(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        if not await self._is_within(condition, patience_s):
            raise StoryError(f"step {self._step}: waited {patience_s:g} s in vain for {what}")

    async def _is_within(self, condition: Callable[[], bool], patience_s: float) -> bool:
        give_up_at = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > give_up_at:
                return False
            await self._tick()
        return True

    async def _linger(self, until: float) -> None:
        while time.monotonic() < until:
            await self._tick()

    async def _tick(self) -> None:
        cast = self._cast
        cast.farm.check()
        cast.people.check()
        if cast.robots is not None:
            cast.robots.check()
        self._look_after_spark()
        self._terminal.progress(self._progress())
        await asyncio.sleep(POLL_S)

    def _look_after_spark(self) -> None:
        """The farm does not need Spark: if it fails it is started again, and in the end left out."""
        pipeline, found = self._cast.pipeline, self.in_spark
        if pipeline is None or found is None or not pipeline.has_ended:
            return
        reason = pipeline.last_words()
        if pipeline.start_again():
            found.failures += 1
            self._terminal.say(f"Spark has failed, and is started again, from where it was: {reason}")
        else:
            found.gave_up = reason
            self._cast.pipeline = None
            self._terminal.say(
                f"Spark has failed {pipeline.starts} times; the farm goes on without it: {reason}"
            )

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began_at = time.monotonic()
        try:
            yield
        finally:
            self.took[part] = time.monotonic() - began_at

    def _progress(self) -> str:
        ledger = self.ledger
        place = f"{self._step}/{STEPS}" if self._step else "0"
        seconds = time.monotonic() - self._began_at
        counts = f"{ledger.published:,} published, {ledger.delivered:,} delivered, {ledger.lost:,} to come"
        return f"[{place}] {seconds:5.1f} s  {self._doing}: {counts}"

    def _note(self, what: str, seconds: float) -> None:
        self.measured[what] = seconds
