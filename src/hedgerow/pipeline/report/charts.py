"""Line charts as SVG for the report: axes, curves, dots, named moments and a legend.

Colours of text and frame come from the page, so that a chart fits a light and a dark one. Points that are not
numbers are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from hedgerow.pipeline.report.html import COLOURS, Html

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 30, 48
LEGEND_LINE = 18
MAX_CURVES = len(COLOURS)
MAX_MARKS = 40
MAX_LABEL = 60  # characters


class Curve(NamedTuple):
    label: str
    points: Sequence[tuple[float, float]]
    is_dots: bool = False


class _Axis(NamedTuple):
    place: Callable[[float], float]
    ticks: list[float]
    write: Callable[[float], str] = "{:g}".format


def line_chart(
    title: str,
    labels: tuple[str, str],
    curves: Sequence[Curve],
    marks: Mapping[str, float] | None = None,
    *,
    log_x: bool = False,
    is_time: bool = False,
) -> Html:
    """`labels` are those of the axes; `marks` are named places on the horizontal one. At most `MAX_CURVES`
    curves are drawn. `is_time`: the horizontal axis has seconds since 1970."""
    shown = [curve._replace(points=list(_drawable(curve.points, log_x))) for curve in curves[:MAX_CURVES]]
    xs = [x for curve in shown for x, _ in curve.points]
    ys = [y for curve in shown for _, y in curve.points]
    if not xs:
        return _svg(title, HEIGHT, [_text(WIDTH / 2, HEIGHT / 2, "nothing was measured", "middle")])
    moments = dict(list((marks or {}).items())[:MAX_MARKS])
    across = (_log_axis if log_x else _time_axis if is_time else _axis)(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = _axis(min(0.0, *ys), max(ys), HEIGHT - BOTTOM, TOP)
    parts = [*_frame(across, up, labels), *_marks(moments, across, min(xs), max(xs))]
    for colour, curve in zip(COLOURS, shown, strict=False):
        places = [(across.place(x), up.place(y)) for x, y in curve.points]
        if not curve.is_dots:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if curve.is_dots or len(places) <= 12:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    for index, (colour, curve) in enumerate(zip(COLOURS, shown, strict=False)):
        y = HEIGHT + 4 + LEGEND_LINE * index
        parts.append(f'<rect x="{LEFT}" y="{y - 3}" width="22" height="3" fill="{colour}"/>')
        parts.append(_text(LEFT + 30, y + 3, curve.label))
    return _svg(title, HEIGHT + LEGEND_LINE * len(shown) + 4, parts)


def _drawable(points: Sequence[tuple[float, float]], log_x: bool) -> Iterator[tuple[float, float]]:
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x):
            yield x, y


def _svg(title: str, height: float, parts: Sequence[str]) -> Html:
    text = escape(title)
    head = f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{text}">\n<title>{text}</title>'
    return Html("\n".join([head, _text(LEFT, 18, title), *parts, "</svg>"]))


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    cut = text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(cut)}</text>'


def _frame(across: _Axis, up: _Axis, labels: tuple[str, str]) -> Iterator[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value in up.ticks:
        y = up.place(value)
        yield f'<line class="frame" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 6, y + 4, up.write(value), "end")
    for value in across.ticks:
        x = across.place(value)
        yield f'<line class="frame" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>'
        yield _text(x, bottom + 18, across.write(value), "middle")
    yield f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>'
    yield _text((LEFT + right) / 2, HEIGHT - 12, labels[0], "middle")
    middle = (TOP + bottom) / 2
    yield f'<g transform="rotate(-90 14 {middle:.1f})">{_text(14, middle + 4, labels[1], "middle")}</g>'


def _marks(marks: Mapping[str, float], across: _Axis, least: float, most: float) -> Iterator[str]:
    for name, value in marks.items():
        if least <= value <= most:
            x = across.place(value)
            line = f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            yield f"{line}<title>{escape(name)}</title></line>"


def _axis(least: float, most: float, begin: float, end: float) -> _Axis:
    if most <= least:
        least, most = least - 0.5, most + 0.5
    step = _step((most - least) / 5)
    first, last = math.floor(least / step), math.ceil(most / step)
    low, high = first * step, last * step
    ticks = [round(step * number, 10) for number in range(first, last + 1)]
    return _Axis(lambda value: begin + (value - low) / (high - low) * (end - begin), ticks)


_SPANS = (1, 5, 15, 60, 300, 900, 3_600, 4 * 3_600, 12 * 3_600, 86_400, 7 * 86_400, 28 * 86_400)


def _time_axis(least: float, most: float, begin: float, end: float) -> _Axis:
    """From first to last, with ticks at whole minutes, hours or days of UTC."""
    if most <= least:
        least, most = least - 30, most + 30
    step = next((span for span in _SPANS if (most - least) / span <= 7), _SPANS[-1] * 13)
    first = math.ceil(least / step)
    ticks = [float(step * number) for number in range(first, math.floor(most / step) + 1)]
    form = "%m-%d" if step >= 86_400 else "%m-%d %H:%M" if step >= 3_600 else "%H:%M:%S"
    return _Axis(
        lambda value: begin + (value - least) / (most - least) * (end - begin),
        ticks,
        lambda value: datetime.fromtimestamp(value, UTC).strftime(form),
    )


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten, and not less than this."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


def _log_axis(least: float, most: float, begin: float, end: float) -> _Axis:
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    high = max(high, low + 1)

    def place(value: float) -> float:
        return begin + (math.log10(value) - low) / (high - low) * (end - begin)

    return _Axis(place, [10.0**exponent for exponent in range(low, high + 1)])
