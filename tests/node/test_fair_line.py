"""Networks take turns, and whoever has most gives up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.node.fair_line import FairLine, Place
from hedgerow.rates import networks_of, site_of


def line_of(*places: str) -> FairLine[int]:
    """Of `a/b` items, numbered in this order."""
    line: FairLine[int] = FairLine()
    for number, place in enumerate(places):
        line.add(tuple(place.split("/")), number)
    return line


def test_branches_take_turns_at_each_fork() -> None:
    line = line_of("a/x", "a/x", "a/x", "a/y", "b/z", "b/z")
    assert [line.take() for _ in range(6)] == [0, 4, 3, 5, 1, 2]
    assert len(line) == 0


def test_the_heaviest_gives_up_and_of_equals_whoever_came_last() -> None:
    line = line_of("a/x", "a/y", "a/y", "b/z", "b/z")
    assert line.heaviest() == 2
    assert line.heaviest(("b",)) == 4
    assert line_of("a/x", "b/y").heaviest() == 1


PLACES = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from("12"))
STEPS = st.lists(st.one_of(PLACES, st.sampled_from(["take", "heaviest"])), max_size=40)


@given(STEPS)
def test_it_is_as_one_that_counts_anew_each_time(steps: list[Place | str]) -> None:
    line: FairLine[int] = FairLine()
    waiting: dict[int, Place] = {}
    for number, step in enumerate(steps):
        if not isinstance(step, str):
            line.add(step, number)
            waiting[number] = step
        elif waiting and step == "take":
            del waiting[line.take()]
        elif waiting:
            given_up = line.heaviest()
            place = waiting[given_up]
            for depth in range(1, len(place) + 1):
                beside = Counter(
                    each[:depth] for each in waiting.values() if each[: depth - 1] == place[: depth - 1]
                )
                assert beside[place[:depth]] == max(beside.values())
            line.remove(waiting.pop(given_up), given_up)
        assert len(line) == len(waiting)
        assert all(line.contains(place, item) for item, place in waiting.items())
    while waiting:
        del waiting[line.take()]
    assert not any(vars(line).values())  # nothing is left of what is gone


def test_a_site_stands_in_its_networks() -> None:
    assert networks_of("192.0.2.7") == ("192.0", "192.0.2", "192.0.2.7")
    wide, middle, site = networks_of(site_of("2001:db8:1:2::3"))
    assert (wide, middle, site) == ("20010db8", "20010db80001", "20010db800010002")
    for odd in ("", "/run/socket", "fe80::1%eth0%eth1"):
        assert networks_of(odd) == (odd, odd, odd)
