"""What stands out in the readings of one sensor and field: a machine that takes them one by one.

It keeps no readings but the last few. What is usual for this sensor it learns from the sensor itself, as
bounds that widen at once and narrow with time (`memory_s`, `memory_readings`): the longest run of one value,
the largest step, the longest time between two readings, the largest distance from the pattern of the day. A
reading stands out when it is beyond a bound by a factor, so a restless sensor is measured by its own unrest,
and what stands out widens no bound.

| kind | |
| --- | --- |
| impossible | below or above the limits of the settings or of the unit; or what devices send for "no value" |
| stuck | one value for longer than this sensor ever rested, and for `stuck_readings` and `stuck_s` at least |
| spike | away from the readings before it, and back within `spike_readings` |
| jump | away from the readings before it, and there it stays |
| unsteady | away from the readings before it, now here and now there |
| unusual | far from what is usual at this hour, `unusual_readings` times in a row |
| silence | nothing for longer than this sensor ever paused |

Each is told once when it is noticed and, if it has lasted, once more when it is over. Values of a circular
quantity, such as a direction, are compared the shorter way round. A sensor that has only ever said 0 and 1 is
a switch: it may rest as long as it likes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import inf, nan
from typing import NamedTuple

IMPOSSIBLE, STUCK, SPIKE, JUMP = "impossible", "stuck", "spike", "jump"
UNSTEADY, UNUSUAL, SILENCE = "unsteady", "unusual", "silence"
KINDS = (IMPOSSIBLE, STUCK, SPIKE, JUMP, UNSTEADY, UNUSUAL, SILENCE)

SECOND = 1_000_000  # Times are microseconds since 1970.
_HOUR = 3_600 * SECOND
_DAY_S = 86_400.0
HOURS = 24
RECENT = 5
"""A step is the distance from the median of so many readings."""
MAX_PENDING = 8
NO_VALUE = frozenset((-9999.0, -999.9, -999.0, -127.0, 999.9, 9999.0, 32767.0, 65535.0))
"""What devices and their libraries send where they have nothing to say."""
_FAR = 10.0  # times the largest step: there such a number is no value
_RUNS = 20  # that have ended, before it is known how long this sensor rests
_LONG_RUN_S, _LONG_RUN = _DAY_S, 100  # of zero and the limits, and where it is not known how long it rests
_PATTERN_S = 3 * _DAY_S  # until a pattern of the day is known
_PATTERN_DAYS = 5  # over which an hour's level is a mean
_ADOPT_S = _DAY_S  # What was unusual for so long is so no more.
_WIDENS = 0.5
"""By so much the distance from the pattern may grow in an hour, and be usual: a slow drift is told."""
_TYPICAL = 8.0  # times the mean step: no step below stands out
_TYPICAL_DEVIATION = 4.0
_TYPICAL_INTERVAL = 5.0
_GRAIN = 4.0  # times the smallest step that there ever was
_MEAN_OF = 1 / 50
_JUMPS = 2.5
"""What jumps more often within its memory does so by its nature: a lamp. Once to and fro is a fault."""
_CALM, _SLOWLY = 10, 1.02
"""So soon after what stood out a bound widens slowly: a sensor that has gone wild is no measure of itself."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Of a sensor and field; `is_…` says what is looked for."""

    minimum: float = -inf
    maximum: float = inf
    circular: float = 0.0
    """The whole turn of a circular quantity, such as 360; 0: it is none."""
    rests: tuple[float, ...] = ()
    """Values that it may have for any time."""
    memory_s: float = 3 * _DAY_S
    memory_readings: int = 200
    """Bounds narrow over this time and not within these readings: whichever is more."""
    learn_readings: int = 30
    """After so many it is known what is usual."""
    is_stuck_told: bool = True
    stuck_factor: float = 3.0
    stuck_readings: int = 12
    stuck_s: float = 1_200.0
    is_spike_told: bool = True
    spike_factor: float = 2.0
    spike_readings: int = 3
    is_unusual_told: bool = True
    unusual_factor: float = 1.5
    unusual_readings: int = 5
    is_silence_told: bool = True
    silence_factor: float = 3.0
    silence_s: float = 60.0


