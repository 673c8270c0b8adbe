"""What a broker counts of its subscriptions, beside what its log has told of them.

Mosquitto counts once in a while (`sys_interval`, 10 s): it publishes its uptime, and behind that each number
which has changed. What comes first after a SUBSCRIBE is retained and may be that old, so it shows nothing.
A count is compared with the log as far as it had come then, once the rest of that round has come too: when
the next one begins, or after `ROUND_S`.
"""

from __future__ import annotations

from typing import NamedTuple

from hedgerow.federation.interests.subscription_log import SubscriptionLog

UPTIME_TOPIC = "$SYS/broker/uptime"
COUNT_TOPIC = "$SYS/broker/subscriptions/count"
SHARED_COUNT_TOPIC = "$SYS/broker/shared_subscriptions/count"
TOPICS = (UPTIME_TOPIC, COUNT_TOPIC, SHARED_COUNT_TOPIC)

ROUND_S = 1.0
NEVER = float("inf")


class Comparison(NamedTuple):
    """Of one round."""

    least_unknown: int
    """Subscriptions that are counted beyond those that may be of clients we know."""
    most_unknown: int
    """The same, if all sessions have ended that may have."""
    beyond_heard: int
    """Those counted beyond those of clients heard of on this connection."""
    beyond_sessions: int
    """And beyond those of clients whose session outlives a restart of the broker."""


class _Known(NamedTuple):
    plain: tuple[int, int]
    shared: tuple[int, int]
    in_doubt: int
    in_doubt_without_session: int


class BrokerCounts:
    def __init__(self, log: SubscriptionLog) -> None:
        self.deadline = NEVER
        self._log = log
        self._numbers: dict[str, int] = {}
        self._heard = dict.fromkeys(TOPICS, 0)
        self._known: _Known | None = None  # when the round began

    def connected(self) -> None:
        self._numbers.clear()
        self._heard = dict.fromkeys(TOPICS, 0)
        self.disconnected()

    def disconnected(self) -> None:
        self._known = None
        self.deadline = NEVER

    def receive(self, topic: str, number: int, now: float) -> Comparison | None:
        """One of `TOPICS`, once the log is live. What the round before came to, if this begins another."""
        found = self._compare() if topic == UPTIME_TOPIC else None
        self._numbers[topic] = number
        self._heard[topic] += 1
        if self._heard[topic] > 1:
            self._known = self._look()
            self.deadline = now + ROUND_S
        return found

    def handle_timer(self, now: float) -> Comparison | None:
        return self._compare() if self.deadline <= now else None

    def still_unknown(self) -> int:
        """By the last count, and all that the log has told since."""
        plain, shared = self._numbers.get(COUNT_TOPIC, 0), self._numbers.get(SHARED_COUNT_TOPIC, 0)
        known = self._log.counted(shared=False)[1], self._log.counted(shared=True)[1]
        return max(0, plain - known[0]) + max(0, shared - known[1])

    def _look(self) -> _Known:
        log = self._log
        return _Known(
            log.counted(shared=False),
            log.counted(shared=True),
            log.count_of(log.in_doubt(with_sessions=True)),
            log.count_of(log.in_doubt(with_sessions=False)),
        )

    def _compare(self) -> Comparison | None:
        known, self._known, self.deadline = self._known, None, NEVER
        plain = self._numbers.get(COUNT_TOPIC)
        if known is None or plain is None:
            return None
        shared = self._numbers.get(SHARED_COUNT_TOPIC, 0)  # Older brokers do not tell.
        most = max(0, plain - known.plain[0]) + max(0, shared - known.shared[0])
        least = max(0, plain - known.plain[1]) + max(0, shared - known.shared[1])
        beyond = plain - known.plain[1]
        return Comparison(least, most, beyond + known.in_doubt, beyond + known.in_doubt_without_session)
