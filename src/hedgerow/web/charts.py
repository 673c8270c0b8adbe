"""Small pictures of figures, and figures as people read them. SVG has classes alone: styles are forbidden."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hedgerow.web.markup import Html, short

SPARK_WIDTH, SPARK_HEIGHT = 118, 26
_STEP = 2  # a point each second, a minute wide
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def sparkline(anchor: str, label: str, points: Sequence[float]) -> Html:
    """The last minute, newest at the right; the highest point touches the top."""
    if len(points) < 2:
        return Html(f'<svg class="spark" id="{anchor}" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}"></svg>')
    top = max(points)
    scale = (SPARK_HEIGHT - 4) / top if top > 0 else 0.0
    floor = SPARK_HEIGHT - 2
    first = SPARK_WIDTH - _STEP * (len(points) - 1)
    places = range(first, SPARK_WIDTH + 1, _STEP)
    line = " ".join([f"{x},{floor - int(point * scale)}" for x, point in zip(places, points, strict=True)])
    return Html(
        f'<svg class="spark" id="{anchor}" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" role="img" '
        f'aria-label="{short(label, 80)}, at most {rate(top)} in the last minute">'
        f'<polygon points="{first},{floor} {line} {SPARK_WIDTH},{floor}"/></svg>'
    )


def number(value: float) -> Html:
    """With three digits that count: 999, 1.2 k, 12.3 k, 1.2 M."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return Html(
                f"{value / size:.3g} {unit}" if abs(value) < 999.5 * size else f"{value / size:,.0f} {unit}"
            )
    return Html(f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}".removesuffix(".0"))


def rate(value: float) -> Html:
    return Html(f"{number(value)}/s")


def size(value: float) -> Html:
    return Html(f"{number(value)}B" if abs(value) >= 1000 else f"{number(value)} B")


def share(value: float | None) -> Html:
    """In percent."""
    if value is None:
        return Html("–")
    return Html(f"{100 * value:,.0f} %" if value >= 0.1 else f"{100 * value:.2g} %")


def milliseconds(value: float | None) -> Html:
    if value is None:
        return Html("–")
    return Html(f"{value:,.0f} ms" if abs(value) >= 10 else f"{value:.1f} ms")


def delay(seconds: float) -> Html:
    """Whole milliseconds, since statuses tell no finer time; below zero where the sender's clock is ahead."""
    return Html(f"{round(seconds * 1000):,} ms".replace("-", "−"))


def duration(seconds: float) -> Html:
    """As 42 s, 5 min, 3 h 12 min, 4 d 2 h."""
    if seconds < 0:
        return Html(f"−{duration(-seconds)}")
    if seconds < 90:
        return Html(f"{seconds:.0f} s")
    minutes = int(min(seconds, 1e12)) // 60
    if minutes < 60:
        return Html(f"{minutes} min")
    if minutes < 60 * 24:
        return Html(f"{minutes // 60} h {minutes % 60} min")
    return Html(f"{minutes // 1440:,} d {minutes // 60 % 24} h")


def clock(at: float) -> Html:
    """The time of day, UTC; with its date in the title."""
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return Html("–")
    return Html(f'<time title="{moment:%Y-%m-%d %H:%M:%S} UTC">{moment:%H:%M:%S}</time>')
