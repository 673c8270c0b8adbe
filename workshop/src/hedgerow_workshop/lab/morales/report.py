"""The report of the experiment: the bars, the document's Figures 9 and 10, every run, and the farm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hedgerow.pipeline.report.charts import Curve
from hedgerow_workshop.lab.harness.figures import html_figure, html_paragraph, html_table, write_page
from hedgerow_workshop.lab.harness.measure import count_lost, delays_ms, further, spread
from hedgerow_workshop.lab.harness.rows import NONE, Bar, Bars, Row, number
from hedgerow_workshop.lab.morales import measure
from hedgerow_workshop.lab.morales.drawing import draw_curves
from hedgerow_workshop.lab.morales.measure import MeanDelays
from hedgerow_workshop.lab.morales.record import (
    FarmRecord,
    MoralesRecord,
    MoralesSpec,
    Outcome,
    SceneRecord,
)
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

SCORE_TEXT = (
    "Mean delays over LTE. The score 'window' counts the events of a topic in the window. 'published' "
    "is that of the document's listing, whose line 9 adds all events that the topic ever had. Where the "
    "hot topic stays the same they are alike. Where it changes, the published score keeps what was hot "
    "before."
)
SCENE_TEXTS = {
    "handover": (
        "Figure 7: a topic goes cold and hot, and its subscribers are sent to the fixed broker and "
        "called back: by renewals of the extension, by Server References of MQTT 5. Those of MQTT 3.1.1 "
        "stay."
    ),
    "plug": (
        "Its last case: while they are at the fixed broker, their mobile broker comes back as one that "
        "delegates nothing. They are told 0x08 and its address, connect there, and subscribe again."
    ),
    "domain": (
        "The mobile broker moves to a fixed broker of another domain, a neighbour of the first in a "
        "federation, and the first is then out of reach. Nobody subscribes again, and all are to hear "
        "everything."
    ),
    "second": (
        "Section 3.1: a subscriber leaves the coverage of its mobile broker, and what it missed is to "
        "reach it through another one, once and in order; then back, with the one that it left killed; "
        "and there again, with the one where it arrives killed."
    ),
}
COST_TEXT = (
    "Processor time of the mobile broker for each event, with nine tenths of the events on cold topics "
    "whose subscribers are at the fixed broker, and half of them published on either side; its memory "
    "with 20,000 subscriptions, all of them delegated; and the bytes of delegations on the link beside "
    "those of full lists."
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
        "handover/lost": Bar(0),
        "handover/doubled": Bar(0),
        "handover/moved": Bar(1, least=1),
        "domain/lost": Bar(0),
        "domain/doubled": Bar(0),
        "domain/moved": Bar(1, least=1),
        "second/lost": Bar(0),
        "second/doubled": Bar(0),
        "second/disordered": Bar(0),
        "mobile/cpu-ratio": Bar(0.6),
        "mobile/memory-ratio": Bar(0.7),
        "filter/bytes-ratio": Bar(0.3),
    }
)
"""What the rows are held against."""


def write_report(directory: Path, outcome: Outcome, rows: Sequence[Row], notes: Sequence[str]) -> Path:
    """Into a directory that is there; returns the page."""
    delays = MeanDelays(outcome.delays)
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
        "<h2>The two scores</h2>",
        html_paragraph(SCORE_TEXT),
        html_table(score_lines(delays)),
        "<h2>Every run</h2>",
        html_table(run_lines(outcome.delays)),
    ]
    if outcome.farm is not None:
        parts += ["<h2>The farm</h2>", html_paragraph(FARM_TEXT), html_table(farm_lines(outcome.farm))]
    for record in outcome.scenes.values():
        parts += [f"<h2>{record.name}</h2>", html_paragraph(SCENE_TEXTS[record.name.partition("-")[0]])]
        parts.append(html_table(scene_lines(record)))
    parts += ["<h2>What delegation costs and saves</h2>", html_paragraph(COST_TEXT)]
    parts.append(html_table(cost_lines(outcome)))
    return write_page(directory, TITLE, parts)


def figure9(delays: MeanDelays) -> list[Curve]:
    return list(_curves(delays, {spec: x for spec in delays.means if (x := _share(spec)) is not None}))


def figure10(delays: MeanDelays) -> list[Curve]:
    windows = {
        spec: spec.algorithm.window_s
        for spec in delays.means
        if measure.is_burst(spec) and spec.algorithm.score == "window"
    }
    return list(_curves(delays, {spec: x for spec, x in windows.items() if x is not None}))


def _share(spec: MoralesSpec) -> float | None:
    share = spec.traffic.removeprefix(BIASED)
    is_ours = spec.algorithm.is_hot and spec.algorithm.score == "window"
    return float(share) if share != spec.traffic and is_ours else None


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


def score_lines(delays: MeanDelays) -> list[list[str]]:
    """A line for each traffic that both scores were given."""
    lines = [["ms", "window", "published", "naïve"]]
    for spec, mean_ms in delays.means.items():
        if spec.algorithm.score != "window":
            window = delays.means.get(replace(spec, algorithm=replace(spec.algorithm, score="window")))
            name = measure.point_name(spec).removesuffix(f"/{spec.algorithm.score}")
            lines.append([name, number(window), number(mean_ms), number(delays.naive(spec))])
    return lines


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


def scene_lines(record: SceneRecord) -> list[list[str]]:
    """A line for each subscriber."""
    lines = [["subscriber", "heard", "lost", "doubled", "with DUP", "longest wait, s", "connections"]]
    for subscriber in record.arrived:
        found = record.heard(subscriber)
        repeats = [arrival for hearing in found for arrival in further(hearing)]
        again = sum(arrival.is_repeated for arrival in repeats)
        longest = max((s for who, _, s in measure.waits(record, 0.0) if who == subscriber), default=None)
        counts = (
            sum(len(hearing.numbers) for hearing in found),
            count_lost(found),
            len(repeats) - again,
            again,
        )
        connections = str(len(record.connections.get(subscriber, ())))
        lines.append([subscriber, *map(str, counts), number(longest), connections])
    return lines


def cost_lines(outcome: Outcome) -> list[list[str]]:
    lines = [["", "delegation on", "off", "ratio"]]
    if outcome.processor is not None:
        on, off, _ = outcome.processor
        lines.append(["ms an event", number(on), number(off), number(outcome.processor.ratio)])
    if outcome.memory is not None:
        memory = outcome.memory
        grown = number(memory.on.grown), number(memory.off.grown), number(memory.ratio)
        lines.append(["MiB that the subscriptions take", *grown])
        after = number(memory.on.after), number(memory.off.after), number(memory.ratio_of_all)
        lines.append(["MiB in all", *after])
    for subscribers, found in sorted(outcome.bytes.items()):
        name = f"bytes, {subscribers:,} subscribers of each of {found.topics} topics (off: full lists)"
        lines.append([name, f"{found.sent:,}", f"{found.listed:,}", number(found.ratio)])
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
