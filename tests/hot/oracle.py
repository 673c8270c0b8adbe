"""The hot-topic algorithm as published, line by line (Figures 5 and 6), on lists that only grow.

Where the figures can be read in two ways, the text beside them decides. The registry of Figure 5 that has a
count for each topic ever matched is called Registry.T_TS there; Registry.Calc is what the calculation fills
with the topics of events younger than Y.time ("in a true case the broker includes this registry in the
Registry.Calc"), one entry for each event. So the loop of line 10 adds the number of its entries to a topic's
final count, and a topic without an entry is moved by no line: it stays in the registry where it is. Equal
scores are ordered by name, which the document leaves open.

What the final counts are before that loop can be read in two ways, and `copies_counts` says which: line 9
copies "all the Ts.counts" of Figure 5 there; as "a score which reflects the Hot-Topic level for Y.time" they
are 0.

Times are whole numbers, in any unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Topic:
    topic: str
    count: int = 0
    time: int = 0


@dataclass
class Oracle:
    x_time: int
    y_time: int
    copies_counts: bool
    registry_t_ts: list[Topic] = field(default_factory=list)
    registry_time: list[tuple[int, str]] = field(default_factory=list)
    in_registry: list[str] = field(default_factory=list)
    out_registry: list[str] = field(default_factory=list)
    ranking: list[tuple[str, int]] = field(default_factory=list)
    """Of the last calculation."""
    calculation_at: int | None = None

    def publication_monitoring(self, event_topic: str, now: int) -> None:
        for ts in self.registry_t_ts:
            if ts.topic == event_topic:
                ts.count += 1
                ts.time = now
                self.registry_time.append((ts.time, ts.topic))
                return
        ts = Topic(event_topic)
        ts.count += 1
        self.registry_t_ts.append(ts)
        ts.time = now
        self.registry_time.append((ts.time, ts.topic))

    def hot_topic_calculation(self, c_time: int) -> None:
        registry_calc = []
        for ts_time, ts_topic in self.registry_time:
            if c_time - self.y_time < ts_time:
                registry_calc.append(ts_topic)
        count_final = (
            self.copy_counts(registry_calc) if self.copies_counts else dict.fromkeys(registry_calc, 0)
        )
        for ts_topic in registry_calc:
            count_final[ts_topic] += 1
        self.ranking = sorted(count_final.items(), key=lambda item: (-item[1], item[0]))
        counter = 0
        while counter < len(self.ranking) / 2:
            self._move(self.ranking[counter][0], self.in_registry, self.out_registry)
            counter += 1
        for topic, _ in self.ranking[counter:]:
            self._move(topic, self.out_registry, self.in_registry)

    def copy_counts(self, registry_calc: list[str]) -> dict[str, int]:
        return {ts.topic: ts.count for ts in self.registry_t_ts if ts.topic in registry_calc}

    @staticmethod
    def _move(topic: str, to: list[str], away_from: list[str]) -> None:
        if topic in away_from:
            away_from.remove(topic)
        if topic not in to:
            to.append(topic)

    # The thread of line 2 is a clock that is never late.

    def note(self, topic: str, count: int, now: int) -> None:
        if self.calculation_at is None:
            self.calculation_at = now + self.x_time
        while self.calculation_at < now:
            self._calculate()
        for _ in range(count):
            self.publication_monitoring(topic, now)

    def handle_timer(self, now: int) -> None:
        while self.calculation_at is not None and self.calculation_at <= now:
            self._calculate()

    def _calculate(self) -> None:
        assert self.calculation_at is not None
        self.hot_topic_calculation(self.calculation_at)
        self.calculation_at += self.x_time
