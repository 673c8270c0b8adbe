"""Which copies of a message count, while filters that overlap are asked for and dropped."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from hedgerow.bridges import far_filters
from hedgerow.bridges.far_filters import LEFT_S, TOLD_S, FarFilter, FarFilters, Standing
from hedgerow.bridges.stamp_codec import MAX_FILTERS
from hedgerow.errors import TopicError
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import matches

NOW = 1_000.0
FILTERS = ("#", "a/#", "+/b", "a/b", "a/+", "+/+/c", "a/b/c")
TOPICS = ("a", "a/b", "x/b", "a/b/c", "x/y/c", "z")


def ignore(topic: str, payload: bytes, retain: bool) -> None: ...


def granted(filters: FarFilters, *topic_filters: str) -> list[FarFilter]:
    found = []
    for each in topic_filters:
        asked = filters.ask(each, 2)
        assert asked is not None
        filters.answered(each, 2)
        found.append(asked)
    return found


def test_of_the_copies_of_a_message_the_one_of_the_first_filter_counts() -> None:
    filters = FarFilters()
    first, second, other = granted(filters, "a/#", "+/b", "c")
    for number in range(3):  # that are alike
        assert not filters.counts("a/b", b"1", [second.identifier], NOW), number
        assert filters.counts("a/b", b"1", [first.identifier], NOW), number
    assert filters.counts("a/b", b"1", [second.identifier, first.identifier], NOW)  # one copy for all
    assert filters.counts("c", b"1", [other.identifier], NOW)


def test_without_identifiers_every_copy_counts() -> None:
    filters = FarFilters()
    granted(filters, "a/#", "+/b")
    assert [filters.counts("a/b", b"1", (), NOW) for _ in range(2)] == [True, True]


def test_without_identifiers_a_retained_value_is_told_to_each_new_filter() -> None:
    filters = FarFilters()
    for each in granted(filters, "a/#", "+/b"):
        each.is_new = True
        filters.subscribing(each, NOW)
    told = [filters.counts("a/b", b"1", (), NOW, retain=True) for _ in range(3)]
    assert told == [True, False, True], "the last one was published"
    assert filters.counts("a/c", b"1", (), NOW, retain=True)
    later = NOW + TOLD_S
    assert [filters.counts("a/b", b"1", (), later, retain=True) for _ in range(2)] == [True, True]


def test_what_waited_since_an_earlier_life_counts_once() -> None:
    before, filters = FarFilters(), FarFilters()
    wide, narrow = granted(before, "a/#", "a/b")
    (again,) = granted(filters, "a/b")
    assert again.identifier == narrow.identifier
    filters.begin(False, NOW)
    for number, copies in enumerate(([wide, narrow], [narrow, wide])):
        came_by = [[each.identifier] for each in copies]
        assert [filters.counts("a/b", b"%d" % number, each, NOW) for each in came_by] == [True, False]
    assert filters.counts("a/b", b"once", [wide.identifier], NOW)
    # A subscription that nobody knows any more stays at the far broker.
    later = NOW + LEFT_S
    assert filters.counts("a/b", b"2", [narrow.identifier], later)
    assert not filters.counts("a/b", b"2", [wide.identifier], later)


def test_a_filter_that_leaves_is_the_first_until_the_far_broker_has_answered() -> None:
    filters = FarFilters()
    first, second = granted(filters, "a/#", "+/b")
    assert filters.drop("a/#") is first
    assert not filters.counts("a/b", b"1", [second.identifier], NOW)
    assert filters.counts("a/b", b"1", [first.identifier], NOW)
    assert filters.is_wanted("a/b")
    assert not filters.is_wanted("a/c")
    assert filters.left("a/#", NOW) is None
    assert filters.counts("a/b", b"2", [second.identifier], NOW)


def test_copies_on_both_sides_of_the_answer_are_one_message() -> None:
    filters = FarFilters()
    first, second = granted(filters, "a/#", "+/b")
    filters.drop("a/#")
    assert filters.counts("a/b", b"1", [first.identifier], NOW)
    assert not filters.counts("a/b", b"2", [second.identifier], NOW)
    filters.left("a/#", NOW)
    assert not filters.counts("a/b", b"1", [second.identifier], NOW)
    assert filters.counts("a/b", b"2", [first.identifier], NOW)
    for number, copies in enumerate(([first, second], [second, first])):
        payload = b"behind it %d" % number
        assert [filters.counts("a/b", payload, [each.identifier], NOW) for each in copies] == [True, False]


def test_one_that_left_is_forgotten() -> None:
    filters = FarFilters()
    granted(filters, "a/#", "+/b")
    filters.drop("a/#")
    filters.left("a/#", NOW)
    filters.expire(NOW + LEFT_S - 0.1)
    assert len(filters.matching("a/b")) == 2
    filters.expire(NOW + LEFT_S)
    assert len(filters.matching("a/b")) == 1
    assert filters.find("a/#") is None


def test_one_that_is_wanted_again_while_it_leaves_is_subscribed_to_when_it_has_left() -> None:
    filters = FarFilters()
    first, second = granted(filters, "a/#", "+/b")
    filters.drop("a/#")
    assert filters.ask("a/#", 2) is None
    assert filters.counts("a/b", b"1", [first.identifier], NOW)
    again = filters.left("a/#", NOW)
    assert again is not None
    assert again.identifier != first.identifier
    assert filters.counts("a/b", b"2", [second.identifier], NOW), "which was there all the time"
    assert not filters.counts("a/b", b"2", [again.identifier], NOW)
    assert filters.counts("a/b", b"3", [first.identifier], NOW), "from before"
    filters.drop("a/#")
    filters.ask("a/#", 2)
    filters.drop("a/#")
    assert filters.left("a/#", NOW) is None


def test_one_that_is_refused_brings_nothing() -> None:
    filters = FarFilters()
    first = filters.ask("a/#", 2)
    assert first is not None
    (second,) = granted(filters, "+/b")
    assert filters.answered("a/#", Reason.NOT_AUTHORIZED)
    assert filters.counts("a/b", b"1", [second.identifier], NOW)
    assert not filters.is_wanted("a/c")
    wanted, unwanted = filters.begin(False, NOW)
    assert (wanted, unwanted) == ([second, first], [])
    filters.answered("a/#", 2)
    assert filters.matching("a/b") == (second, first)
    assert filters.is_wanted("a/c")


def test_a_new_connection_begins_with_all_of_them() -> None:
    filters = FarFilters()
    first, second, third = granted(filters, "a", "b", "c")
    filters.drop("b")
    filters.drop("a")
    filters.ask("a", 1)
    wanted, unwanted = filters.begin(False, NOW)
    assert [each.topic_filter for each in wanted] == ["c", "a"]
    assert (wanted[0], unwanted) == (third, [second])
    assert wanted[1].identifier != first.identifier
    assert filters.begin(True, NOW) == (wanted, [])
    assert filters.find("b") is None


def test_only_a_new_subscription_is_told_retained_values() -> None:
    filters = FarFilters()
    old = filters.ask("a/#", 2)
    assert old is not None
    filters.subscribing(old, NOW)
    assert filters.may_be_told([old.identifier], NOW)
    assert not filters.may_be_told([old.identifier], NOW + TOLD_S)
    assert filters.may_be_told((), NOW), "where nobody knows"
    filters.answered("a/#", 2)
    filters.begin(False, NOW)
    filters.subscribing(old, NOW + 10)
    assert not filters.may_be_told([old.identifier], NOW + 10)
    filters.begin(True, NOW)
    filters.subscribing(old, NOW + 10)
    assert filters.may_be_told([old.identifier], NOW + 10)


def test_what_is_watched_is_not_wanted_here() -> None:
    filters = FarFilters()
    granted(filters, "#")
    watched = filters.ask("x/#", 1, ignore)
    assert watched is not None
    assert filters.ask("x/#", 2) is None, "it stays watched"
    assert filters.watching("x/y") == [watched]
    assert not filters.is_wanted("x/y")
    assert filters.is_wanted("y")
    assert filters.drop("x/#") is None
    assert filters.claimed() == ("#",)


def test_the_others_are_told_of_everything_when_there_are_too_many() -> None:
    filters = FarFilters()
    names = [f"a/{number}" for number in range(MAX_FILTERS)]
    granted(filters, *names)
    assert filters.claimed() == tuple(names)
    granted(filters, "b")
    assert filters.claimed() == ("#",)
    filters.drop("b")
    assert filters.claimed() == tuple(names)
    granted(filters, *("l" * 1_000 + str(number) for number in range(5)))
    assert filters.claimed() == ("#",)


def test_the_number_of_filters_is_bounded() -> None:
    filters = FarFilters(max_filters=3)
    granted(filters, "a", "b", "c")
    assert filters.ask("d", 2) is None
    assert filters.find("d") is None
    with pytest.raises(TopicError):
        filters.ask("a/#/b", 2)


def test_identifiers_are_those_that_a_packet_may_have_and_differ() -> None:
    filters = FarFilters(max_identifier=63)
    made = granted(filters, *(f"a/{number}" for number in range(60)))
    identifiers = {each.identifier for each in made}
    assert len(identifiers) == 60
    assert identifiers <= set(range(far_filters.CONTROL_IDENTIFIER + 1, 64))


# A far broker as Mosquitto is, in a model


@dataclass
class Published:
    topic: str
    payload: bytes
    by: set[str]
    """The filters that our side had then, as the far broker granted them."""
    arrived: int = 0
    counted: int = 0
    was_sure: bool = True
    """One of `by` was wanted whenever a copy came."""


@dataclass
class Model:
    """The far broker, and the streams between it and the filters; QoS 1 waits for its turn."""

    random: Random
    filters: FarFilters = field(default_factory=FarFilters)
    subscriptions: dict[str, int] = field(default_factory=dict)
    up: deque[tuple[str, FarFilter]] = field(default_factory=deque)
    down: deque[Callable[[], object]] = field(default_factory=deque)
    queue: deque[Callable[[], object]] = field(default_factory=deque)
    published: list[Published] = field(default_factory=list)

    def ask(self, topic_filter: str) -> None:
        asked = self.filters.ask(topic_filter, 1)
        if asked is not None:
            self.up.append(("subscribe", asked))

    def drop(self, topic_filter: str) -> None:
        dropped = self.filters.drop(topic_filter)
        if dropped is not None:
            self.up.append(("unsubscribe", dropped))

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        by = [each for each in self.subscriptions if matches(each, topic)]
        message = Published(topic, payload, set(by))
        self.published.append(message)
        self.random.shuffle(by)
        for each in by:
            identifier = self.subscriptions[each]
            copy = lambda n=identifier: self._receive(message, n)  # noqa: E731
            (self.queue if qos else self.down).append(copy)

    def serve(self) -> None:
        """The far broker handles a packet of ours."""
        if self.up:
            kind, each = self.up.popleft()
            name = each.topic_filter
            if kind == "subscribe":
                self.subscriptions[name] = each.identifier
                self.down.append(lambda: self.filters.answered(name, 1))
            else:
                self.subscriptions.pop(name, None)
                self.down.append(lambda: self._left(name))

    def _left(self, name: str) -> None:
        again = self.filters.left(name, NOW)
        if again is not None:
            self.up.append(("subscribe", again))

    def transmit(self, count: int) -> None:
        """Some of what waits at QoS 1 is put in flight."""
        for _ in range(min(count, len(self.queue))):
            self.down.append(self.queue.popleft())

    def _receive(self, message: Published, identifier: int) -> None:
        message.arrived += 1
        message.was_sure = message.was_sure and any(
            (each := self.filters.find(name)) is not None and each.standing is Standing.ASKED
            for name in message.by
        )
        if self.filters.is_wanted(message.topic):
            message.counted += self.filters.counts(message.topic, message.payload, [identifier], NOW)

    def step(self) -> None:
        random = self.random
        kind = random.choice(("ask", "drop", "publish", "publish", "serve", "serve", "transmit", "receive"))
        if kind == "ask":
            self.ask(random.choice(FILTERS))
        elif kind == "drop":
            self.drop(random.choice(FILTERS))
        elif kind == "publish":
            self.publish(random.choice(TOPICS), b"%d" % len(self.published), random.choice((0, 1)))
        elif kind == "serve":
            self.serve()
        elif kind == "transmit":
            self.transmit(random.randint(1, 3))
        else:
            for _ in range(min(random.randint(1, 8), len(self.down))):
                self.down.popleft()()

    def finish(self) -> None:
        while self.up or self.down or self.queue:
            self.serve()
            self.transmit(3)
            while self.down:
                self.down.popleft()()


@pytest.mark.parametrize("seed", range(60))
def test_each_message_counts_once_whatever_is_asked_for_and_dropped(seed: int) -> None:
    model = Model(Random(seed))
    for _ in range(400):
        model.step()
    model.finish()
    outcomes = Counter(
        (message.was_sure and bool(message.by), message.counted) for message in model.published
    )
    assert not [each for each in model.published if each.counted > 1], "doubled"
    assert not [each for each in model.published if each.by and each.was_sure and not each.counted], "lost"
    assert outcomes[True, 1] > 10, "this seed shows nothing"


@pytest.mark.parametrize("seed", range(20))
def test_messages_that_are_alike_count_once_each(seed: int) -> None:
    random = Random(seed)
    model = Model(random)
    for topic_filter in random.sample(FILTERS, 4):
        model.ask(topic_filter)
    model.finish()
    for _ in range(100):
        model.publish(random.choice(TOPICS), b"on", random.choice((0, 1)))
        if random.random() < 0.3:
            model.transmit(2)
    model.finish()
    assert [each.counted for each in model.published] == [int(bool(each.by)) for each in model.published]