class Anomaly(NamedTuple):
    """Something that stands out. What is told twice has the same `kind` and `at`."""

    kind: str
    at: int
    """Of the first reading that it is about; a silence begins with the last reading before it."""
    until: int
    """Of the last until now."""
    is_over: bool
    readings: int
    """How many it is about until now."""
    value: float
    """The first of them; of several spikes the furthest. NaN: there is none."""
    expected: float
    """What was usual; NaN: nothing."""
    bound: float
    """Of the same unit; of a run its readings, and of a silence its seconds."""


Anomalies = tuple[Anomaly, ...]
_NONE: Anomalies = ()

_TIMES = ("first_at", "last_at", "heard_at", "run_at", "impossible_at", "unusual_at")
_COUNTS = ("count", "run", "runs", "longest_run", "rest_run", "impossible_n", "unusual_n", "calm")
_NUMBERS = (
    "last", "rest", "told", "interval", "pause", "grain", "step", "mean_step", "deviation", "mean_deviation",
    "impossible", "unusual", "jumps",
)  # fmt: skip
_FLAGS = ("is_switch", "is_stuck", "is_silent")
_FIELDS = (*_TIMES, *_COUNTS, *_NUMBERS, *_FLAGS)
_FIXED = struct.Struct(f"<{len(_TIMES)}q{len(_COUNTS)}I{len(_NUMBERS)}d{len(_FLAGS)}?BB")
_PATTERN = struct.Struct(f"<{HOURS}d{HOURS}H")
_MOST = 2**16 - 1


