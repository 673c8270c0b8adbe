"""`hedgerow lab run morales`: which runs there are, and the rows that they become."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.morales import measure, report
from hedgerow_workshop.lab.morales.delays import Batch, measure_batch
from hedgerow_workshop.lab.morales.farm import FarmRun
from hedgerow_workshop.lab.morales.measure import MeanDelays
from hedgerow_workshop.lab.morales.record import FarmRecord, MoralesRecord
from hedgerow_workshop.lab.morales.report import BARS
from hedgerow_workshop.lab.morales.setting import (
    LONG_WINDOWS_S,
    NAIVE,
    SHARES,
    SHORT_WINDOWS_S,
    Y_S,
    Algorithm,
    Uplink,
    window_name,
)
from hedgerow_workshop.lab.morales.traffic import biased_traffic, burst_traffic, random_traffic

WARM_UP_S = 3.0  # the window, a calculation, and the way to the fixed broker and back
LONG_WARM_UP_S = 22.0
FAST_WARM_UP_S, FAST_LONG_WARM_UP_S = 2.5, 8.0
FAST_WINDOWS_S = (0.2, 20.0)
SETTLED_SHARES = (40.0, 60.0)
"""Percent that the naïve algorithm's two halves should have at the fixed broker, together."""

Say = Callable[[str], None]


def run(request: Request) -> Result:
    if request.timeline is not None or request.broker != "hedgerow":
        raise ConfigError(
            "morales has mobile brokers, which are ours: it takes neither --timeline nor --broker"
        )
    records, farm = carry_out(request, lambda directory: perform(request.fast, directory, request.say))
    return conclude(request, records, farm)


def conclude(request: Request, records: list[MoralesRecord], farm: FarmRecord) -> Result:
    rows = make_rows(records, farm)
    notes = [*make_notes(records, farm), *BARS.missed(rows)]
    return hand_in(
        request,
        "morales",
        [*records, farm],
        rows,
        notes,
        lambda out: report.write_report(out, records, farm, rows, notes),
    )


async def perform(fast: bool, directory: Path, say: Say) -> tuple[list[MoralesRecord], FarmRecord]:
    farm = await FarmRun(directory / "farm", say, fast).perform()
    records: list[MoralesRecord] = []
    for number, batch in enumerate(choose_batches(fast)):
        records += await measure_batch(batch, directory / str(number), say)
    return records, farm


def choose_batches(fast: bool) -> Iterator[Batch]:
    """Figure 9, then Figure 10, first over LTE. What chance has most part in is measured longest: random
    traffic, and bursts with long windows, where a whole burst goes one way or the other."""
    ours = (Algorithm(Y_S), *NAIVE)
    if fast:
        bursts = (*map(Algorithm, FAST_WINDOWS_S), *NAIVE)
        biased = biased_traffic(SHARES[-1], 2, FAST_WARM_UP_S)
        yield Batch(Uplink.LTE, ours, [random_traffic(4, FAST_WARM_UP_S), biased])
        yield Batch(Uplink.LTE, bursts, [burst_traffic("fast", 4, FAST_LONG_WARM_UP_S)])
        yield Batch(Uplink.WIMAX, ours, [biased])
        return
    for uplink in Uplink:
        traffics = [random_traffic(20 if uplink is Uplink.LTE else 5, WARM_UP_S)]
        traffics += [biased_traffic(share, 4, WARM_UP_S) for share in SHARES]
        yield Batch(uplink, ours, traffics)
        for name, windows_s, sets, warm_up_s in (
            ("short", SHORT_WINDOWS_S, 25, WARM_UP_S),
            ("long", LONG_WINDOWS_S, 45, LONG_WARM_UP_S),
        ):
            algorithms = (*map(Algorithm, windows_s), *NAIVE)
            yield Batch(uplink, algorithms, [burst_traffic(name, sets, warm_up_s)])


# Rows


