"""`hedgerow bench multicast`: multicast without a broker, beside bare sockets and beside Zenoh.

One publisher and 1 or 10 subscribers, each a process. Three kinds of them: ours through
`hedgerow.connect`, `raw` with nothing but `sendto` and `recv`, which is the limit for a Python program
that sends a datagram for each message, and `zenoh`, peers that use Zenoh's Python binding. They
take turns in short rounds; throughput is the median of the rounds, latencies are pooled.

Nothing is paced in the throughput rounds. What ours (at QoS 0) and raw lose is not delivered, so it is
not in their rates; ours at QoS 1 and Zenoh must deliver everything. All of it stays on the loopback
interface, ours and raw as IPv4 multicast on 127.0.0.1, which needs no privileges.
"""

from __future__ import annotations

import importlib.metadata
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hedgerow_workshop.bench.multicast_team import Round, RoundLoad, Team, team
from hedgerow_workshop.bench.report import (
    BenchRequest,
    BenchResult,
    BenchRow,
    Progress,
    make_result,
    measuring,
)
from hedgerow_workshop.bench.rounds import Plan, Rounds, find_installed
from hedgerow_workshop.percentiles import percentile

OURS = "hedgerow"
FULL = Plan(rounds=7, warm_up_s=0.3, round_s=0.5, starts=1)
QUICK = Plan(rounds=3, warm_up_s=0.1, round_s=0.2, starts=1)
SIZES = (64, 1_024)
SUBSCRIBERS = (1, 10)
# Low enough for ten subscribers on two cores: what is measured is the way, not the queue before it.
LATENCY_RATE = 500
_PERCENTILES = (50, 99)
# A share of deliveries this small is worth no note.
_LOSS_WORTH_A_NOTE = 0.0005


@dataclass(frozen=True)
class TeamKind:
    name: str
    package: str | None
    """Whose version says whether it is installed; none: nothing has to be."""
    qualities: tuple[int, ...]
    """The QoS levels that it distinguishes."""
    complete: tuple[int, ...]
    """Those at which it promises to deliver everything."""

    def version(self) -> str | None:
        if self.package is None:
            return ""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return "source" if self.name == OURS else None

    def load(self, size: int, qos: int) -> RoundLoad:
        """The nearest that it has: the peers do the same whatever the row's QoS."""
        qos = qos if qos in self.qualities else self.qualities[0]
        return RoundLoad(size, qos, complete=qos in self.complete)


CONTENDERS = {
    contender.name: contender
    for contender in (
        TeamKind(OURS, "hedgerow", qualities=(0, 1), complete=(1,)),
        TeamKind("raw", None, qualities=(0,), complete=()),
        TeamKind("zenoh", "eclipse-zenoh", qualities=(0,), complete=(0,)),
    )
}
PEERS = tuple(name for name in CONTENDERS if name != OURS)


@dataclass(frozen=True)
class Case:
    """One throughput row and its two latency rows."""

    qos: int
    size: int
    subscribers: int

    @property
    def name(self) -> str:
        return f"qos{self.qos}-{self.size}-1to{self.subscribers}"

    @property
    def rows(self) -> list[str]:
        return [self.name, *(f"{self.name}-p{percent}" for percent in _PERCENTILES)]


CASES = tuple(Case(qos, size, subscribers) for subscribers in SUBSCRIBERS for size in SIZES for qos in (0, 1))
ROW_NAMES = tuple(row for case in CASES for row in case.rows)


@dataclass
class Taken:
    """The rounds of one contender under one load."""

    fast: list[Round]
    paced: list[Round]

    def rate(self) -> float:
        return statistics.median(each.rate for each in self.fast)

    def share(self) -> float:
        """Of the deliveries that there should have been in the throughput rounds."""
        due = sum(each.sent * len(each.received) for each in self.fast)
        return sum(sum(each.received) for each in self.fast) / due if due else 1.0

    def by_subscriber(self) -> list[float]:
        """Messages a second, over all throughput rounds."""
        seconds = sum(each.seconds for each in self.fast)
        return [sum(counts) / seconds for counts in zip(*(each.received for each in self.fast), strict=True)]

    def latency(self, percent: int) -> float:
        """µs."""
        pooled = sorted(latency for each in self.paced for latency in each.latencies)
        return percentile(pooled, percent) / 1_000 if pooled else 0.0


