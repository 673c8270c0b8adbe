"""What a client has had, by message id, over the connections that it made.

Servers of the extension tell the id of every message (`mqtt/extension.py`), and nodes do to a client that has
a name in the fabric. One that comes again is the same message once more: two servers matched it, a hand-over
came between it and its acknowledgement, or the server was killed. What is retained may be asked for again.
Ids of the last `MAX_SIGHTINGS` messages are kept: copies are seconds apart, not hours.
"""

from __future__ import annotations

from hedgerow.message import MessageId
from hedgerow.mqtt.client.events import MessageReceived, Receipt

MAX_SIGHTINGS = 32_768
MAX_ID = 300  # characters


class Sightings:
    def __init__(self) -> None:
        self._connections = 0
        self._seen: dict[MessageId, tuple[int, Receipt | None]] = {}

    def begin(self) -> int:
        """A connection begins: the number that it is known by here."""
        self._connections += 1
        return self._connections

    def is_again(self, message: MessageReceived, connection: int, has_asked: bool) -> bool:
        """Has the application got it? Then this copy is acknowledged as soon as the application is done with
        that one, by whichever connection it came.

        `has_asked`: the application subscribed on this connection, so what is retained is an answer to that.
        """
        if message.id is None or message.callbacks:
            return False
        seen = self._seen.get(message.id)
        if seen is None:
            if len(self._seen) >= MAX_SIGHTINGS:
                del self._seen[next(iter(self._seen))]
            self._seen[message.id] = connection, message.receipt
            return False
        before, receipt = seen
        if message.retain and (before == connection or has_asked):
            return False
        copy = message.receipt
        if receipt is None:
            if copy is not None:
                copy.acknowledged = True
            return True
        if receipt.is_void and not receipt.acknowledged:
            # It came by a connection that was lost, and this is the server's next attempt.
            self._seen[message.id] = connection, copy
            return False
        if copy is not None and copy is not receipt:
            copy.copy_of = receipt
        return True

    def is_repeated(self, message: MessageReceived, connection: int, has_asked: bool) -> bool:
        """As `is_again`, of a server that may send one message for each subscription that matches it: on one
        connection only what is marked is a copy."""
        seen = self._seen.get(message.id) if message.id is not None else None
        is_for_another = seen is not None and seen[0] == connection and not message.dup
        return not is_for_another and self.is_again(message, connection, has_asked)


def parse_id(text: str) -> MessageId | None:
    """The id that a server told; one that cannot be read is as if it were not there."""
    if not 0 < len(text) <= MAX_ID:
        return None
    try:
        return MessageId.parse(text)
    except ValueError:
        return None
