"""At which group a topic is found: computed, or agreed on by multicast DNS.

`NamedGroups` follows the names of topics as a machine: records and `now` go in, questions and
announcements come out. A publisher first asks; if nobody has answered in time it chooses a group and
announces it. Publishers that chose at the same time see each other's announcement, and all take the
group that wins. Until that has settled, subscribers hear every group that was announced, so nothing is
lost. Who finds no publisher asks again, more and more rarely: a new one announces itself.

Anyone can announce groups, and a subscriber hears no more than a few of a topic. With a key, the group itself
is the proof: it follows from the key and the topic, and nobody else can tell it from the others. No other
counts. Whoever announces all the groups that there are has that one heard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from hedgerow.multicast.groups import CONTROL_TOPIC, GroupRange, ipv6_group, mdns_label, winning_group
from hedgerow.multicast.limits import SCOPES

# RFC 6762 §6: an answer takes up to 120 ms. The second question is for when the first was lost.
DECIDE_S = 0.3
ASK_AGAIN_S = (0.15, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)

# After this long without another word of it, a group that did not win is left.
SETTLE_S = 5.0

# A publisher that leaves takes its record with it, though others may publish to the topic. One of them
# announces it again, after the farewell has been repeated.
RESCUE_S = (0.3, 0.8)

MAX_GROUPS_PER_TOPIC = 8  # Anyone can announce groups; each that is heard takes a socket.

_FOREVER = float("inf")

Prints = Callable[[str], list[int]]


class TopicGroups(ABC):
    control_group: str

    @abstractmethod
    def groups_to_hear(self, topic: str) -> tuple[str, ...]: ...

    @abstractmethod
    def group_to_send(self, topic: str) -> str | None: ...

    @abstractmethod
    def set_hearing(self, topic: str, hearing: bool, now: float) -> None: ...

    @abstractmethod
    def set_publishing(self, topic: str, publishing: bool, now: float) -> None: ...


class ComputedGroups(TopicGroups):
    def __init__(self, scope: str) -> None:
        self._scope = SCOPES[scope]
        self.control_group = ipv6_group(CONTROL_TOPIC, self._scope)

    def groups_to_hear(self, topic: str) -> tuple[str, ...]:
        return (ipv6_group(topic, self._scope),)

    def group_to_send(self, topic: str) -> str | None:
        return ipv6_group(topic, self._scope)

    def set_hearing(self, topic: str, hearing: bool, now: float) -> None:
        pass

    def set_publishing(self, topic: str, publishing: bool, now: float) -> None:
        pass


class _Name:
    """What is known of one topic's name."""

    __slots__ = (
        "ask_at", "asked", "chosen", "decide_at", "hearing", "name",
        "proved", "publishing", "rescue_at", "seen", "settle_at", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, proved: tuple[str, ...] | None) -> None:
        self.topic = topic
        self.proved = proved
        """The group of each key, which nobody else can know; the first one seals. None: there is no key."""
        self.name = f"{mdns_label(topic)}.local."
        self.hearing = False
        self.publishing = False
        self.seen: dict[str, float] = {}
        """Group → when it was last announced."""
        self.chosen: str | None = None
        """The group that we announce, as a publisher."""
        self.asked = 0
        self.ask_at = _FOREVER
        self.decide_at = _FOREVER
        self.settle_at = _FOREVER
        self.rescue_at = _FOREVER

    @property
    def deadline(self) -> float:
        return min(self.ask_at, self.decide_at, self.settle_at, self.rescue_at)