def run(request: BenchRequest) -> BenchResult:
    request.check(ROW_NAMES, PEERS)
    names = PEERS if request.peers is None else request.peers
    return measure([CONTENDERS[name] for name in names], QUICK if request.quick else FULL, request.only)


def measure(
    peers: Sequence[TeamKind], plan: Plan, only: Sequence[str] = (), ours: TeamKind = CONTENDERS[OURS]
) -> BenchResult:
    """All rows, or those named in `only`."""
    cases = [case for case in CASES if not only or not set(case.rows).isdisjoint(only)]
    crowds = sorted({case.subscribers for case in cases})
    rows: list[BenchRow] = []
    with measuring(len(crowds)) as (directory, shown):
        bench = TeamRounds(plan, ours, directory, shown)
        versions, installed = find_installed(bench, ours, peers)
        for subscribers in crowds:
            crowd = [case for case in cases if case.subscribers == subscribers]
            shown.begin(f"1 to {subscribers}", (plan.rounds + 1) * (1 + len(installed)))
            rows += bench.rows(crowd, [ours, *installed])
    names = [each.name for each in installed]
    return make_result(ours.name, names, rows, only, versions, bench.notes, delivered=bench.delivered)


class TeamRounds(Rounds[TeamKind]):
    """Rounds of contenders, each a team of processes."""

    def __init__(self, plan: Plan, ours: TeamKind, directory: Path, progress: Progress) -> None:
        super().__init__(plan, ours, progress)
        self.delivered: dict[str, dict[str, dict[str, object]]] = {}
        """By row and contender: the share of deliveries that were made, and each subscriber's msg/s."""
        self._directory = directory

    def rows(self, cases: Sequence[Case], contenders: Sequence[TeamKind]) -> Iterator[BenchRow]:
        """The rows of cases that have the same number of subscribers."""
        taken = self._take_rounds(cases, contenders)
        for case in cases:
            found = {
                contender.name: loads[contender.load(case.size, case.qos)]
                for contender, loads in taken.items()
            }
            self._report_deliveries(case, found)
            unit = "msg/s" if case.subscribers == 1 else "deliveries/s"
            rates = {name: each.rate() for name, each in found.items()}
            yield BenchRow(case.name, unit, "higher", rates.pop(self.ours.name), rates)
            for percent, name in zip(_PERCENTILES, case.rows[1:], strict=True):
                figures = {name: each.latency(percent) for name, each in found.items()}
                yield BenchRow(name, "µs", "lower", figures.pop(self.ours.name), figures)

    def _take_rounds(
        self, cases: Sequence[Case], contenders: Sequence[TeamKind]
    ) -> dict[TeamKind, dict[RoundLoad, Taken]]:
        """Every contender plays each of its loads once a round."""
        loads = {
            contender: dict.fromkeys(contender.load(case.size, case.qos) for case in cases)
            for contender in contenders
        }

        def prepare(contender: TeamKind, stack: ExitStack) -> Team:
            directory = self._directory / f"{contender.name}-{cases[0].subscribers}"
            made = stack.enter_context(team(contender.name, cases[0].subscribers, directory))
            for load in loads[contender]:
                made.play(load, self.plan.warm_up_s)
            return made

        def play(contender: TeamKind, made: Team) -> dict[RoundLoad, tuple[Round, Round]]:
            seconds = self.plan.round_s
            return {
                load: (made.play(load, seconds), made.play(load, seconds, LATENCY_RATE))
                for load in loads[contender]
            }

        rounds = self.interleave(self.plan.rounds, contenders, prepare, play)
        return {
            contender: {
                load: Taken([each[load][0] for each in played], [each[load][1] for each in played])
                for load in loads[contender]
            }
            for contender, played in rounds.items()
        }

    def _report_deliveries(self, case: Case, found: dict[str, Taken]) -> None:
        self.delivered[case.name] = {}
        for name, taken in found.items():
            share, rates = taken.share(), [round(rate) for rate in taken.by_subscriber()]
            self.delivered[case.name][name] = {"share": round(share, 4), "by_subscriber": rates}
            # What raw loses is the same in the rows of both QoS.
            if 1 - share > _LOSS_WORTH_A_NOTE and (case.qos == 0 or name == self.ours.name):
                self.note(f"{case.name}: {name} lost {1 - share:.1%} of the deliveries")
