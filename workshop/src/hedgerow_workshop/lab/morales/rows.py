"""The rows that the runs become, and what a reader of them should know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.morales import measure
from hedgerow_workshop.lab.morales.lists import SUBSCRIBERS
from hedgerow_workshop.lab.morales.measure import MeanDelays
from hedgerow_workshop.lab.morales.record import (
    Bytes,
    FarmRecord,
    Memory,
    MoralesRecord,
    Outcome,
    Saving,
    SceneRecord,
)
from hedgerow_workshop.lab.morales.setting import SCORE_WINDOW_S, Uplink, window_name

SETTLED_SHARES = (40.0, 60.0)
"""Percent that the naïve algorithm's two halves should have at the fixed broker, together."""
PUBLISHED = "/published"
"""At the end of the name of a run with the published score."""


def make_rows(outcome: Outcome) -> list[Row]:
    delays = MeanDelays(outcome.delays)
    ratios = {
        (measure.point_name(spec), spec.uplink): delays.ratio(spec)
        for spec in delays.means
        if spec.algorithm.is_hot
    }
    bursts = f"burst/{window_name(SCORE_WINDOW_S)}"
    compared = ratios.get((bursts, Uplink.LTE)), ratios.get((bursts + PUBLISHED, Uplink.LTE))
    hearings = [hearing for record in outcome.delays for hearing in record.hearings()]
    rows = [
        Row("ratio/biased90/lte", "×", ratios.pop(("biased90", Uplink.LTE), None)),
        Row("ratio/biased90/wimax", "×", ratios.pop(("biased90", Uplink.WIMAX), None)),
        Row("ratio/random/lte", "×", ratios.pop(("random", Uplink.LTE), None)),
        Row("ratio/burst/best", "×", max(_best(ratios).values(), default=None)),
        Row("ratio/burst/20s", "×", _farthest([r for (name, _), r in ratios.items() if name == "burst/20s"])),
        Row("lost", "messages", count_lost(hearings) if outcome.delays else None),
        Row("doubled", "messages", count_doubled(hearings) if outcome.delays else None),
        *_farm_rows(outcome.farm),
        *_scene_rows(outcome.scenes),
        *_processor_rows(outcome.processor),
        *_memory_rows(outcome.memory),
        *_bytes_rows(outcome.bytes),
        Row("score/window", "×", compared[0]),
        Row("score/published", "×", compared[1]),
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
        if name.startswith("burst/") and not name.endswith(PUBLISHED) and ratio is not None:
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


SCENES: Mapping[str, Sequence[str]] = {
    "handover": ("handover",),
    "plug-in": ("plug-in",),
    "domain": ("domain-stored", "domain-unstored"),
    "second": ("second",),
}
"""The scenes that rows begin with, and the runs that they are of."""


def _scene_rows(scenes: Mapping[str, SceneRecord]) -> Iterator[Row]:
    for name, runs in SCENES.items():
        found = [scenes[run] for run in runs if run in scenes]
        waits = [wait for record in found if (wait := measure.longest_wait_s(record)) is not None]

        def total(count: Callable[[SceneRecord], int], found: Sequence[SceneRecord] = found) -> int | None:
            return sum(map(count, found)) if found else None

        yield Row(f"{name}/lost", "messages", total(lambda record: len(list(measure.missing(record)))))
        yield Row(f"{name}/doubled", "messages", total(measure.doubled))
        yield Row(f"{name}/repeated", "messages", total(measure.repeated))
        yield Row(f"{name}/disordered", "messages", total(measure.disordered))
        yield Row(f"{name}/delivered", "messages", total(measure.delivered))
        yield Row(f"{name}/waited/longest", "s", max(waits, default=None))
        yield Row(f"{name}/moved", "", float(all(each.has_moved for each in found)) if found else None)


def _processor_rows(saving: Saving | None) -> Iterator[Row]:
    yield Row("mobile/cpu-ratio", "×", None if saving is None else saving.ratio)
    yield Row("mobile/cpu/on", "ms", None if saving is None else saving.on)
    yield Row("mobile/cpu/off", "ms", None if saving is None else saving.off)


def _memory_rows(memory: Memory | None) -> Iterator[Row]:
    yield Row("mobile/memory-ratio", "×", None if memory is None else memory.ratio)
    yield Row("mobile/memory-ratio/all", "×", None if memory is None else memory.ratio_of_all)
    yield Row("mobile/memory/before", "MiB", None if memory is None else memory.off.before)
    yield Row("mobile/memory/on", "MiB", None if memory is None else memory.on.after)
    yield Row("mobile/memory/off", "MiB", None if memory is None else memory.off.after)


def _bytes_rows(found: Mapping[int, Bytes]) -> Iterator[Row]:
    for subscribers in SUBSCRIBERS:
        name = "filter/bytes-ratio" + ("" if subscribers == SUBSCRIBERS[-1] else f"/{subscribers}")
        yield Row(name, "×", found[subscribers].ratio if subscribers in found else None)


def make_notes(outcome: Outcome) -> Iterator[str]:
    records = outcome.delays
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
            and spec.algorithm.score == "window"
            and (ratio := delays.ratio(spec)) is not None
        }
        if found:
            best = min(found, key=lambda window_s: found[window_s])
            yield f"{uplink} bursts: best with a window of {window_name(best)}, {found[best]:.2f} × naïve."
    yield from _delegation_notes(records)
    scenes = [*([] if outcome.farm is None else [outcome.farm]), *outcome.scenes.values()]
    for scene in scenes:
        repeated = measure.repeated(scene)
        if repeated:
            again = "were MQTT's own repetitions on a new connection (DUP)"
            yield f"{scene.name}: {repeated} deliveries {again}."
    for scene in scenes:
        if not scene.has_moved:
            yield f"{scene.name}: not everyone who was to move has moved."
    if outcome.processor is not None and not outcome.processor.is_delegated:
        yield "mobile/cpu: not every client of what is cold was at the fixed broker."


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
