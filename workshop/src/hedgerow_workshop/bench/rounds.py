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
from typing import Generic, Protocol, TypeVar

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.loader import STALL_S
from hedgerow_workshop.bench.peers import OURS, BrokerKind, Child, Process, running, running_beside
from hedgerow_workshop.bench.report import Progress

Subject = TypeVar("Subject")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Plan:
    rounds: int
    warm_up_s: float
    round_s: float
    starts: int
    """How often each broker is started where starting is what is measured."""
    stall_s: float = STALL_S
    """How long a broker may send nothing."""
    open_s: float = 20.0
    """How long it may take until a message comes through."""
    idle_connections: int = 5_000
    crowd_subscriptions: int = 100_000


FULL = Plan(rounds=7, warm_up_s=0.5, round_s=0.7, starts=5)
QUICK = Plan(rounds=3, warm_up_s=0.1, round_s=0.2, starts=3)


class Contender(Protocol):
    """Ours, or a peer. It is a key of dictionaries, too."""

    @property
    def name(self) -> str: ...


AnyContender = TypeVar("AnyContender", bound=Contender)


class Rounds(Generic[AnyContender]):
    """One run: its plan, its progress, and what was noticed."""

    def __init__(self, plan: Plan, ours: AnyContender, progress: Progress) -> None:
        self.plan = plan
        self.ours = ours
        self.notes: list[str] = []
        self._progress = progress

    def interleave(
        self,
        rounds: int,
        contenders: Sequence[AnyContender],
        prepare: Callable[[AnyContender, ExitStack], Subject],
        measure: Callable[[AnyContender, Subject], Value],
    ) -> dict[AnyContender, list[Value]]:
        """Prepare every contender, then measure each once a round. What `prepare` leaves on its stack is
        undone at the end, or when that contender fails, so that it does not disturb the others."""
        with ExitStack() as everything:
            subjects: dict[AnyContender, Subject] = {}
            stacks = {contender: everything.enter_context(ExitStack()) for contender in contenders}
            values: dict[AnyContender, list[Value]] = {contender: [] for contender in contenders}
            for number in range(rounds + 1):
                for contender in list(values):
                    try:
                        if number == 0:
                            self._progress.step(f"starting {contender.name}")
                            subjects[contender] = prepare(contender, stacks[contender])
                        else:
                            self._progress.step(f"{contender.name}, round {number} of {rounds}")
                            values[contender].append(measure(contender, subjects[contender]))
                    except (BenchError, OSError) as error:
                        if self.is_ours(contender):
                            raise BenchError(f"{contender.name}: {error}") from error
                        self.note(f"{contender.name}: {error}")
                        del values[contender]
                        stacks[contender].close()
        return values

    def is_ours(self, contender: AnyContender) -> bool:
        """Whether its failure is the bench's."""
        return contender is self.ours

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._progress.note(text)


class Installable(Contender, Protocol):
    def version(self) -> str | None:
        """None where it is not installed."""


AnyInstallable = TypeVar("AnyInstallable", bound=Installable)


def find_installed(
    bench: Rounds[AnyInstallable], ours: AnyInstallable, peers: Sequence[AnyInstallable]
) -> tuple[dict[str, str | None], list[AnyInstallable]]:
    """The versions of all, by name, and the peers that are there; of the others there is a note."""
    versions = {each.name: each.version() for each in (ours, *peers)}
    for peer in peers:
        if versions[peer.name] is None:
            bench.note(f"{peer.name}: not installed")
    return versions, [peer for peer in peers if versions[peer.name] is not None]


class Processes(Rounds[AnyContender]):
    """Rounds of contenders that are one broker's process or several brokers' processes."""

    def __init__(self, plan: Plan, ours: AnyContender, directory: Path, progress: Progress) -> None:
        super().__init__(plan, ours, progress)
        self.busy: dict[str, dict[str, dict[str, float]]] = {}
        self.directory = directory
        self._started = 0

    @contextmanager
    def running(self, broker: BrokerKind, arguments: Sequence[str] = ()) -> Iterator[Child]:
        """A fresh process of the broker; `arguments` are hedgerow's alone."""
        own = arguments if broker.name == OURS else ()
        with running(broker, self._next_directory(), own) as child:
            yield child

    @contextmanager
    def running_beside(self, name: str, command: Sequence[str]) -> Iterator[Process]:
        """A program that is no broker."""
        with running_beside(name, command, self._next_directory()) as process:
            yield process

    def saw(self, row: str, contender: AnyContender, **shares: float) -> None:
        """How much of one core the loader, the broker and any others took, at most, over the rounds."""
        seen = self.busy.setdefault(row, {}).setdefault(contender.name, {})
        for name, share in shares.items():
            seen[name] = round(max(seen.get(name, 0.0), share), 2)

    def _next_directory(self) -> Path:
        self._started += 1
        return self.directory / str(self._started)


class Bench(Processes[BrokerKind]):
    """Rounds of brokers, each a process."""
