"""How measurements are taken on a machine that others use too: in short rounds, going round the brokers.

Each round measures every broker once, so that a slow minute falls on all of them; what a bench reports
is a median over the rounds. A peer that fails takes no further part and leaves a note; if ours fails,
that ends the bench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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


FULL = Plan(rounds=7, warm_up_s=0.5, round_s=0.7, starts=5)
QUICK = Plan(rounds=3, warm_up_s=0.1, round_s=0.2, starts=3)


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

    def interleave(
        self,
        rounds: int,
        brokers: Sequence[Broker],
        prepare: Callable[[Broker, ExitStack], Subject],
        measure: Callable[[Broker, Subject], Value],
    ) -> dict[Broker, list[Value]]:
        """Prepare every broker, then measure each once a round. What `prepare` leaves on its stack is
        undone at the end, or when that broker fails, so that it does not disturb the others."""
        with ExitStack() as everything:
            subjects: dict[Broker, Subject] = {}
            stacks = {broker: everything.enter_context(ExitStack()) for broker in brokers}
            values: dict[Broker, list[Value]] = {broker: [] for broker in brokers}
            for number in range(rounds + 1):
                for broker in list(values):
                    try:
                        if number == 0:
                            self._progress.step(f"starting {broker.name}")
                            subjects[broker] = prepare(broker, stacks[broker])
                        else:
                            self._progress.step(f"{broker.name}, round {number} of {rounds}")
                            values[broker].append(measure(broker, subjects[broker]))
                    except (BenchError, OSError) as error:
                        self._failed(broker, error)
                        del values[broker]
                        stacks[broker].close()
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
