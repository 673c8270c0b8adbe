"""Messages without ids that a broker sends once more, known again by their packet identifiers.

A broker sends a QoS 1 or 2 message again, with DUP and under the same packet identifier, when it has not
heard the acknowledgement (MQTT-4.4.0-1). If that identifier brought the same topic and payload among the last
messages of the session, it is the same message. Those of earlier lives are read from the journal, where each
message has its identifier with it, when the first DUP asks for them.

What stays ambiguous is a broker that gives an identifier again as soon as it is free, and has two messages of
the same content for it, of which the second was under way when the link was lost: that one is taken for the
first. Brokers that count identifiers up, as Mosquitto and ours do, never come to it.
"""

from __future__ import annotations

from hedgerow.journal.io.deliveries import last_deliveries
from hedgerow.journal.io.writer import Writer
from hedgerow.message import Message
from hedgerow.mqtt.client.events import MessageReceived

# How many rows of the journal are looked through for those that the broker may send again. QoS 0 messages
# stand between them: as many as a recorder may be behind, and as fit into the buffers of sockets.
MAX_ROWS_BACK = 524_288

# The last messages among which one is looked for. Half of all identifiers: of a broker that counts them up,
# none has come round again. Not the receive maximum, which brokers before MQTT 5 do not know, and Mosquitto
# exceeds.
WINDOW = 32_768


class Redeliveries:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._began_at = writer.next_position
        self._since: int | None = None  # not None: earlier lives are yet to be looked at, from there
        self._count = 0
        self._known: dict[int, tuple[int, int, int]] = {}  # by packet identifier: count, position, content

    def begin_session(self) -> None:
        """The broker has a new session for us: identifiers mean other messages from now on."""
        self._known.clear()
        self._since = None

    def resume_session(self, since: int) -> None:
        """The session that has been at the broker since that position goes on; to be called in each life."""
        self._since = since

    def note(self, message: MessageReceived, position: int) -> None:
        """A message without an id was appended, up to `position`."""
        self._count += 1
        self._known[message.packet_id] = self._count, position, _content(message)

    def find(self, message: MessageReceived) -> int | None:
        """The position behind the message, if it was here before."""
        if self._since is not None:
            self._look_back(self._since)
        known = self._known.get(message.packet_id)
        if known is None or known[2] != _content(message) or self._count - known[0] >= WINDOW:
            return None
        return known[1]

    def _look_back(self, since: int) -> None:
        """Read what earlier lives of this recorder got; what this one has got since is newer."""
        self._since = None
        end = self._began_at
        newer = self._known
        self._known = {}
        start = max(since, end - MAX_ROWS_BACK)
        found = last_deliveries(self._writer.directory, start, end, WINDOW)
        for age, each in enumerate(reversed(found)):
            if each.broker == self._writer.broker:
                content = hash((each.topic, each.payload))
                self._known.setdefault(each.packet_id, (-age, each.position + 1, content))
        self._known |= newer


def _content(message: Message) -> int:
    return hash((message.topic, message.payload))
