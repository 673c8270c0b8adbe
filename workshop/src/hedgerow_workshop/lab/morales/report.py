"""The report of the experiment: the bars, the document's Figures 9 and 10, every run, and the farm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hedgerow_workshop.lab.harness.figures import Curve, html_figure, html_paragraph, html_table, write_page
from hedgerow_workshop.lab.harness.measure import delays_ms, spread
from hedgerow_workshop.lab.harness.rows import NONE, Bar, Bars, Row, number
from hedgerow_workshop.lab.morales import measure
from hedgerow_workshop.lab.morales.drawing import draw_curves
from hedgerow_workshop.lab.morales.measure import MeanDelays
from hedgerow_workshop.lab.morales.record import FarmRecord, MoralesRecord, MoralesSpec
from hedgerow_workshop.lab.morales.setting import Uplink
from hedgerow_workshop.lab.morales.traffic import BIASED

TITLE = "Hot topics in mobile brokers"
INTRODUCTION = (
    "A mobile broker and the fixed one that supports it, after Morales Domínguez, Robles, Alcarria and "
    "Cedeño: A Hot-topic based Distribution and Notification of Events in Pub/Sub Mobile Brokers (2013). "
    "Publisher and subscribers are at the mobile broker, 0.473 ms away (Wi-Fi); the fixed one is 15.12 ms "
    "(LTE) or 20.7 ms (WiMAX) from it, at 10 Mbit/s. Ten topics, each with a subscriber, QoS 0. The hot- "
    "topic algorithm keeps the busier half of the topics and delegates the others, anew every 400 ms; the "
    "naïve one delegates half of them whatever their traffic. It ran twice, once with each half, and its "
    "delay is the mean of both. All of them were given the same publications, at the same time."
)
CHOICES = (
    "The document names neither the rate nor the length of its bursts. Here 100 messages are published in "
    "a second, so that a set of 200 takes as long as the window of 2 s; several sets are measured one "
    "after the other, after a warm-up of the same traffic as long as the window and in which every topic "
    "occurs, since one set alone is so small that chance decides: of 200 random publications 43 to 57 % "
    "go to the fixed broker, whoever chooses. Bursts are biased traffic at 90 %, for 0.5 to 1 s, then "
    "another topic is hot: a little longer than the 400 ms between two decisions. Bursts much shorter "
    "could not be followed with any window, and much longer ones would be followed with every window."
)
FARM_TEXT = (
    "Sensors at a mobile broker (at QoS 2, and over UDP), one near the fixed broker, an actuator in the "
    "field and an office outside, both at QoS 1. The field is out of the mobile broker's coverage for "
    "some seconds, then the mobile broker out of the fixed one's; then a second mobile broker enters, "
    "with a sensor and an actuator. All publish ten times a second meanwhile. What waited took more than "
    "half a second."
)

BARS = Bars(
    {
        "ratio/biased90/lte": Bar(0.25),
        "ratio/biased90/wimax": Bar(0.25),
        "ratio/random/lte": Bar(1.05, least=0.95),
        "ratio/burst/best": Bar(0.6),
        "ratio/burst/20s": Bar(1.1, least=0.9),
        "lost": Bar(0),
        "doubled": Bar(0),
        "farm/lost": Bar(0),
        "farm/doubled": Bar(0),
    }
)
"""What the rows are held against."""


def write_report(
    directory: Path,
    records: Sequence[MoralesRecord],
    farm: FarmRecord,
    rows: Sequence[Row],
    notes: Sequence[str],
) -> Path:
    """Into a directory that is there; returns the page."""
    delays = MeanDelays(records)
    biased, bursts = directory / "figure9.png", directory / "figure10.png"
    labels = "mean delay, ms"
    draw_curves(biased, "Biased traffic", ("share of one topic, %", labels), figure9(delays), log=False)
    draw_curves(bursts, "Bursts of biased traffic", ("window, s", labels), figure10(delays), log=True)
    parts = [
        html_paragraph(INTRODUCTION),
        html_paragraph(CHOICES),
        html_table(BARS.lines(rows)),
        *map(html_paragraph, notes),
        html_figure(biased, "Mean delay of a publication (compare the document's figure 9)"),
        html_figure(bursts, "The same for bursts, by the sliding window (compare its figure 10)"),
        "<h2>Every run</h2>",
        html_table(run_lines(records)),
        "<h2>The farm</h2>",
        html_paragraph(FARM_TEXT),
        html_table(farm_lines(farm)),
    ]
    return write_page(directory, TITLE, parts)


def figure9(delays: MeanDelays) -> list[Curve]:
    return list(_curves(delays, {spec: x for spec in delays.means if (x := _share(spec)) is not None}))


def figure10(delays: MeanDelays) -> list[Curve]:
    windows = {spec: spec.algorithm.window_s for spec in delays.means if measure.is_burst(spec)}
    return list(_curves(delays, {spec: x for spec, x in windows.items() if x is not None}))


def _share(spec: MoralesSpec) -> float | None:
    share = spec.traffic.removeprefix(BIASED)
    return float(share) if share != spec.traffic and spec.algorithm.is_hot else None


def _curves(delays: MeanDelays, places: Mapping[MoralesSpec, float]) -> Iterator[Curve]:
    """`places`: runs with the hot-topic algorithm → where they are on the horizontal axis."""
    for name, mean_of in (("N", delays.naive), ("HT", delays.means.get)):
        for uplink in Uplink:
            points = [
                (x, mean_ms)
                for spec, x in places.items()
                if spec.uplink is uplink and (mean_ms := mean_of(spec)) is not None
            ]
            if points:
                yield Curve(f"{name}-{uplink.label}", sorted(points))


def run_lines(records: Sequence[MoralesRecord]) -> list[list[str]]:
    """A line for each run; `beyond` is what the fixed broker had matched."""
    lines = [["ms", "publications", "mean", "deviation", "beyond"]]
    for record in records:
        found, beyond = spread(delays_ms(record.hearings())), measure.share_beyond(record)
        lines.append(
            [
                str(record.spec),
                str(len(record.sent) - record.warm_up),
                NONE if found is None else f"{found.mean:.2f}",
                NONE if found is None else f"{found.deviation:.2f}",
                NONE if beyond is None else f"{beyond:.1f} %",
            ]
        )
    return lines


def farm_lines(farm: FarmRecord) -> list[list[str]]:
    """A line for each outage: how much of what was published meanwhile, or was under way, waited for whom."""
    subscribers = list(farm.arrived)
    lines = [["out of coverage", "seconds", *(f"waited for {each}" for each in subscribers), "longest, s"]]
    waits = list(measure.waits(farm))
    for index, (what, began_at, ended_at, _) in enumerate(farm.outages):
        until = farm.outages[index + 1].began_at if index + 1 < len(farm.outages) else float("inf")
        during = [(who, s) for who, arrival, s in waits if began_at <= arrival.at < until]
        counts = [str(sum(who == each for who, _ in during)) for each in subscribers]
        longest = number(max((s for _, s in during), default=None))
        lines.append([what, number(ended_at - began_at), *counts, longest])
    return lines
