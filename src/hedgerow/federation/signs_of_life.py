"""Signs of life for neighbours that dialled this node, while it is behind with reading what they send.

Whoever dialled takes the link for dead when its probes are not answered (`broker/probe.py`). A probe stands
in line behind what was sent before it: on a slow link, in the kernel of a node that has too much to do, or
before a connection that is not read until the disk has stored what came. So this end says by itself that it
is there, for as long as it hears more than probes: on the way back nothing waits, or what waits there is a
sign of life as well. The other direction needs none: who dialled sends its probes by the clock, and whatever
this end hears before them counts.
"""

from __future__ import annotations

from hedgerow.broker.connection import Connection
from hedgerow.topics import CONTROL_PREFIX

ALIVE_TOPIC = CONTROL_PREFIX + "alive"
ALIVE_S = 0.5  # The other side waits for 1.5 s.


class SignsOfLife:
    """Of one link that the neighbour dialled."""

    __slots__ = ("_connection", "_published")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._published = 0

    @property
    def is_due(self) -> bool:
        """To be asked every `ALIVE_S`: may a probe be waiting behind something?"""
        connection = self._connection
        before = self._published
        self._published = connection.inbound.published if connection.inbound is not None else 0
        is_behind = bool(connection.pauses) or connection.partial is not None or self._published != before
        # Where the way back is full, what is taken of it tells more.
        return is_behind and connection.is_connected and not connection.congested
