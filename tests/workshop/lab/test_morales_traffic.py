"""The document's three modes of traffic: shares, bursts, the warm-up, and that a run can be repeated."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise

import pytest

from hedgerow_workshop.lab.morales import traffic
from hedgerow_workshop.lab.morales.setting import BIASED_TOPIC, PUBLICATIONS, TOPICS
from hedgerow_workshop.lab.morales.traffic import (
    DrawnTraffic,
    biased_traffic,
    burst_traffic,
    mixed_traffic,
    random_traffic,
)


def draw_measured(drawn: DrawnTraffic) -> list[str]:
    publications, warm_up = drawn.draw()
    return [each.topic for each in publications[warm_up:]]


@pytest.mark.parametrize("drawn", [random_traffic(3, 2.0), burst_traffic("x", 3, 2.0)])
def test_sets_of_publications_come_after_the_warm_up(drawn: DrawnTraffic) -> None:
    publications, warm_up = drawn.draw()
    assert len(publications) - warm_up == 3 * PUBLICATIONS
    assert publications[warm_up - 1].at_s < 2.0 <= publications[warm_up].at_s
    assert tuple(each.topic for each in publications[: len(TOPICS)]) == TOPICS


def test_without_a_warm_up_all_is_measured() -> None:
    publications, warm_up = random_traffic(1, 0.0).draw()
    assert (len(publications), warm_up) == (PUBLICATIONS, 0)


def test_the_rate() -> None:
    publications, _ = random_traffic(20, 0.0).draw()
    gaps = [after.at_s - before.at_s for before, after in pairwise(publications)]
    assert min(gaps) >= 0.005
    assert max(gaps) <= 0.015
    assert sum(gaps) / len(gaps) == pytest.approx(1 / traffic.RATE, rel=0.05)


def test_the_same_again_and_another_by_another_name() -> None:
    assert burst_traffic("a", 2, 1.0).draw() == burst_traffic("a", 2, 1.0).draw()
    assert burst_traffic("a", 2, 1.0).draw() != burst_traffic("b", 2, 1.0).draw()


def test_random_traffic_has_all_topics_alike() -> None:
    counts = Counter(draw_measured(random_traffic(50, 1.0)))
    assert sorted(counts) == sorted(TOPICS)
    assert max(counts.values()) < 1.2 * min(counts.values())


@pytest.mark.parametrize("share", [10, 50, 90])
def test_biased_traffic_has_its_share(share: int) -> None:
    topics = draw_measured(biased_traffic(share, 50, 1.0))
    counts = Counter(topics)
    assert 100 * counts.pop(BIASED_TOPIC) / len(topics) == pytest.approx(share, abs=2)
    assert len(counts) == len(TOPICS) - 1
    assert max(counts.values()) < 1.6 * min(counts.values())


def test_bursts_have_a_hot_topic_each_and_all_topics_have_their_turn() -> None:
    publications, warm_up = burst_traffic("x", 60, 1.0, share=100).draw()
    bursts = [list(burst) for _, burst in groupby(publications[warm_up:], key=lambda each: each.topic)]
    lengths = [after[0].at_s - before[0].at_s for before, after in pairwise(bursts[1:])]
    assert min(lengths) >= 0.5
    assert max(lengths) <= 1.02
    counts = Counter(burst[0].topic for burst in bursts[1:-1])
    assert sorted(counts) == sorted(TOPICS)
    assert max(counts.values()) - min(counts.values()) <= traffic.OF_EACH


def test_a_burst_has_the_others_too() -> None:
    counts = Counter(draw_measured(burst_traffic("x", 5, 1.0)))
    assert len(counts) == len(TOPICS)


def test_mixed_traffic_has_random_and_biased_bursts_in_turn() -> None:
    publications, _ = mixed_traffic(50, 1.0).draw()
    bursts = [list(burst) for _, burst in groupby(publications, key=lambda each: each.is_random)]
    for burst in bursts[1:-1]:  # the first has every topic once, the last is cut
        counts = Counter(each.topic for each in burst)
        share = max(counts.values()) / len(burst)
        assert share < 0.4 if burst[0].is_random else share > 0.75
    random = sum(each.is_random for each in publications)
    assert random == pytest.approx(len(publications) / 2, rel=0.1)


def test_other_traffic_has_no_random_bursts() -> None:
    for drawn in (random_traffic(1, 1.0), biased_traffic(90, 1, 1.0), burst_traffic("x", 1, 1.0)):
        assert not any(each.is_random for each in drawn.draw()[0])