class NamedGroups(TopicGroups):
    """`groups` are those that may be chosen. `chance` is from 0 to 1, new with every call. `prints`: a number
    for a topic and each key, which only its holders know (`Keyring.prints`)."""

    def __init__(
        self,
        groups: GroupRange,
        chance: Callable[[], float],
        decide_s: float = DECIDE_S,
        ask_again_s: tuple[float, ...] = ASK_AGAIN_S,
        prints: Prints | None = None,
    ) -> None:
        self.is_ready = False
        """Multicast DNS works."""
        self.on_chosen: Callable[[str, str], None] = lambda topic, group: None
        """Told each group that a topic of ours is sent to from now on."""
        self.control_group = groups.control_group
        self._range = groups
        self._chance = chance
        self._decide_s = decide_s
        self._ask_again_s = ask_again_s
        self._prints = prints
        self._next_at = _FOREVER  # No name has anything to do before.
        self._by_topic: dict[str, _Name] = {}
        self._by_name: dict[str, _Name] = {}
        self._questions: list[str] = []
        self._announcements: list[tuple[str, str | None]] = []
        self._changed: dict[str, None] = {}

    @property
    def deadline(self) -> float:
        return self._next_at if self.is_ready else _FOREVER

    def groups_to_hear(self, topic: str) -> tuple[str, ...]:
        entry = self._by_topic.get(topic)
        return (
            () if entry is None else tuple(sorted({*entry.seen, *([entry.chosen] if entry.chosen else [])}))
        )

    def group_to_send(self, topic: str) -> str | None:
        entry = self._by_topic.get(topic)
        return None if entry is None else entry.chosen

    # What the application does.

    def set_hearing(self, topic: str, hearing: bool, now: float) -> None:
        entry = self._find(topic, now)
        entry.hearing = hearing
        self._drop_if_unused(entry)

    def set_publishing(self, topic: str, publishing: bool, now: float) -> None:
        entry = self._find(topic, now)
        if entry.publishing is publishing:
            return
        entry.publishing = publishing
        if not publishing:
            if entry.chosen is not None:
                self._announcements.append((entry.name, None))
            entry.chosen = None
            entry.decide_at = entry.rescue_at = _FOREVER
            self._changed[topic] = None
        elif entry.seen:
            self._choose(entry, winning_group(entry.seen), now)
        else:
            entry.decide_at = now + self._decide_s
            entry.asked, entry.ask_at = 0, now
        self._plan(entry)
        self._drop_if_unused(entry)

    def ready(self, now: float) -> None:
        """Multicast DNS works from here on; again, after the interfaces changed."""
        self.is_ready = True
        for entry in self._by_topic.values():
            entry.asked, entry.ask_at = 0, now
            if entry.decide_at < _FOREVER:
                entry.decide_at = now + self._decide_s
            if entry.chosen is not None:
                self._announcements.append((entry.name, entry.chosen))
            self._plan(entry)

    def _plan(self, entry: _Name) -> None:
        """To be called when something is to be done earlier: a flood of records must not make us look at
        every topic for each."""
        self._next_at = min(self._next_at, entry.deadline)

    def _find(self, topic: str, now: float) -> _Name:
        entry = self._by_topic.get(topic)
        if entry is None:
            entry = self._by_topic[topic] = _Name(topic, self._proved(topic))
            self._by_name[entry.name] = entry
            entry.ask_at = now
            self._plan(entry)
        return entry

    def _proved(self, topic: str) -> tuple[str, ...] | None:
        if self._prints is None:
            return None
        return tuple(dict.fromkeys(map(self._range.at, self._prints(topic))))

    def set_prints(self, prints: Prints | None, now: float) -> None:
        """The keys are others now."""
        self._prints = prints
        for entry in self._by_topic.values():
            entry.proved = self._proved(entry.topic)
            for group in [each for each in entry.seen if not self._may_be(entry, each)]:
                del entry.seen[group]
                self._changed[entry.topic] = None
            if entry.chosen is not None and not self._may_be(entry, entry.chosen):
                entry.decide_at = now
            self._plan(entry)

    def _may_be(self, entry: _Name, address: str) -> bool:
        return address in entry.proved if entry.proved is not None else self._range.has(address)

    def _drop_if_unused(self, entry: _Name) -> None:
        if not (entry.hearing or entry.publishing):
            del self._by_topic[entry.topic]
            del self._by_name[entry.name]

    def _choose(self, entry: _Name, group: str, now: float) -> None:
        entry.chosen = group
        entry.decide_at = entry.rescue_at = _FOREVER
        self._announcements.append((entry.name, group))
        self._changed[entry.topic] = None
        self.on_chosen(entry.topic, group)
        self._settle(entry, now)

    # What the network says.

    def follows(self, name: str) -> bool:
        """Whether a record of this name is of interest."""
        return name.lower() in self._by_name

    def knows(self, name: str) -> bool:
        """Whether a group of this name has been announced, since it is of interest."""
        entry = self._by_name.get(name.lower())
        return entry is not None and bool(entry.seen)

    def receive_address(self, name: str, address: str, is_farewell: bool, now: float) -> None:
        """A record of the name: someone announces this address, or takes it back."""
        entry = self._by_name.get(name.lower())
        if entry is not None and self._may_be(entry, address):
            self._receive(entry, address, is_farewell, now)
            self._plan(entry)

    def _receive(self, entry: _Name, address: str, is_farewell: bool, now: float) -> None:
        if is_farewell:
            if entry.chosen == address:
                first, last = RESCUE_S
                entry.rescue_at = now + first + self._chance() * (last - first)
            return
        is_new = address not in entry.seen
        if is_new and entry.proved is None and len(entry.seen) >= MAX_GROUPS_PER_TOPIC:
            return
        entry.seen[address] = now
        if is_new:
            self._changed[entry.topic] = None
            self._settle(entry, now)
        if address == entry.chosen:
            entry.rescue_at = _FOREVER  # Another publisher has said it.
        elif entry.chosen is not None:
            winner = winning_group((entry.chosen, address))
            if winner != entry.chosen:
                self._choose(entry, winner, now)
            elif is_new:
                self._announcements.append((entry.name, entry.chosen))  # for the one who has to give way
        elif entry.publishing:
            self._choose(entry, winning_group(entry.seen), now)

    def _settle(self, entry: _Name, now: float) -> None:
        if entry.proved is None and len({*entry.seen, entry.chosen} - {None}) > 1:
            entry.settle_at = now + SETTLE_S

    # What time brings.

    def handle_timer(self, now: float) -> None:
        if not self.is_ready or now < self._next_at:
            return
        self._next_at = _FOREVER
        taken: set[str] | None = None
        for entry in list(self._by_topic.values()):
            if entry.ask_at <= now:
                self._questions.append(entry.name)
                entry.ask_at = now + self._ask_again_s[min(entry.asked, len(self._ask_again_s) - 1)]
                entry.asked += 1
            if entry.decide_at <= now:
                if taken is None:
                    taken = {group for each in self._by_topic.values() for group in each.seen}
                group = entry.proved[0] if entry.proved else self._range.choose(self._chance(), taken)
                taken.add(group)
                self._choose(entry, group, now)
            if entry.rescue_at <= now:
                entry.rescue_at = _FOREVER
                assert entry.chosen is not None
                self._announcements.append((entry.name, entry.chosen))
            if entry.settle_at <= now:
                self._forget_losers(entry, now)
            self._plan(entry)

    def _forget_losers(self, entry: _Name, now: float) -> None:
        current = [group for group, seen_at in entry.seen.items() if seen_at > now - SETTLE_S]
        if entry.chosen is not None:
            current.append(entry.chosen)
        elif not current:
            current.append(max(entry.seen, key=lambda group: entry.seen[group]))
        for group in [each for each in entry.seen if each not in current]:
            del entry.seen[group]
            self._changed[entry.topic] = None
        entry.settle_at = now + SETTLE_S if len(set(current)) > 1 else _FOREVER

    # What comes out.

    def take_questions(self) -> list[str]:
        """Names whose addresses are to be asked for."""
        taken, self._questions = self._questions, []
        return taken

    def take_announcements(self) -> list[tuple[str, str | None]]:
        """(name, the group to announce for it; None: take it back)."""
        taken, self._announcements = self._announcements, []
        return taken

    def take_changed(self) -> list[str]:
        """Topics whose groups are others now."""
        taken, self._changed = self._changed, {}
        return list(taken)
