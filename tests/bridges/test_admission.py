"""Admission: of several carriers at a foreign broker, one brings each message, whoever leads."""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.bridges.admission import ADMITTED_TOPIC, ASK_TOPIC, PATIENCE_S, PREFERENCE_S, Admission
from hedgerow.bridges.stamp_codec import decode_ids, encode_ids
from hedgerow.message import MessageId

NOW = 100.0


def some_id(sequence: int, origin: str = "o") -> MessageId:
    return MessageId(origin, 1, sequence)


def carriers(*names: str, leader: str | None) -> list[Admission]:
    made = [Admission(name) for name in names]
    for each in made:
        each.set_leader(leader, False, NOW)
    return made


def talk(members: Sequence[Admission], now: float = NOW) -> None:
    """Everyone hears what everyone says, itself too, until nobody has more to say."""
    while said := [message for each in members for message in each.take_publications()]:
        for message in said:
            for each in members:
                assert each.receive(message.topic, message.payload, now)


def test_alone_it_enters_once_and_nothing_is_said() -> None:
    one = Admission("one")
    one.set_leader("one", True, NOW)
    assert one.enter(some_id(1), NOW) is True
    one.note_heard(some_id(2))
    assert one.enter(some_id(2), NOW) is False
    assert one.take_publications() == []


def test_alone_a_run_enters_as_each_of_it_would() -> None:
    one, two = Admission("one"), Admission("two")
    one.set_leader("one", True, NOW)
    ids = [some_id(number) for number in range(1, 6)]
    assert one.enter_run(ids, NOW)
    assert one.enter(ids[0], NOW) is True  # again, after a lost link
    one.set_leader("one", False, NOW)
    two.set_leader("one", False, NOW)
    assert [two.enter(each, NOW) for each in ids] == [None] * 5
    talk([one, two])
    assert two.take_answers() == [(each, False) for each in ids]


def test_a_run_of_which_something_has_entered_is_asked_for_one_by_one() -> None:
    one = Admission("one")
    one.set_leader("one", True, NOW)
    one.note_heard(some_id(3))
    ids = [some_id(number) for number in range(1, 6)]
    assert not one.enter_run(ids, NOW)
    assert [one.enter(each, NOW) for each in ids] == [True, True, False, True, True]


def test_the_others_wait_for_who_brought_a_run() -> None:
    one, two = Admission("one"), Admission("two")
    one.set_leader("one", True, NOW)
    assert one.enter_run([some_id(1), some_id(2)], NOW)
    for each in (one, two):
        each.set_leader("one", False, NOW)
    assert two.enter(some_id(3), NOW) is None
    talk([one, two])
    assert two.take_answers() == []
    one.handle_timer(NOW + PREFERENCE_S)
    talk([one, two], NOW + PREFERENCE_S)
    assert two.take_answers() == [(some_id(3), True)]


def test_what_is_remembered_of_runs_is_bounded() -> None:
    one = Admission("one", max_admitted=10)
    one.set_leader("one", True, NOW)
    for start in range(0, 100, 20):
        assert one.enter_run([some_id(start + number) for number in range(20)], NOW)
    assert sum(one.was_admitted(some_id(number)) for number in range(100)) == 10


def test_of_two_that_have_a_message_one_brings_it() -> None:
    one, two, three = carriers("one", "two", "three", leader="one")
    assert two.enter(some_id(1), NOW) is None
    assert three.enter(some_id(1), NOW) is None
    talk([one, two, three])
    answers = two.take_answers() + three.take_answers()
    assert sorted(answers) == [(some_id(1), False), (some_id(1), True)]
    assert one.enter(some_id(1), NOW) is False


def test_what_the_leader_brings_the_others_let_go_of() -> None:
    one, two = carriers("one", "two", leader="one")
    assert two.enter(some_id(1), NOW) is None
    assert one.enter(some_id(1), NOW) is True
    talk([one, two])
    assert two.take_answers() == [(some_id(1), False)]


def test_who_was_admitted_may_send_again() -> None:
    one, two = carriers("one", "two", leader="one")
    two.enter(some_id(1), NOW)
    talk([one, two])
    two.take_answers()
    two.disconnected()
    assert two.enter(some_id(1), NOW) is True


def test_the_next_leader_knows_what_was_admitted() -> None:
    one, two, three = carriers("one", "two", "three", leader="one")
    assert one.enter(some_id(1), NOW) is True
    talk([one, two, three])
    for each in (two, three):
        each.set_leader("two", False, NOW)
    assert three.enter(some_id(1), NOW) is None
    talk([two, three])
    assert three.take_answers() == [(some_id(1), False)]


