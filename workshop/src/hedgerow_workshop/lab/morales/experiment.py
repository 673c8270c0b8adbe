"""`hedgerow lab run morales`: which runs there are."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.programs import together
from hedgerow_workshop.lab.morales import costs, report
from hedgerow_workshop.lab.morales.delays import Batch, measure_batch
from hedgerow_workshop.lab.morales.domain import DomainRun
from hedgerow_workshop.lab.morales.farm import FarmRun
from hedgerow_workshop.lab.morales.handover import HandoverRun, PlugInRun
from hedgerow_workshop.lab.morales.lists import SUBSCRIBERS, measure_bytes
from hedgerow_workshop.lab.morales.record import Outcome, SceneRecord
from hedgerow_workshop.lab.morales.report import BARS
from hedgerow_workshop.lab.morales.rows import make_notes, make_rows
from hedgerow_workshop.lab.morales.scene import Scene
from hedgerow_workshop.lab.morales.second import SecondBrokerRun
from hedgerow_workshop.lab.morales.setting import (
    LONG_WINDOWS_S,
    NAIVE,
    SCORE_WINDOW_S,
    SHARES,
    SHORT_WINDOWS_S,
    Y_S,
    Algorithm,
    Uplink,
)
from hedgerow_workshop.lab.morales.traffic import biased_traffic, burst_traffic, mixed_traffic, random_traffic

WARM_UP_S = 3.0  # the window, a calculation, and the way to the fixed broker and back
LONG_WARM_UP_S = 22.0
FAST_WARM_UP_S, FAST_LONG_WARM_UP_S = 2.5, 8.0
FAST_WINDOWS_S = (SCORE_WINDOW_S, 20.0)
ROUNDS, FAST_ROUNDS = 6, 2
"""That the topic of the hand-over goes cold and hot."""
PROCESSOR_S, FAST_PROCESSOR_S = 20.0, 8.0

Say = Callable[[str], None]


def run(request: Request) -> Result:
    if request.timeline is not None or request.broker != "hedgerow":
        raise ConfigError(
            "morales has mobile brokers, which are ours: it takes neither --timeline nor --broker"
        )
    for name in request.parts:
        if name not in PARTS:
            raise ConfigError(f'--part: morales has no part "{name}"; there are {", ".join(PARTS)}')
    return conclude(request, carry_out(request, lambda directory: perform(request, directory)))


def conclude(request: Request, outcome: Outcome) -> Result:
    rows = make_rows(outcome)
    notes = [*make_notes(outcome), *BARS.missed(rows)]
    return hand_in(
        request,
        "morales",
        outcome.runs,
        rows,
        notes,
        lambda out: report.write_report(out, outcome, rows, notes),
    )


async def perform(request: Request, directory: Path) -> Outcome:
    outcome = Outcome()
    for group in GROUPS:
        chosen = [name for name in group if not request.parts or name in request.parts]
        await together(PARTS[name](outcome, request.fast, directory / name, request.say) for name in chosen)
    return outcome


# The parts


async def play_farm(outcome: Outcome, fast: bool, directory: Path, say: Say) -> None:
    outcome.farm = await FarmRun(directory, say, fast).perform()


async def play_scenes(outcome: Outcome, fast: bool, directory: Path, say: Say) -> None:
    """Side by side: none of them is there for its delays."""
    rounds = FAST_ROUNDS if fast else ROUNDS
    scenes: list[Scene[SceneRecord]] = [
        HandoverRun(directory / "handover", say, rounds),
        PlugInRun(directory / "plug-in", say, rounds),
        DomainRun(directory / "stored", say, is_stored=True),
        DomainRun(directory / "unstored", say, is_stored=False),
        SecondBrokerRun(directory / "second", say),
    ]

    async def play(scene: Scene[SceneRecord]) -> None:
        record = await scene.perform()
        outcome.scenes[record.name] = record

    await together(map(play, scenes))


async def measure_costs(outcome: Outcome, fast: bool, directory: Path, say: Say) -> None:
    async def processor() -> None:
        seconds = FAST_PROCESSOR_S if fast else PROCESSOR_S
        outcome.processor = await costs.measure_processor(directory / "processor", seconds)

    async def memory() -> None:
        outcome.memory = await costs.measure_memory(directory / "memory")

    async def bytes_with(subscribers: int) -> None:
        found = await measure_bytes(directory / f"lists-{subscribers}", subscribers)
        outcome.bytes[subscribers] = found

    say("delegation on and off: memory, and bytes on the link …")
    await memory()
    await together(map(bytes_with, SUBSCRIBERS))
    say("delegation on and off: processor time …")
    await processor()


async def measure_traffic(outcome: Outcome, fast: bool, directory: Path, say: Say) -> None:
    for number, batch in enumerate(choose_batches(fast)):
        outcome.delays += await measure_batch(batch, directory / str(number), say)


Part = Callable[[Outcome, bool, Path, Say], Coroutine[Any, Any, None]]
PARTS: Mapping[str, Part] = {
    "farm": play_farm,
    "scenes": play_scenes,
    "costs": measure_costs,
    "traffic": measure_traffic,
}
GROUPS = (("farm", "scenes"), ("costs",), ("traffic",))
"""What is carried out at the same time. Processor time and delays are measured with nothing beside them."""


def choose_batches(fast: bool) -> Iterator[Batch]:
    """Figure 9, then Figure 10, first over LTE, where the published score is measured too. What chance has
    most part in is measured longest: random traffic, and bursts with long windows, where a whole burst goes
    one way or the other."""
    ours: Sequence[Algorithm] = (Algorithm(Y_S), *NAIVE)
    both_scores = (*ours, Algorithm(Y_S, score="published"))
    compared = Algorithm(SCORE_WINDOW_S, score="published")
    if fast:
        bursts = (*map(Algorithm, FAST_WINDOWS_S), compared, *NAIVE)
        biased = biased_traffic(SHARES[-1], 2, FAST_WARM_UP_S)
        mixed = mixed_traffic(3, FAST_WARM_UP_S)
        yield Batch(Uplink.LTE, ours, [random_traffic(4, FAST_WARM_UP_S), biased, mixed])
        yield Batch(Uplink.LTE, bursts, [burst_traffic("fast", 4, FAST_LONG_WARM_UP_S)])
        yield Batch(Uplink.WIMAX, ours, [biased])
        return
    for uplink in Uplink:
        is_lte = uplink is Uplink.LTE
        traffics = [random_traffic(20 if is_lte else 5, WARM_UP_S), mixed_traffic(10, WARM_UP_S)]
        traffics += [biased_traffic(share, 4, WARM_UP_S) for share in SHARES]
        yield Batch(uplink, both_scores if is_lte else ours, traffics)
        for name, windows_s, sets, warm_up_s in (
            ("short", SHORT_WINDOWS_S, 25, WARM_UP_S),
            ("long", LONG_WINDOWS_S, 45, LONG_WARM_UP_S),
        ):
            algorithms = (*map(Algorithm, windows_s), *NAIVE)
            if is_lte and SCORE_WINDOW_S in windows_s:
                algorithms = (*algorithms, compared)
            yield Batch(uplink, algorithms, [burst_traffic(name, sets, warm_up_s)])
