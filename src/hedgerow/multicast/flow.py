"""How far a sender may run ahead of those who receive it.

Receivers acknowledge what they have taken, stream by stream (`acknowledging.py`). To each of them a bounded
number of bytes may be under way that it has not acknowledged, its *window*; whoever publishes at QoS 1 or 2
waits while one of them is full. What somebody still has to acknowledge stays in the history.

Nobody waits without end: a receiver that leaves a frame unacknowledged for longer than the sender's patience,
while others wait for it, or that is silent for so long that it counts as gone, is *left behind*. It is not
waited for until it has caught up. What has left the history by then it is told to have missed, and how many
messages that are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from hedgerow.multicast.frame import CEASED, Acknowledgement
from hedgerow.multicast.limits import (
    ASK_AT_MOST_S,
    ASK_FIRST_S,
    FIRST_ACKNOWLEDGEMENT_S,
    FIRST_WINDOW_BYTES,
    GONE_AFTER_S,
    MAX_PROGRESSES,
    MAX_RECEIVERS,
    MIN_WINDOW_BYTES,
    MulticastLimits,
)
from hedgerow.multicast.outgoing import FrameHistory, OutgoingTopic, SentFrame, StreamProgress, StreamReceiver
from hedgerow.multicast.stats import MulticastStats
from hedgerow.multicast.timers import Timers

_LATE_S = 1.0  # A check that comes later than this: we did not run, and have not heard who answered.
_QUIET_S = 1.0  # After such a pause the first acknowledgement is waited for again.
_SILENT_S = 5.0  # Whoever says nothing for so long does not hold up a sender that wants to leave.
_FORGET_S = 600.0
MAX_EVENTS = 16


class LeftBehind(NamedTuple):
    """A receiver that is not waited for any longer."""

    receiver: bytes
    why: str


class Flow:
    def __init__(
        self,
        limits: MulticastLimits,
        timers: Timers,
        stats: MulticastStats,
        history: FrameHistory,
        by_hash: dict[bytes, OutgoingTopic],
        ask: Callable[[], None],
    ) -> None:
        """`ask`: sends an ASK."""
        self.receivers: dict[bytes, StreamReceiver] = {}
        self.events: list[LeftBehind] = []
        self.has_opened = False
        """Somebody who was waited for is no longer: those who wait may look again."""
        self.heard_at: Callable[[bytes], float] = lambda member: float("-inf")
        self._window_bytes = limits.window_bytes
        self._patience_s = limits.patience_s
        self._timers = timers
        self._stats = stats
        self._history = history
        self._by_hash = by_hash
        self._ask = ask
        self._full: dict[StreamReceiver, None] = {}
        self._is_finishing = False
        self._check_at: float | None = None
        self._ask_s = ASK_FIRST_S
        self._has_heard = False  # an acknowledgement, since the last check
        self._progress_count = 0
        # Of topics that nobody acknowledges yet.
        self._unclaimed: dict[OutgoingTopic, int] = {}
        self._unclaimed_bytes = 0
        self._unclaimed_since = float("-inf")
        self._sent_at = float("-inf")
        self._begun_at = float("-inf")

    # Whether to wait

    @property
    def ready_at(self) -> float:
        """When to look again. Acknowledgements may come before (`has_opened`)."""
        if self._full or (self._patience_s and self._history.is_held):
            return self._check_at or 0.0
        if self._unclaimed_bytes > FIRST_WINDOW_BYTES:
            return self._unclaimed_since + FIRST_ACKNOWLEDGEMENT_S
        return 0.0

    @property
    def unacknowledged_bytes(self) -> int:
        """Of the receiver that is furthest behind, among those who are waited for."""
        return max((each.outstanding for each in self._waited_for()), default=0)

    def _waited_for(self) -> Iterable[StreamReceiver]:
        return (each for each in self.receivers.values() if not each.is_left_behind)

    def is_awaited(self, now: float) -> bool:
        """Is there still somebody to wait for before leaving?"""
        return any(
            each.outstanding and self.heard_at(each.id) > now - _SILENT_S for each in self._waited_for()
        )

    def finish(self, now: float) -> None:
        """Nothing more is published: all that is under way is to be acknowledged."""
        self._is_finishing = True
        if self.unacknowledged_bytes:
            self._ask()
            self._watch(now)

    # What happens

    def sent(self, outgoing: OutgoingTopic, sent: SentFrame, now: float) -> None:
        if not self._patience_s:
            return
        size = sent.size
        if now - self._sent_at > _QUIET_S:
            self._begun_at = now
        self._sent_at = now
        if not outgoing.receivers and self._may_be_claimed(outgoing, now):
            if now >= self._unclaimed_since + FIRST_ACKNOWLEDGEMENT_S:
                self._unclaimed.clear()
                self._unclaimed_bytes, self._unclaimed_since = 0, now
            # Of a new topic a copy goes to the common group.
            copies = 1 + (now < outgoing.new_until)
            self._unclaimed[outgoing] = self._unclaimed.get(outgoing, 0) + copies * size
            self._unclaimed_bytes += copies * size
        full = self._full
        for receiver in outgoing.receivers:
            receiver.outstanding += size
            if receiver.outstanding >= receiver.window and not receiver.is_left_behind:
                full[receiver] = None
        if full or self._history.is_held:
            self._watch(now)

    def _may_be_claimed(self, outgoing: OutgoingTopic, now: float) -> bool:
        """Is somebody perhaps about to acknowledge it for the first time?"""
        since = outgoing.new_until if self.receivers else self._begun_at + FIRST_ACKNOWLEDGEMENT_S
        return now < since

    def receive(self, member: bytes, acknowledgement: Acknowledgement, now: float) -> None:
        self._stats.acknowledgements_received += 1
        receiver = self.receivers.get(member)
        if receiver is None:
            if not self._patience_s:
                return
            if len(self.receivers) >= MAX_RECEIVERS:
                self._stats.dropped += 1
                return
            receiver = self.receivers[member] = StreamReceiver(member)
            self.has_opened = True
        self._has_heard = True
        receiver.window = max(MIN_WINDOW_BYTES, min(acknowledgement.window, self._window_bytes))
        for topic_hash, sequence in acknowledgement.streams:
            outgoing = self._by_hash.get(topic_hash)
            if outgoing is None:
                continue
            if sequence == CEASED:
                self._cease(receiver, outgoing)
            elif sequence <= outgoing.sequence:
                self._advance(receiver, outgoing, sequence)
        if receiver.is_left_behind and self._has_caught_up(receiver):
            receiver.is_left_behind = False
            self._look_again_at(receiver)
        if receiver.outstanding < receiver.window:
            self._full.pop(receiver, None)
        self.has_opened = True

    def _advance(self, receiver: StreamReceiver, outgoing: OutgoingTopic, sequence: int) -> None:
        progress = outgoing.receivers.get(receiver)
        if progress is None:
            if self._progress_count >= MAX_PROGRESSES:
                self._stats.dropped += 1
                return
            self._progress_count += 1
            self._unclaimed_bytes -= self._unclaimed.pop(outgoing, 0)
            progress = outgoing.receivers[receiver] = receiver.progresses[outgoing] = StreamProgress(sequence)
            progress.bytes, progress.messages = outgoing.sent_up_to(sequence)
            receiver.outstanding += outgoing.sent_bytes - progress.bytes
            if not receiver.is_left_behind:
                outgoing.needed = min(outgoing.needed, sequence)
            return
        if sequence <= progress.sequence:
            return
        was_needed = progress.sequence == outgoing.needed
        sent_bytes, sent_messages = outgoing.sent_up_to(sequence, progress)
        receiver.outstanding -= sent_bytes - progress.bytes
        progress.sequence, progress.bytes, progress.messages = sequence, sent_bytes, sent_messages
        progress.told = 0
        if was_needed:
            outgoing.look_again()

    def _has_caught_up(self, receiver: StreamReceiver) -> bool:
        return receiver.outstanding < receiver.window and all(
            progress.sequence >= outgoing.oldest - 1 for outgoing, progress in receiver.progresses.items()
        )

    def _cease(self, receiver: StreamReceiver, outgoing: OutgoingTopic) -> None:
        progress = outgoing.receivers.pop(receiver, None)
        if progress is not None:
            self._progress_count -= 1
            del receiver.progresses[outgoing]
            receiver.outstanding -= outgoing.sent_bytes - progress.bytes
            outgoing.look_again()

    def close(self, outgoing: OutgoingTopic) -> None:
        """The topic is ours no more."""
        self._unclaimed_bytes -= self._unclaimed.pop(outgoing, 0)
        for receiver in list(outgoing.receivers):
            self._cease(receiver, outgoing)

    def forget(self, member: bytes) -> None:
        """It said that it goes."""
        receiver = self.receivers.pop(member, None)
        if receiver is not None:
            self._full.pop(receiver, None)
            for outgoing in list(receiver.progresses):
                self._cease(receiver, outgoing)
            self.has_opened = True

    def forget_silent(self, now: float) -> None:
        for member, receiver in list(self.receivers.items()):
            heard_at = self.heard_at(member)
            if heard_at < now - _FORGET_S:
                self.forget(member)
            elif heard_at < now - GONE_AFTER_S and not receiver.is_left_behind:
                self._leave_behind(receiver, "silent for too long")

    def count_missed(self, member: bytes, outgoing: OutgoingTopic, first_missing: int) -> int:
        """The receiver asks from there, and the history begins later: how many messages it has missed."""
        receiver = self.receivers.get(member)
        progress = outgoing.receivers.get(receiver) if receiver is not None else None
        if progress is None:
            return 0
        first_missing = max(first_missing, progress.sequence + 1)
        if first_missing >= outgoing.oldest:
            return 0
        has_messages = outgoing.sent_up_to(first_missing - 1, progress)[1]
        missed = outgoing.sent_up_to(outgoing.oldest - 1)[1] - has_messages
        self._stats.not_taken += max(missed - progress.told, 0)  # It may ask again: the answer may be lost.
        progress.told = max(missed, progress.told)
        return missed

    # Those who are waited for

    def _watch(self, now: float) -> None:
        if self._check_at is None:
            self._ask_s = ASK_FIRST_S
            self._has_heard = False
            self._check_later(now)

    def _check_later(self, now: float) -> None:
        at = self._check_at = now + self._ask_s
        self._timers.at(at, lambda now: self._check(at, now))

    def _check(self, planned_at: float, now: float) -> None:
        self._check_at = None
        holding = self._holding()
        if not holding:
            return
        if now - planned_at < _LATE_S:
            for receiver in holding:
                if self._oldest_at(receiver, now) <= now - self._patience_s:
                    self._leave_behind(receiver, f"it acknowledged nothing new for {self._patience_s:g} s")
                elif self.heard_at(receiver.id) < now - GONE_AFTER_S:
                    self._leave_behind(receiver, "silent for too long")
        if not self._has_heard:
            self._ask()
            self._ask_s = min(2 * self._ask_s, ASK_AT_MOST_S)
        self._has_heard = False
        self._check_later(now)

    def _holding(self) -> list[StreamReceiver]:
        """Those for whom somebody waits."""
        holding = dict(self._full)
        if self._is_finishing:
            holding |= dict.fromkeys(each for each in self._waited_for() if each.outstanding)
        if self._history.is_held:
            outgoing = self._history.first
            needed = outgoing.oldest
            for receiver, progress in outgoing.receivers.items():
                if progress.sequence < needed and not receiver.is_left_behind:
                    holding[receiver] = None
        return list(holding)

    def _oldest_at(self, receiver: StreamReceiver, now: float) -> float:
        """When the first frame was sent that it has not acknowledged."""
        unacknowledged = (
            outgoing.find(progress.sequence + 1, 1)
            for outgoing, progress in receiver.progresses.items()
            if progress.sequence < outgoing.sequence
        )
        return min((each.sent_at for found in unacknowledged for each in found), default=now)

    def _leave_behind(self, receiver: StreamReceiver, why: str) -> None:
        receiver.is_left_behind = True
        self._full.pop(receiver, None)
        self._look_again_at(receiver)
        self.has_opened = True
        if receiver.outstanding:
            self._stats.left_behind += 1
            if len(self.events) < MAX_EVENTS:
                self.events.append(LeftBehind(receiver.id, why))

    def _look_again_at(self, receiver: StreamReceiver) -> None:
        for outgoing in receiver.progresses:
            outgoing.look_again()