def test_an_answer_that_does_not_come_is_asked_for_again() -> None:
    (two,) = carriers("two", leader="one")
    assert two.enter(some_id(1), NOW) is None
    assert [message.topic for message in two.take_publications()] == [ASK_TOPIC + "two"]
    assert two.deadline == NOW + PATIENCE_S
    two.handle_timer(NOW + PATIENCE_S)
    assert [message.topic for message in two.take_publications()] == [ASK_TOPIC + "two"]


def test_who_becomes_the_leader_answers_itself() -> None:
    (two,) = carriers("two", leader="one")
    assert two.enter(some_id(1), NOW) is None
    two.set_leader("two", False, NOW)
    assert two.take_answers() == [(some_id(1), True)]


def test_who_brought_the_last_one_of_an_origin_is_waited_for() -> None:
    one, two, three = carriers("one", "two", "three", leader="one")
    two.enter(some_id(1), NOW)
    talk([one, two, three])
    three.enter(some_id(2), NOW)
    talk([one, two, three])
    assert three.take_answers() == []
    two.enter(some_id(2), NOW)
    talk([one, two, three])
    assert two.take_answers() == [(some_id(1), True), (some_id(2), True)]
    assert three.take_answers() == [(some_id(2), False)]


def test_who_is_not_preferred_is_admitted_a_moment_later() -> None:
    one, two, three = carriers("one", "two", "three", leader="one")
    two.enter(some_id(1), NOW)
    talk([one, two, three])
    three.enter(some_id(2), NOW)
    talk([one, two, three])
    one.handle_timer(NOW + PREFERENCE_S)
    talk([one, two, three])
    assert three.take_answers() == [(some_id(2), True)]


def test_nothing_is_asked_before_there_is_a_leader() -> None:
    (one,) = carriers("one", leader=None)
    assert one.enter(some_id(1), NOW) is None
    assert one.take_publications() == []
    one.set_leader("two", False, NOW)
    assert [message.topic for message in one.take_publications()] == [ASK_TOPIC + "one"]


def test_an_id_that_nobody_could_answer_for_is_not_asked_for() -> None:
    (one,) = carriers("one", leader="two")
    assert one.enter(some_id(1, "o" * 256), NOW) is True


def test_what_cannot_be_read_is_counted_and_changes_nothing() -> None:
    one, two = carriers("one", "two", leader="one")
    assert one.receive(ADMITTED_TOPIC + "x", b"\x02", NOW)
    assert one.receive(ASK_TOPIC + "x", b"", NOW)
    assert not one.receive("hedgerow/bridge/stamps", b"", NOW)
    assert one.malformed == 2
    assert one.enter(some_id(1), NOW) is True
    talk([one, two])


def test_memory_is_bounded() -> None:
    one, two = (Admission(name, max_admitted=10, max_preferred=10, max_waiting=10) for name in ("one", "two"))
    for each in (one, two):
        each.set_leader("one", False, NOW)
    entered = []
    for number in range(50):
        (payload,) = encode_ids([some_id(1, f"origin{number}")])
        one.receive(ASK_TOPIC + "two", payload, NOW)
        entered.append(two.enter(some_id(number), NOW))
    assert entered == [None] * 10 + [True] * 40
    assert sum(one.was_admitted(some_id(1, f"origin{number}")) for number in range(50)) == 10
    one.take_publications()
    for number in reversed(range(50)):  # Another waits where it is remembered who brought the last one.
        (payload,) = encode_ids([some_id(2, f"origin{number}")])
        one.receive(ASK_TOPIC + "three", payload, NOW)
    assert sum(one.was_admitted(some_id(2, f"origin{number}")) for number in range(40, 50)) == 0
    answered = [message for message in one.take_publications() if message.topic == ADMITTED_TOPIC + "three"]
    assert sum(len(decode_ids(message.payload)) for message in answered) == 40


def test_a_carrier_with_an_endless_name_is_not_remembered() -> None:
    """64 KiB of it for each id would be memory for the taking."""
    (one,) = carriers("one", leader="two")
    (payload,) = encode_ids([some_id(1)])
    assert one.receive(ADMITTED_TOPIC + "x" * 60_000, payload, NOW)
    assert not one.was_admitted(some_id(1))
