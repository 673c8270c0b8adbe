"""What is read from a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow_workshop.lab.harness.record import Arrival
from hedgerow_workshop.lab.schmitt import measure
from hedgerow_workshop.lab.schmitt.record import Departure, Mode, read_record
from tests.workshop.lab.schmitt_records import BEGAN_AT, event, make_record, state


def test_loss_is_what_never_arrived_of_what_was_published() -> None:
    record = make_record(missing=range(200, 220), missing_qos1=range(300, 301))
    assert measure.loss_percent(record, 0) == pytest.approx(2.0)
    assert measure.loss_percent(record, 1) == pytest.approx(0.1)
    assert measure.loss_percent(record, 0, "1") == 0


def test_what_comes_twice_is_doubled_and_hides_no_loss() -> None:
    record = make_record(missing_qos1=range(10))
    assert measure.doubled(record, 1) == 0
    record.arrived["2"][1] += [Arrival(500, BEGAN_AT + 9)] * 10
    assert measure.doubled(record, 1) == 10
    assert measure.loss_percent(record, 1) == pytest.approx(1.0)
    assert measure.doubled(record, 0) == 0


def test_detection_is_from_the_departure_to_the_agents_word() -> None:
    record = make_record()
    record.agent = [
        event("broker_lost", 0.5, broker="5", silent_s=1.5),  # before it went
        event("broker_lost", 2.02, broker="4", silent_s=0.1),
        event("broker_lost", 2.05, broker="5", silent_s=0.1),
        event("broker_lost", 7.0, broker="5", silent_s=1.5),  # after it returned
    ]
    assert list(measure.detections(record)) == pytest.approx([0.05])


def test_a_kill_heals_from_the_detection_on() -> None:
    record = make_record(missing=range(200, 210), missing_qos1=range(200, 210))
    record.agent = [event("broker_lost", 2.045, broker="5", silent_s=0.1)]
    # Numbers 205 to 209, published after the detection, were lost; 210 is the first that came.
    assert list(measure.heals(record)) == pytest.approx([2.102 - 2.045])


@pytest.mark.parametrize("departure", [Departure.STOP, Departure.CUT])
def test_a_silent_departure_heals_from_itself_on(departure: Departure) -> None:
    record = make_record(departure=departure, missing=range(200, 380), missing_qos1=range(200, 380))
    record.agent = [event("broker_lost", 3.6, broker="5", silent_s=1.5)]
    assert list(measure.heals(record)) == pytest.approx([1.802])


def test_what_was_queued_counts_when_it_arrives() -> None:
    record = make_record(departure=Departure.CUT, missing=range(200, 380), missing_qos1=range(200, 300))
    record.arrived["2"][1] = [a for a in record.arrived["2"][1] if a.number not in range(300, 380)]
    record.arrived["2"][1] += [Arrival(number, BEGAN_AT + 3.7) for number in range(201, 300)]
    assert list(measure.heals(record)) == pytest.approx([1.7])


def test_what_never_heals_has_no_time() -> None:
    record = make_record(missing=range(200, 1000), missing_qos1=range(200, 1000))
    assert list(measure.heals(record)) == []


def test_a_ghost_reconnects_from_the_return_on() -> None:
    record = make_record(Mode.GHOST)
    record.bridges = [
        state(0.1, "1", "5", "up"),
        state(2.01, "1", "5", "waiting"),
        state(6.4, "1", "5", "connecting"),
        state(6.5, "1", "5", "up"),
        state(2.2, "1", "2", "up"),  # to another
        state(6.1, "2", "5", "up"),  # new, no ghost
    ]
    assert list(measure.ghost_reconnections(record)) == pytest.approx([0.5])
    assert list(measure.returns(record)) == pytest.approx([0.302])


def test_commands_take_from_the_first_one_to_the_event() -> None:
    record = make_record()
    record.agent = [
        event("acting_changed", 0, is_acting=True),
        event("command_sent", 1.0, action="create", broker="1", far="5", carrier="1"),
        event("command_sent", 1.5, action="create", broker="1", far="5", carrier="1"),
        event("bridge_up", 1.6, broker="1", far="5"),
        event("bridge_up", 1.7, broker="1", far="5"),
        event("command_sent", 2.0, action="delete", broker="1", far="5", carrier="1"),
        event("bridge_gone", 2.01, broker="1", far="5"),
    ]
    assert list(measure.commands(record, "create")) == pytest.approx([0.6])
    assert list(measure.commands(record, "delete")) == pytest.approx([0.01])


def test_bridges_at_a_moment() -> None:
    record = make_record(Mode.GHOST)
    record.bridges = [
        state(0.1, "1", "5", "up"),
        state(0.1, "2", "5", "up"),
        state(2.1, "1", "5", "waiting"),
        state(2.1, "1", "2", "up"),
        state(7.0, "1", "2", ""),
    ]
    assert measure.live_bridges(record, BEGAN_AT + 1) == {("1", "5"), ("2", "5")}
    assert measure.ghost_bridges(record, BEGAN_AT + 1) == set()
    # Broker 2 has said nothing of its bridge to the dead broker yet.
    assert measure.live_bridges(record, BEGAN_AT + 3) == {("1", "2")}
    assert measure.ghost_bridges(record, BEGAN_AT + 3) == {("1", "5"), ("2", "5")}
    assert measure.live_bridges(record, BEGAN_AT + 8) == {("2", "5")}
    assert measure.ghost_bridges(record, BEGAN_AT + 8) == {("1", "5")}


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    record = make_record(missing=range(5))
    record.agent = [event("bridge_up", 1, broker="1", far="5")]
    record.bridges = [state(1, "1", "5", "up")]
    record.write(tmp_path / "record.json")
    assert read_record(tmp_path / "record.json") == record