class SensorWatch:
    """Of one sensor and field; begins with its first reading."""

    __slots__ = (*_FIELDS, "levels", "pending", "recent", "seen", "settings")

    first_at: int
    last_at: int
    heard_at: int
    run_at: int
    impossible_at: int
    unusual_at: int
    count: int
    run: int
    runs: int
    longest_run: int
    rest_run: int
    impossible_n: int
    unusual_n: int
    calm: int
    last: float
    rest: float
    told: float
    interval: float
    pause: float
    grain: float
    step: float
    mean_step: float
    deviation: float
    mean_deviation: float
    impossible: float
    unusual: float
    jumps: float
    is_switch: bool
    is_stuck: bool
    is_silent: bool

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        for name in (*_TIMES, *_COUNTS):
            setattr(self, name, 0)
        for name in _NUMBERS:
            setattr(self, name, 0.0)
        self.last = self.rest = self.told = nan
        self.grain = inf
        self.is_switch, self.is_stuck, self.is_silent = True, False, False
        self.recent: list[float] = []
        self.pending: list[tuple[int, float]] = []
        self.levels = [0.0] * HOURS
        self.seen = [0] * HOURS
        """How many readings each hour's level is made of."""

    def pack(self) -> bytes:
        parts = [_FIXED.pack(*(getattr(self, name) for name in _FIELDS), len(self.recent), len(self.pending))]
        parts.append(struct.pack(f"<{len(self.recent)}d", *self.recent))
        parts += [struct.pack("<qd", at, value) for at, value in self.pending]
        parts.append(_PATTERN.pack(*self.levels, *self.seen))
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes | memoryview, settings: WatchSettings) -> SensorWatch:
        watch = cls.__new__(cls)
        watch.settings = settings
        *fields, recent, pending = _FIXED.unpack_from(data, 0)
        for name, value in zip(_FIELDS, fields, strict=True):
            setattr(watch, name, value)
        place = _FIXED.size
        watch.recent = list(struct.unpack_from(f"<{recent}d", data, place))
        place += 8 * recent
        watch.pending = [struct.unpack_from("<qd", data, place + 16 * number) for number in range(pending)]
        pattern = _PATTERN.unpack_from(data, place + 16 * pending)
        watch.levels, watch.seen = list(pattern[:HOURS]), list(pattern[HOURS:])
        return watch

    def take(self, at: int, value: float, heard_at: int = 0) -> Anomalies:
        """A reading; `heard_at` is when we had it, by our own clock. One that is not newer than the last is
        only compared with the limits."""
        settings = self.settings
        self.heard_at = heard_at
        if not self.count:
            return self._begin(at, value)
        since = (at - self.last_at) / SECOND
        if since <= 0:
            return self._impossible(at, value, is_new=False) if self._is_impossible(value) else _NONE
        found = self._pause(at, since) if since > self.interval * 2 else _NONE
        self.interval += (since - self.interval) * (_MEAN_OF if self.count > 50 else 1 / self.count)
        faded = since / settings.memory_s
        if faded > 1 / settings.memory_readings:
            faded = 1 / settings.memory_readings
        left = 1.0 - faded
        self.pause *= left
        if since > self.pause and not found:
            self.pause = since
        self.last_at = at
        if self._is_impossible(value):
            return found + self._impossible(at, value, is_new=True)
        if self.impossible_n:
            found += self._possible_again()
        self.count += 1
        if value == self.last:
            self.run += 1
            if not self.is_stuck and self.run >= settings.stuck_readings:
                found += self._rests(at, value)
        else:
            if self.run > 1 or self.is_stuck:
                found += self._moves()
            self.run, self.run_at = 1, at
            self.runs += 1
            self.last = value
            if self.is_switch:
                self.is_switch = value in (0.0, 1.0)
        if self.is_stuck or self.is_switch:
            return found
        return found + self._compare(at, value, left)

    def overdue_at(self) -> int | None:
        """From when on, by our own clock, `overdue` has something to tell; None: of this sensor it has not.

        What is read long after it was measured, a history say, was not sent just now: of that sensor it is
        not known whether it still sends.
        """
        allowed = self._allowed_pause()
        if self.is_silent or allowed is None or self.heard_at - self.last_at > allowed * SECOND:
            return None
        return self.heard_at + round(allowed * SECOND)

    def overdue(self, now: int) -> Anomalies:
        due_at = self.overdue_at()
        if due_at is None or now <= due_at:
            return _NONE
        self.is_silent = True
        allowed = self._allowed_pause() or 0.0
        return (Anomaly(SILENCE, self.last_at, now, False, 0, nan, self.interval, allowed),)

    def _begin(self, at: int, value: float) -> Anomalies:
        self.first_at = self.last_at = self.run_at = at
        if self._is_impossible(value):
            return _NONE if self.impossible_n else self._impossible(at, value, is_new=True)
        self.count = self.run = 1
        self.last = value
        self.recent.append(value)
        self.is_switch = value in (0.0, 1.0)
        return self._possible_again() if self.impossible_n else _NONE

    # Silence

    def _allowed_pause(self) -> float | None:
        """In seconds; None: not known, or not asked for."""
        settings = self.settings
        if not settings.is_silence_told or self.count < settings.learn_readings:
            return None
        return max(
            settings.silence_s, settings.silence_factor * self.pause, _TYPICAL_INTERVAL * self.interval
        )

    def _pause(self, at: int, since: float) -> Anomalies:
        allowed = self._allowed_pause()
        was_told, self.is_silent = self.is_silent, False
        if allowed is None or (since <= allowed and not was_told):
            return _NONE
        # What was before says little of what comes now.
        self.recent.clear()
        self.pending.clear()
        return (Anomaly(SILENCE, self.last_at, at, True, 0, nan, self.interval, allowed),)

    # Impossible values

    def _is_impossible(self, value: float) -> bool:
        if not self.settings.minimum <= value <= self.settings.maximum:
            return True
        return value in NO_VALUE and self._is_far(value)

    def _is_far(self, value: float) -> bool:
        if not self.recent:
            return self.count == 0
        return abs(value - self.recent[-1]) > _FAR * max(self.step, _TYPICAL * self.mean_step)

    def _impossible(self, at: int, value: float, *, is_new: bool) -> Anomalies:
        settings = self.settings
        is_below = value < settings.minimum
        bound = settings.minimum if is_below else settings.maximum
        if settings.minimum <= value <= settings.maximum:
            bound = nan
        if not is_new:
            return (Anomaly(IMPOSSIBLE, at, at, True, 1, value, nan, bound),)
        self.impossible_n += 1
        if self.impossible_n > 1:
            return _NONE
        self.impossible_at, self.impossible = at, value
        return (Anomaly(IMPOSSIBLE, at, at, False, 1, value, nan, bound),)

    def _possible_again(self) -> Anomalies:
        """`last_at` is that of the reading that was possible."""
        count, self.impossible_n = self.impossible_n, 0
        settings, value = self.settings, self.impossible
        bound = settings.minimum if value < settings.minimum else settings.maximum
        if settings.minimum <= value <= settings.maximum:
            bound = nan
        return (Anomaly(IMPOSSIBLE, self.impossible_at, self.last_at, True, count, value, nan, bound),)

    # Stuck

    def _rests(self, at: int, value: float) -> Anomalies:
        """The same value again, and that for some time."""
        settings = self.settings
        lasted = (at - self.run_at) / SECOND
        if not settings.is_stuck_told or self.is_switch or lasted < settings.stuck_s:
            return _NONE
        if self.run <= self._allowed_run(value) or value in settings.rests:
            return _NONE
        may_rest = value == 0 or value in (settings.minimum, settings.maximum)
        if (may_rest or self.runs < _RUNS) and (lasted < _LONG_RUN_S or self.run < _LONG_RUN):
            return _NONE
        self.is_stuck = True
        bound = float(self.rest_run if value == self.rest else self.longest_run)
        return (Anomaly(STUCK, self.run_at, at, False, self.run, value, nan, bound),)

    def _allowed_run(self, value: float) -> float:
        longest = self.rest_run if value == self.rest else self.longest_run
        return self.settings.stuck_factor * longest if self.runs >= _RUNS else 0.0

    def _moves(self) -> Anomalies:
        """A run has ended: how long it was is learned."""
        was_stuck, self.is_stuck = self.is_stuck, False
        found: Anomalies = _NONE
        if was_stuck:
            bound = float(self.rest_run if self.last == self.rest else self.longest_run)
            found = (Anomaly(STUCK, self.run_at, self.last_at, True, self.run, self.last, nan, bound),)
            self.recent.clear()
            if self.told != self.last:  # What rests there again does so by its nature.
                self.told = self.last
                return found
        if self.last == self.rest:
            self.rest_run = max(self.rest_run, self.run)
        elif self.run > self.rest_run:
            self.longest_run = max(self.longest_run, self.rest_run)
            self.rest, self.rest_run = self.last, self.run
        else:
            self.longest_run = max(self.longest_run, self.run)
        return found

    # Spikes, jumps, and the pattern of the day

    def _compare(self, at: int, value: float, left: float) -> Anomalies:
        settings, recent = self.settings, self.recent
        turn = settings.circular
        if not recent:
            recent.append(value)
            return _NONE
        middle = self._middle()
        away = value - middle
        if turn:
            away = _turned(away, turn)
        size = abs(away)
        found = _NONE
        if self.count > settings.learn_readings and settings.is_spike_told:
            bound = max(
                settings.spike_factor * self.step, _TYPICAL * self.mean_step,
                _GRAIN * self.grain if self.grain < inf else size,
            )  # fmt: skip
            if size > bound:
                self.pending.append((at, value))
                self.calm = 0
                if len(self.pending) <= settings.spike_readings:
                    return _NONE
                return self._jump(middle, bound)
            if self.pending:
                found = self._spike(middle, bound)
        self.step *= left
        self.jumps *= left
        if size > self.step:
            self.step = size if self.calm >= _CALM else min(size, self.step * _SLOWLY)
        self.calm += 1
        self.mean_step += (size - self.mean_step) * (_MEAN_OF if self.count > 50 else 1 / self.count)
        change = abs(value - recent[-1])
        if 0 < change < self.grain:
            self.grain = change
        if len(recent) == RECENT:
            del recent[0]
        recent.append(value)
        return found + self._compare_with_day(at, value, left)

    def _middle(self) -> float:
        recent, turn = self.recent, self.settings.circular
        if turn:
            last = recent[-1]
            return last + sorted(_turned(each - last, turn) for each in recent)[len(recent) // 2]
        return sorted(recent)[len(recent) // 2]

    def _spike(self, middle: float, bound: float) -> Anomalies:
        turn = self.settings.circular
        furthest = max(
            (value for _, value in self.pending),
            key=lambda value: abs(_turned(value - middle, turn) if turn else value - middle),
        )
        first, last = self.pending[0][0], self.pending[-1][0]
        count = len(self.pending)
        self.pending.clear()
        return (Anomaly(SPIKE, first, last, True, count, furthest, middle % turn if turn else middle, bound),)

    def _jump(self, middle: float, bound: float) -> Anomalies:
        """They did not come back: to where they are, if they are together."""
        first, value = self.pending[0]
        turn = self.settings.circular
        values = [value for _, value in self.pending]
        away = [_turned(each - middle, turn) if turn else each - middle for each in values]
        is_jump = max(away) - min(away) < min(map(abs, away))
        if is_jump:
            self.jumps += 1
            if self.jumps > _JUMPS:
                self.step, self.calm = max(map(abs, away)), _CALM
        self.recent[:] = values[-RECENT:]
        self.pending.clear()
        expected = middle % turn if turn else middle
        kind = JUMP if is_jump else UNSTEADY
        return (Anomaly(kind, first, self.last_at, True, len(values), value, expected, bound),)

    def _compare_with_day(self, at: int, value: float, left: float) -> Anomalies:
        settings = self.settings
        hour = at // _HOUR % HOURS
        seen = self.seen[hour]
        away = value - self.levels[hour] if seen else 0.0
        if settings.circular:
            away = _turned(away, settings.circular)
        size = abs(away)
        per_hour = 3_600 / self.interval if self.interval > 0 else 1.0
        self.levels[hour] += away / min(seen + 1, max(1.0, per_hour * _PATTERN_DAYS)) if seen else value
        if seen < _MOST:
            self.seen[hour] = seen + 1
        is_known = seen and at - self.first_at > _PATTERN_S * SECOND and settings.is_unusual_told
        bound = max(settings.unusual_factor * self.deviation, _TYPICAL_DEVIATION * self.mean_deviation)
        if is_known and size > bound:
            self.unusual_n += 1
            if self.unusual_n == 1:
                self.unusual_at, self.unusual = at, value
            if self.unusual_n == settings.unusual_readings:
                return self._unusual(at, settings.unusual_readings, value - away, bound, is_over=False)
            if at - self.unusual_at < _ADOPT_S * SECOND:
                return _NONE
        if seen:
            # A day has one of each hour: narrowing by the hour would forget the weather of yesterday.
            self.deviation *= 1 - (1 - left) / 3
            if size > self.deviation:
                wider = self.deviation * (1 + _WIDENS * min(1.0, self.interval / 3_600))
                self.deviation = min(size, wider) if is_known else size
            self.mean_deviation += (size - self.mean_deviation) * _MEAN_OF / 10
        count, self.unusual_n = self.unusual_n, 0
        if count < settings.unusual_readings:
            return _NONE
        usual = self.levels[self.unusual_at // _HOUR % HOURS]
        return self._unusual(at, count, usual, bound, is_over=True)

    def _unusual(self, at: int, count: int, usual: float, bound: float, *, is_over: bool) -> Anomalies:
        if self.settings.circular:
            usual %= self.settings.circular
        return (Anomaly(UNUSUAL, self.unusual_at, at, is_over, count, self.unusual, usual, bound),)


def _turned(away: float, turn: float) -> float:
    """The shorter way round, from -turn / 2 to turn / 2."""
    away %= turn
    return away - turn if away > turn / 2 else away
