"""What the clients of a stock broker want: which filters have subscribers there, and which no longer.

A sidecar is one more client of its broker. It subscribes to `topics`, on every connection and in this
order, at QoS 1 (so that nothing overtakes anything), with retained messages sent and with retain as
published where there is MQTT 5, and passes on what comes. If its session outlives a connection, the lines
of the gap come too. A filter is wanted if

- a client is subscribed to it, by the broker's log (`subscription_log.py`),
- a client announces it by NEW_REGULAR_TOPIC (`announcements.py`),
- it is assumed, which covers narrower ones for good,
- it is remembered from an earlier life of this sidecar, and the broker counts subscriptions that we do not
  know: no log tells of those that were made before,
- or it is one of `until_known` (everything), and there may be subscriptions that we do not know: clients were
  there before us, as is usual, or the broker does not publish its log and nobody announces filters.

A filter that nobody wants any more stays for `linger_s`, so that a client that connects anew loses nothing
and one that comes and goes costs nothing. While the broker is away all stays. If it was restarted meanwhile
(its uptime tells), clients come back to it, some before we do, and of those we hear no line. So clients not
heard again are forgotten only after `grace_s`, and only if the broker counts no more subscriptions than
those that we have heard since. To want too much costs traffic, to want too little loses messages.

The same count tells of subscriptions that we do not know (`counts.py`). They are none once the broker counts
no more than those that we have heard of; then what is wanted `until_known` leaves, behind the filters that
take its place. It comes again if there are others later. A life that remembers the filters of an earlier one,
which knew all, takes the first count of what it does not know for theirs: what was subscribed in between is
in the lines that waited in our session.

A subscription that has ended unheard would stand for one that we do not know. So nothing leaves before the
log has told, on this connection, of somebody who unsubscribed and of somebody who left. Whoever has this
machine sees to it that it can do so at once (`take_probe`).

What a client can do with a forged name or many filters is bounded: wrong filters are added, within the
bounds of both sources and told at `NEW_FILTERS_PER_S`; nothing of another client is taken away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from hedgerow.broker.elsewhere import ALWAYS
from hedgerow.errors import TopicError
from hedgerow.federation.interests import counts, log_lines
from hedgerow.federation.interests.counts import COUNT_TOPIC, UPTIME_TOPIC, BrokerCounts, Comparison
from hedgerow.federation.interests.events import (
    EverythingUntilKnown,
    InterestEvent,
    InterestsForgotten,
    LeavingNotLogged,
    LogSilent,
    SubscriptionRefused,
    SubscriptionsKnown,
    SystemTopicsSilent,
    UnknownSubscriptions,
)
from hedgerow.federation.interests.regular import regular_filter
from hedgerow.federation.interests.subscription_log import SubscriptionLog
from hedgerow.federation.mesh import announcements
from hedgerow.federation.mesh.announcements import Announcements
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.rates import Allowance
from hedgerow.topics import covers

TOPICS = (*log_lines.TOPICS, *counts.TOPICS, announcements.TOPIC_FILTER)
EVERYTHING = ("#",)

LINGER_S = 2.0
GRACE_S = 60.0  # Common clients wait up to that long before they connect again.
LIVE_WITHIN_S = 10.0  # since the connection: our own line, or else the log is not published
RESTART_SLACK_S = 2.5  # The uptime is in whole seconds, and comes once in a while.
UNKNOWN_S = 15.0  # before it is told: federators that dial us are counted before they say who they are
TELL_UNKNOWN_AGAIN_S = 600.0
SAY_S = 1.0  # for the first count to come
PROBED_WITHIN_S = 10.0  # since a client of ours left: the lines that tell of it
PROBE_AGAIN_S = 60.0  # where they did not come, or there was no connection

# A client can subscribe and unsubscribe thousands of filters a second, and every node of the federation would
# hear of each. Those that have to wait are told later.
NEW_FILTERS_PER_S = 1_000.0
NEW_FILTERS_BURST_S = 20.0
TELL_AGAIN_S = 0.1

MAX_NUMBER_BYTES = 32
NEVER = float("inf")


class Interests:
    topics = TOPICS

    def __init__(
        self,
        now: float,
        assume: Sequence[str] = (),
        *,
        until_known: Sequence[str] = (),
        client_id: str,
        own_filters: Collection[str] = (),
        broker: str,
        user: str | None = None,
        remembered: Iterable[str] = (),
        linger_s: float = LINGER_S,
        grace_s: float = GRACE_S,
        live_within_s: float = LIVE_WITHIN_S,
        unknown_s: float = UNKNOWN_S,
        probed_within_s: float = PROBED_WITHIN_S,
        new_filters: Allowance | None = None,
    ) -> None:
        """`until_known` are wanted while there may be subscriptions that we do not know. `client_id` is
        subscribed to `topics`, and before that to `own_filters`. `broker` and `user` are for people."""
        # What federators subscribe to is nobody's interest: those of one broker would want for ever what the
        # others want.
        self.log = SubscriptionLog(client_id, NEIGHBOUR_PREFIX, own_filters=own_filters)
        self.announcements = Announcements()
        self.unknown = 0
        """Subscriptions that the broker counts and we do not know."""
        self._broker, self._user = broker, user
        self._linger_s, self._grace_s, self._live_within_s = linger_s, grace_s, live_within_s
        self._now = now
        self._assumed = _widest(_assumable(topic_filter) for topic_filter in assume)
        self._remembered = set(remembered)
        self._told = dict.fromkeys(self._remembered, ALWAYS)  # → since when it is wanted
        self._new: dict[str, float] = dict.fromkeys(self._assumed, ALWAYS)
        self._leave_at: dict[str, float] = {}  # in the order of time, since all linger equally long
        self._gone: dict[str, None] = {}
        self._allowance = new_filters or Allowance(NEW_FILTERS_PER_S, NEW_FILTERS_BURST_S)
        self._tell_again_at = NEVER
        self._events: list[InterestEvent] = []
        self._complained: set[str] = set()
        self._unknown_s = unknown_s
        self._probed_within_s = probed_within_s
        self._has_probed = False  # on this connection
        self._probe_at = self._probed_by = NEVER
        self._unknown_told = 0
        self._may_tell_unknown_at = now
        self._tell_unknown_at = self._widen_at = NEVER
        self._until_known = until_known
        self._is_everything = False
        self._say_everything_at = NEVER
        self._is_silent = False  # the log, as far as we have waited
        # Subscriptions that are not known, and that an earlier life knew: as many as the first count shows.
        self._explained: int | None = 0
        self._is_first = True
        self._counts = BrokerCounts(self.log)
        self._live_by = NEVER
        self._doubt_until = NEVER
        self._is_doubt_due = False
        self._has_kept_sessions = False
        self._hears_system = False
        # Subscriptions counted beyond those heard of on this connection, and beyond those of sessions, too.
        self._beyond_heard = self._beyond_sessions = NEVER
        self._began_at = NEVER  # the broker, as far as its uptime tells
        self._began_before = NEVER  # when it was the broker whose clients we know

    @property
    def deadline(self) -> float:
        leaves_at = next(iter(self._leave_at.values()), NEVER)
        own = min(leaves_at, self._tell_again_at, self._live_by, self._doubt_until, self._tell_unknown_at)
        own = min(own, self._say_everything_at, self._widen_at, self._counts.deadline)
        own = min(own, self._probe_at, self._probed_by)
        return min(own, self.log.deadline, self.announcements.deadline)

    @property
    def filters(self) -> set[str]:
        """Wanted, as told by `take_changes`."""
        return set(self._told)

    def since(self, topic_filter: str) -> float:
        """When the first of its clients subscribed; `ALWAYS` where that was before we could hear of it."""
        return self._told.get(topic_filter, ALWAYS)

    def connected(self, now: float, is_new_session: bool) -> None:
        """Before we subscribe. `is_new_session`: the broker has kept nothing of an earlier connection."""
        self._now = now
        self._has_kept_sessions = not is_new_session
        self._began_before = min(self._began_before, self._began_at)
        self._began_at = NEVER
        self._hears_system = False
        self._is_silent = self._has_probed = False
        self._counts.connected()
        self._beyond_heard = self._beyond_sessions = NEVER
        self._live_by = now + self._live_within_s
        self._doubt_until = now + self._grace_s
        self._is_doubt_due = False
        self.log.connected(is_new_session=is_new_session)
        self.announcements.connected()
        # An earlier life that wanted everything did not know all.
        remembers_all = bool(self._remembered) and not self._remembered & set(self._until_known)
        if is_new_session or (self._is_first and not remembers_all):
            self._explained = 0
            self._want_everything()
        elif self._is_first:
            self._explained = None
        self._is_first = False

    def disconnected(self, now: float) -> None:
        self._now = now
        self._live_by = self._doubt_until = self._tell_unknown_at = self._say_everything_at = NEVER
        self._widen_at = self._probe_at = self._probed_by = NEVER
        self._counts.disconnected()
        self._is_doubt_due = False
        self.announcements.disconnected()

    def subscribed(self, topic_filter: str, is_granted: bool, reason: str) -> None:
        """What SUBACK says to one of `topics`."""
        if is_granted:
            self._complained.discard(topic_filter)
            if topic_filter == announcements.TOPIC_FILTER:
                self.announcements.subscribed(self._now)
            return
        if topic_filter in log_lines.TOPICS:
            self._live_by = NEVER  # It is said already why nothing will come.
            self._is_silent = True
        self._complain(topic_filter, SubscriptionRefused(self._broker, self._user, topic_filter, reason))

    def receive(self, topic: str, payload: bytes, retain: bool, now: float) -> None:
        """Any publication from the broker; those on other topics mean nothing here."""
        self._now = now
        since = now
        if topic in log_lines.TOPICS:
            if not self.log.is_live:
                since = ALWAYS  # a line of the gap
            self.log.receive(topic, payload, now)
            self._look_at_log()
        elif topic in counts.TOPICS:
            self._receive_number(topic, payload)
        elif topic == announcements.NEW_REGULAR_TOPIC or topic.startswith(
            announcements.NEW_REGULAR_TOPIC + "/"
        ):
            self.announcements.receive(topic, payload, retain, now)
            if retain:
                since = ALWAYS
        else:
            return
        self._update(since)

    def handle_timer(self, now: float) -> None:
        self._now = now
        self.log.handle_timer(now)
        self.announcements.handle_timer(now)
        if self._live_by <= now:
            self._live_by = NEVER
            self._is_silent = True
            self._complain_of_silence()
        if self._say_everything_at <= now:
            self._say_everything(None)
        self._handle_comparison(self._counts.handle_timer(now))
        if self._widen_at <= now:
            self._widen_at = NEVER
            self._look_again()
            if self.unknown:
                self._want_everything()
        if self._tell_unknown_at <= now:
            self._tell_unknown()
        if self._probed_by <= now:
            self._probed_by = NEVER
            self._probe_at = now + PROBE_AGAIN_S
            self._complain("leaving", LeavingNotLogged(self._broker, self.log.unheard, self._is_everything))
        if self._doubt_until <= now:
            self._doubt_until = NEVER
            self._is_doubt_due = True
            self._resolve_doubt()
        if self._tell_again_at <= now:
            self._tell_again_at = NEVER
        self._update(now)
        while next(iter(self._leave_at.values()), NEVER) <= now:
            topic_filter = next(iter(self._leave_at))
            del self._leave_at[topic_filter]
            if self._new and topic_filter in self._until_known:  # What takes its place is not told yet.
                self._leave_at[topic_filter] = now + self._linger_s
                continue
            del self._told[topic_filter]
            self._gone[topic_filter] = None

    def take_changes(self) -> list[tuple[str, bool]]:
        """(filter, is it wanted now), for each that changed since this was last called."""
        changes = [(topic_filter, False) for topic_filter in self._gone]
        self._gone.clear()
        while self._new:
            if not self._allowance.take(self._now):
                self._tell_again_at = self._now + TELL_AGAIN_S
                break
            topic_filter = next(iter(self._new))
            self._told[topic_filter] = self._new.pop(topic_filter)
            changes.append((topic_filter, True))
        return changes

    def take_probe(self) -> bool:
        """Is a client of ours to connect, unsubscribe from something and leave now? Then `probed`."""
        if self._probe_at > self._now:
            return False
        self._probe_at = NEVER
        return True

    def probed(self, has_left: bool, now: float) -> None:
        """It did, or there was no connection."""
        self._now = now
        if not self.log.is_live or not self.log.unheard:
            return
        if has_left:
            self._probed_by = now + self._probed_within_s
        else:
            self._probe_at = now + PROBE_AGAIN_S

    def take_events(self) -> list[InterestEvent]:
        events, self._events = self._events, []
        return events

    def _update(self, since: float) -> None:
        """After any input: what came, and what is to leave."""
        changed = [topic_filter for topic_filter, _ in self.log.take_changes()]
        for topic_filter in changed + self.announcements.take_changed():
            self._change(topic_filter, since)
        if self._is_everything and self._is_silent and self.announcements:
            self._want_what_is_known()  # Somebody sees to it that what is wanted is announced.

    def _change(self, topic_filter: str, since: float) -> None:
        if any(covers(wide, topic_filter) for wide in self._assumed):
            return
        if self._is_wanted(topic_filter):
            self._leave_at.pop(topic_filter, None)
            if topic_filter in self._gone:
                del self._gone[topic_filter]
                self._told[topic_filter] = since
            elif topic_filter not in self._told:
                self._new.setdefault(topic_filter, since)
        elif topic_filter in self._told:
            self._leave_at.setdefault(topic_filter, self._now + self._linger_s)
        else:
            self._new.pop(topic_filter, None)

    def _is_wanted(self, topic_filter: str) -> bool:
        if self._is_everything and topic_filter in self._until_known:
            return True
        return any(topic_filter in source for source in (self.log, self.announcements, self._remembered))

    def _want_everything(self) -> None:
        if self._is_everything or not self._until_known:
            return
        self._is_everything = True
        self._say_everything_at = self._now + SAY_S
        for topic_filter in self._until_known:
            self._change(topic_filter, ALWAYS)

    def _want_what_is_known(self) -> None:
        if not self._is_everything:
            return
        self._is_everything = False
        self._say_everything_at = NEVER
        for topic_filter in self._until_known:
            self._change(topic_filter, self._now)
        known = len(self._told.keys() - self._leave_at.keys()) + len(self._new)
        self._events.append(SubscriptionsKnown(self._broker, known))

    def _say_everything(self, count: int | None) -> None:
        self._say_everything_at = NEVER
        self._events.append(EverythingUntilKnown(self._broker, count))

    def _forget_remembered(self) -> None:
        remembered, self._remembered = self._remembered, set()
        for topic_filter in remembered & self._told.keys():
            if topic_filter not in self._assumed and not self._is_wanted(topic_filter):
                self._leave_at.setdefault(topic_filter, self._now + self._linger_s)

    def _look_at_log(self) -> None:
        self._hears_system = True
        if not self.log.is_live:
            return
        if not self._has_probed and not self._wants_all:
            self._has_probed, self._probe_at = True, self._now
        self._live_by = NEVER
        self._complained.discard("log")
        if not self.log.unheard:
            self._probe_at = self._probed_by = NEVER
            self._complained.discard("leaving")

    def _receive_number(self, topic: str, payload: bytes) -> None:
        self._hears_system = True
        number = _leading_number(payload)
        if number is None:
            return
        if topic == UPTIME_TOPIC:
            self._began_at = min(self._began_at, self._now - number)
        elif topic == COUNT_TOPIC and self._say_everything_at != NEVER:
            self._say_everything(None if self._has_kept_sessions else number)
        if self.log.is_live:
            self._handle_comparison(self._counts.receive(topic, number, self._now))
        self._resolve_doubt()

    def _handle_comparison(self, found: Comparison | None) -> None:
        if found is None:
            return
        if self._explained is None:
            self._explained = 0 if self.log.has_missed else found.least_unknown
        self._explained = min(self._explained, found.least_unknown)
        self.unknown = found.least_unknown - self._explained
        # One that has left unheard would stand for one that we do not know.
        is_sure = not self.log.unheard
        if is_sure and not found.least_unknown:
            self._forget_remembered()
        if is_sure and not found.most_unknown:
            self._want_what_is_known()
        if not self.unknown:
            self._tell_unknown_at = self._widen_at = NEVER
        elif self._widen_at == NEVER:
            self._widen_at = self._now + self._unknown_s
        if self.unknown > self._unknown_told and self._tell_unknown_at == NEVER:
            self._tell_unknown_at = max(self._now + self._unknown_s, self._may_tell_unknown_at)
        if self._doubt_until != NEVER or self._is_doubt_due:
            self._beyond_heard, self._beyond_sessions = found.beyond_heard, found.beyond_sessions
            self._resolve_doubt()

    def _tell_unknown(self) -> None:
        """If they are still unknown: what was logged since the count only makes them fewer."""
        self._tell_unknown_at = NEVER
        self._look_again()
        if self.unknown > self._unknown_told and not self._wants_all:
            self._unknown_told = self.unknown
            self._may_tell_unknown_at = self._now + TELL_UNKNOWN_AGAIN_S
            self._say_everything_at = NEVER  # This says it, too.
            self._events.append(UnknownSubscriptions(self._broker, self.unknown, self._is_everything))

    def _look_again(self) -> None:
        self.unknown = max(0, min(self.unknown, self._counts.still_unknown() - (self._explained or 0)))

    def _resolve_doubt(self) -> None:
        """Once clients had their time: if the broker was restarted, who has not come back?

        Whoever the last count leaves no room for. What was subscribed since then, we have heard.
        """
        if not self._is_doubt_due or self._began_at == NEVER:
            return
        if self._began_at <= self._began_before + RESTART_SLACK_S:
            pass
        elif self._beyond_heard <= 0:
            self._forget(self.log.in_doubt(with_sessions=True))
        elif self._has_kept_sessions and self._beyond_sessions <= 0:
            self._forget(self.log.in_doubt(with_sessions=False))
        else:
            return
        self._is_doubt_due = False
        self._began_before = self._began_at

    def _forget(self, clients: list[str]) -> None:
        if clients:
            self.log.forget(clients)
            self._events.append(InterestsForgotten(self._broker, len(clients)))

    def _complain_of_silence(self) -> None:
        if self._hears_system:
            self._complain("log", LogSilent(self._broker, self._is_everything))
        else:
            self._complain("log", SystemTopicsSilent(self._broker, self._user, self._is_everything))

    def _complain(self, about: str, event: InterestEvent) -> None:
        """Once, until it is remedied: brokers and connections come and go."""
        if about not in self._complained and not self._wants_all:
            self._complained.add(about)
            self._events.append(event)

    @property
    def _wants_all(self) -> bool:
        return "#" in self._assumed


def _assumable(topic_filter: str) -> str:
    regular = regular_filter(topic_filter)
    if regular is None:
        raise TopicError(f"{topic_filter!r} is of topics that each broker keeps for itself")
    return regular


def _widest(filters: Iterable[str]) -> list[str]:
    every = dict.fromkeys(filters)
    return [one for one in every if not any(wide != one and covers(wide, one) for wide in every)]


def _leading_number(payload: bytes) -> int | None:
    """Of "42" and "42 seconds"; anyone may have sent it."""
    words = payload[:MAX_NUMBER_BYTES].split()
    return int(words[0]) if words and words[0].isdigit() else None
