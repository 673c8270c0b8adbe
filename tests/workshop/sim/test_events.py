"""The virtual clock."""

from __future__ import annotations

from hedgerow_workshop.sim.events import Events


def test_what_is_planned_happens_in_the_order_of_time_then_of_planning() -> None:
    events = Events()
    happened: list[tuple[str, float]] = []
    for at, what in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b"), (3.0, "later")):
        events.plan(at, lambda what: happened.append((what, events.now)), what)
    events.run(2.5)
    assert happened == [("a", 1.0), ("b", 1.0), ("c", 2.0), ("d", 2.0)]
    assert (events.now, events.happened, len(events)) == (2.5, 4, 1)


def test_what_is_due_already_happens_now() -> None:
    events = Events()
    events.run(5)
    happened: list[float] = []
    events.plan(1, lambda: happened.append(events.now))
    events.run(5)
    assert happened == [5]


def test_what_an_event_plans_happens_in_the_same_run_if_it_is_due() -> None:
    events = Events()
    happened: list[float] = []

    def again() -> None:
        happened.append(events.now)
        events.plan(events.now + 1, again)

    events.plan(0, again)
    events.run(3)
    assert happened == [0, 1, 2, 3]