def make_rows(records: Sequence[MoralesRecord], farm: FarmRecord | None) -> list[Row]:
    delays = MeanDelays(records)
    ratios = {
        (measure.point_name(spec), spec.uplink): delays.ratio(spec)
        for spec in delays.means
        if spec.algorithm.is_hot
    }
    hearings = [hearing for record in records for hearing in record.hearings()]
    rows = [
        Row("ratio/biased90/lte", "×", ratios.pop(("biased90", Uplink.LTE), None)),
        Row("ratio/biased90/wimax", "×", ratios.pop(("biased90", Uplink.WIMAX), None)),
        Row("ratio/random/lte", "×", ratios.pop(("random", Uplink.LTE), None)),
        Row("ratio/burst/best", "×", max(_best(ratios).values(), default=None)),
        Row("ratio/burst/20s", "×", _farthest([r for (name, _), r in ratios.items() if name == "burst/20s"])),
        Row("lost", "messages", count_lost(hearings) if records else None),
        Row("doubled", "messages", count_doubled(hearings) if records else None),
        *_farm_rows(farm),
    ]
    rows += [Row(f"ratio/{name}/{uplink}", "×", ratio) for (name, uplink), ratio in ratios.items()]
    for spec, mean_ms in delays.means.items():
        if spec.algorithm.is_hot:
            name = f"delay/{measure.point_name(spec)}/{spec.uplink}"
            rows += [Row(f"{name}/hot", "ms", mean_ms), Row(f"{name}/naive", "ms", delays.naive(spec))]
    return rows


def _best(ratios: dict[tuple[str, Uplink], float | None]) -> dict[Uplink, float]:
    """Of each uplink, at the window where it is smallest."""
    best: dict[Uplink, float] = {}
    for (name, uplink), ratio in ratios.items():
        if name.startswith("burst/") and ratio is not None:
            best[uplink] = min(ratio, best.get(uplink, ratio))
    return best


def _farthest(ratios: Sequence[float | None]) -> float | None:
    """From 1."""
    known = [ratio for ratio in ratios if ratio is not None]
    return max(known, key=lambda ratio: abs(ratio - 1), default=None)


def _farm_rows(farm: FarmRecord | None) -> Iterator[Row]:
    waits = [] if farm is None else [seconds for _, _, seconds in measure.waits(farm)]
    missing = None if farm is None else len(list(measure.missing(farm)))
    yield Row("farm/lost", "messages", missing)
    yield Row("farm/doubled", "messages", None if farm is None else measure.doubled(farm))
    yield Row("farm/delivered", "messages", None if farm is None else measure.delivered(farm))
    yield Row("farm/waited", "messages", None if farm is None else len(waits))
    yield Row("farm/waited/longest", "s", max(waits, default=None))
    yield Row("farm/heard", "%", None if farm is None else measure.farm_heard(farm, "office"))


def make_notes(records: Sequence[MoralesRecord], farm: FarmRecord | None) -> Iterator[str]:
    for record in records:
        lost, doubled = count_lost(record.hearings()), count_doubled(record.hearings())
        if lost or doubled:
            yield f"{record.spec}: {lost} lost, {doubled} doubled."
    delays = MeanDelays(records)
    for uplink in Uplink:
        found = {
            spec.algorithm.window_s: ratio
            for spec in delays.means
            if spec.uplink is uplink
            and measure.is_burst(spec)
            and spec.algorithm.window_s
            and (ratio := delays.ratio(spec)) is not None
        }
        if found:
            best = min(found, key=lambda window_s: found[window_s])
            yield f"{uplink} bursts: best with a window of {window_name(best)}, {found[best]:.2f} × naïve."
    yield from _delegation_notes(records)
    repeated = 0 if farm is None else measure.repeated(farm)
    if repeated:
        yield f"farm: {repeated} deliveries were MQTT's own repetitions on a new connection (DUP)."


def _delegation_notes(records: Sequence[MoralesRecord]) -> Iterator[str]:
    """Where the naïve algorithm did not delegate half, nothing was measured that deserves its name."""
    shares: dict[tuple[Uplink, str], list[float]] = {}
    for record in records:
        share = measure.share_beyond(record)
        if not record.spec.algorithm.is_hot and share is not None:
            shares.setdefault((record.spec.uplink, record.spec.traffic), []).append(share)
    least, most = SETTLED_SHARES
    for (uplink, traffic), found in shares.items():
        share = sum(found) / len(found)
        if not least <= share <= most:
            yield f"{uplink} {traffic}: the naïve algorithm had {share:.0f} % at the fixed broker, not half."
