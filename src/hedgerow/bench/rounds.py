"""How measurements are taken on a machine that others use too: in short rounds, going round the brokers.

Each round measures every broker once, so that a slow minute falls on all of them; what a bench reports
is a median over the rounds. A peer that fails takes no further part and leaves a note; if ours fails,
that ends the bench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hedgerow.bench import BenchError
from hedgerow.bench.peers import OURS, Broker, Child, running
from hedgerow.bench.report import Progress

Subject = TypeVar("Subject")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Plan:
    rounds: int
    warm_up_s: float
    round_s: float
    starts: int
    """How often each broker is started where starting is what is measured."""


FULL = Plan(rounds=5, warm_up_s=0.5, round_s=1.0, starts=5)
QUICK = Plan(rounds=3, warm_up_s=0.15, round_s=0.3, starts=3)


class Bench:
    """One run: its plan, its brokers' processes, and what was noticed."""

    def __init__(self, plan: Plan, ours: Broker, directory: Path, progress: Progress) -> None:
        self.plan = plan
        self.ours = ours
        self.notes: list[str] = []
        self.busy: dict[str, dict[str, dict[str, float]]] = {}
        self._progress = progress
        self._directory = directory
        self._started = 0

    @contextmanager
    def running(self, broker: Broker, arguments: Sequence[str] = ()) -> Iterator[Child]:
        """A fresh process of the broker; `arguments` are hedgerow's alone."""
        self._started += 1
        directory = self._directory / str(self._started)
        with running(broker, directory, arguments if broker.name == OURS else ()) as child:
            yield child

    def prepare(self, brokers: Sequence[Broker], make: Callable[[Broker], Subject]) -> dict[Broker, Subject]:
        """What each broker needs for the rounds to come."""
        subjects = {}
        for broker in brokers:
            try:
                subjects[broker] = make(broker)
            except (BenchError, OSError) as error:
                self._failed(broker, error)
        return subjects

    def each(
        self, rounds: int, subjects: Mapping[Broker, Subject], measure: Callable[[Broker, Subject], Value]
    ) -> dict[Broker, list[Value]]:
        """Every subject measured once a round."""
        values: dict[Broker, list[Value]] = {broker: [] for broker in subjects}
        for number in range(rounds):
            for broker in list(values):
                self._progress.step(f"{broker.name}, round {number + 1} of {rounds}")
                try:
                    values[broker].append(measure(broker, subjects[broker]))
                except (BenchError, OSError) as error:
                    del values[broker]
                    self._failed(broker, error)
        return values

    def saw(self, row: str, broker: Broker, loader: float, server: float) -> None:
        """How much of one core the loader and the broker took, at most, over the rounds."""
        seen = self.busy.setdefault(row, {}).setdefault(broker.name, {"loader": 0.0, "broker": 0.0})
        seen["loader"] = round(max(seen["loader"], loader), 2)
        seen["broker"] = round(max(seen["broker"], server), 2)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._progress.note(text)

    def _failed(self, broker: Broker, error: Exception) -> None:
        if broker is self.ours:
            raise BenchError(f"{broker.name}: {error}") from error
        self.note(f"{broker.name}: {error}")
