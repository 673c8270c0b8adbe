"""Records of runs that never were, with what the tests want to read from them."""

from __future__ import annotations

from hedgerow.hot.hot_topics import Score
from hedgerow_workshop.lab.harness.record import Arrival, Received
from hedgerow_workshop.lab.morales.record import (
    Bytes,
    FarmRecord,
    Growth,
    Memory,
    MoralesRecord,
    MoralesSpec,
    Outage,
    Outcome,
    Saving,
    SceneRecord,
)
from hedgerow_workshop.lab.morales.setting import DELAYS_S, NAIVE, TOPICS, Algorithm, Uplink

BEGAN_AT = 1_000.0
INTERVAL_S = 0.01
NEAR_S = 0.001


def make_run(
    uplink: Uplink, traffic: str, algorithm: Algorithm, beyond: int, count: int = 100
) -> MoralesRecord:
    """Of every hundred publications so many go to the fixed broker; twenty before them are the warm-up, and
    take a second."""
    warm_up = 20
    record = MoralesRecord(MoralesSpec(uplink, traffic, algorithm), warm_up)
    for number in range(warm_up + count):
        sent_at = BEGAN_AT + number * INTERVAL_S
        far_s = 2 * DELAYS_S[uplink] if (number - warm_up) % 100 < beyond else 0.0
        record.topics.append(TOPICS[number % len(TOPICS)])
        record.sent.append(sent_at)
        record.arrived.append(Arrival(number, sent_at + (1.0 if number < warm_up else NEAR_S + far_s)))
    return record


def make_trio(
    uplink: Uplink, traffic: str, beyond: dict[float, int], score: Score = "window"
) -> list[MoralesRecord]:
    """`beyond`: of the hot-topic algorithm, by its window. The naïve one has 80 % there with one half, 20 %
    with the other."""
    algorithms = {Algorithm(window_s, score=score): share for window_s, share in beyond.items()}
    hot = [make_run(uplink, traffic, algorithm, share) for algorithm, share in algorithms.items()]
    halves = zip(NAIVE, (80, 20), strict=True)
    return hot + [make_run(uplink, traffic, algorithm, share) for algorithm, share in halves]


def make_records() -> list[MoralesRecord]:
    records: list[MoralesRecord] = []
    for uplink in Uplink:
        records += make_trio(uplink, "random", {2.0: 50})
        records += make_trio(uplink, "biased10", {2.0: 45})
        records += make_trio(uplink, "biased90", {2.0: 6})
    records += make_trio(Uplink.LTE, "burst-short", {0.1: 30, 1.0: 20})
    records += make_trio(Uplink.LTE, "burst-long", {20.0: 49})
    records += make_trio(Uplink.WIMAX, "burst-short", {0.1: 25})
    records += make_trio(Uplink.WIMAX, "burst-long", {20.0: 46})
    return records


def make_farm() -> FarmRecord:
    """The field is out of coverage from 2 s to 5 s: what is published meanwhile waits for irrigation, and the
    datagrams are not heard. The sprayer comes at 6 s."""
    farm = FarmRecord()
    times = [BEGAN_AT + number / 10 for number in range(100)]
    farm.sent = {"soil": times, "weather": list(times)}
    farm.topics = {"soil": "crop/soil", "weather": "crop/weather"}
    farm.datagrams = {"temperature": list(times)}
    began_at, ended_at = BEGAN_AT + 1.95, BEGAN_AT + 5.05
    farm.outages = [Outage("field", began_at, ended_at, ended_at + 1.01)]
    farm.since = {"office": BEGAN_AT, "irrigation": BEGAN_AT, "sprayer": BEGAN_AT + 6}
    farm.arrived = {"office": [], "irrigation": [], "sprayer": []}
    for publisher in ("soil", "weather", "temperature"):
        for number, at in enumerate(times):
            is_out = began_at <= at <= ended_at
            if publisher == "temperature" and is_out:
                continue
            farm.arrived["office"].append(Received(publisher, number, at + 0.05))
            farm.arrived["irrigation"].append(
                Received(publisher, number, ended_at + 1 if is_out else at + 0.01)
            )
            if at >= BEGAN_AT + 6:
                farm.arrived["sprayer"].append(Received(publisher, number, at + 0.08))
    farm.ended_at = BEGAN_AT + 11
    return farm


def make_mixed() -> list[MoralesRecord]:
    """What the fixed broker matched are random bursts with our algorithm, and half of each with the naïve."""
    records = make_trio(Uplink.LTE, "mixed", {2.0: 50})
    for record in records:
        numbers = range(len(record.sent))
        is_ours = record.spec.algorithm.is_hot
        record.random = [(n - 20) % 100 < 50 if is_ours else n % 2 == 0 for n in numbers]
    return records


def make_scene(name: str, count: int = 100) -> SceneRecord:
    """A panel hears a sensor, and the last number after half a second."""
    scene = SceneRecord(name, topics={"soil": "crop/soil"}, since={"panel": BEGAN_AT})
    scene.sent["soil"] = [BEGAN_AT + number / 10 for number in range(count)]
    delays = [NEAR_S] * (count - 1) + [0.5]
    scene.arrived["panel"] = [
        Received("soil", number, at + delay_s)
        for (number, at), delay_s in zip(enumerate(scene.sent["soil"]), delays, strict=True)
    ]
    scene.connections["panel"] = [BEGAN_AT, BEGAN_AT + 1]
    return scene


def make_outcome() -> Outcome:
    """All of it but plug-in. Of the domains one run loses three messages and has not moved, the other doubles
    one; the second broker hands on two in the wrong order, and repeats one."""
    outcome = Outcome(make_records(), make_farm())
    handover = make_scene("handover", 200)
    stored, unstored, second = map(make_scene, ("domain-stored", "domain-unstored", "second"))
    stored.arrived["panel"].append(stored.arrived["panel"][7])
    del unstored.arrived["panel"][10:13]
    unstored.has_moved = False
    arrived = second.arrived["panel"]
    arrived[4], arrived[5] = arrived[5], arrived[4]
    arrived.append(Received(*arrived[9][:3], is_repeated=True))
    outcome.scenes = {each.name: each for each in (handover, stored, unstored, second)}
    outcome.processor = Saving(0.1, 0.2, is_delegated=False)
    outcome.memory = Memory(Growth(45.0, 60.0), Growth(46.0, 66.0))
    outcome.bytes = {1_000: Bytes(1_000, 50, 250, 1_000)}
    return outcome
