"""What a broker says of messages that it had for its clients and dropped, since too many waited there.

Mosquitto counts them in a topic. It drops what goes beyond `max_queued_messages` (1,000) or
`max_queued_bytes` for a client, without a word to that client: nobody else can tell of the loss.
"""

from __future__ import annotations

from hedgerow.errors import counted

DROPPED_TOPIC = "$SYS/broker/publish/messages/dropped"
MAX_DIGITS = 20


class DroppedThere:
    """The count of one broker, over connections to it and over its restarts."""

    def __init__(self) -> None:
        self.total = 0
        """How many since it was first heard."""
        self._last: int | None = None

    @property
    def is_heard(self) -> bool:
        return self._last is not None

    def hear(self, payload: bytes) -> int:
        """How many more than the last time. What was dropped before the first time is nobody's news."""
        if not payload.isdigit() or len(payload) > MAX_DIGITS:
            return 0
        count, last = int(payload), self._last
        self._last = count
        if last is None:
            return 0
        # A smaller one is of a broker that was started again, and counts from 0.
        more = count - last if count >= last else count
        self.total += more
        return more


def describe_dropped(address: str, more: int) -> str:
    return (
        f"the broker at {address} dropped {counted(more, 'message')}: more waited there for a client than it "
        "keeps; set max_queued_messages 0 and a large max_queued_bytes in its mosquitto.conf"
    )
