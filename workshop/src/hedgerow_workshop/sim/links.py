"""Links between virtual nodes.

Each direction has its own delay, jitter and loss, and can be cut on its own. It keeps the order, as TCP does;
what is lost is lost, since these links have no retransmission: loss here is of whole packets, and harsher
than on a real connection.

`connection` counts the connections that a link has had. A packet belongs to the one on which it was sent, and
does not arrive on a later one. `is_up` is what the two ends believe of it, which is the truth only after a
probe has had the time to find out.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualConditions:
    delay_s: float = 0.005
    jitter_s: float = 0.0
    """On top of the delay, from 0 to this, evenly."""
    loss: float = 0.0
    """The share of packets."""

    def __post_init__(self) -> None:
        if self.delay_s < 0 or self.jitter_s < 0 or not 0 <= self.loss <= 1:
            raise ValueError(f"no link can be like this: {self}")


class VirtualDirection:
    __slots__ = ("_free_at", "conditions", "is_cut", "link", "receiver", "sender", "sent")

    def __init__(self, link: VirtualLink, sender: str, receiver: str, conditions: VirtualConditions) -> None:
        self.link = link
        self.sender = sender
        self.receiver = receiver
        self.conditions = conditions
        self.is_cut = False
        self.sent = 0
        self._free_at = 0.0

    def arrives_at(self, now: float, random: Random) -> float | None:
        """When what is sent now arrives; None: never."""
        self.sent += 1
        conditions = self.conditions
        if self.is_cut or (conditions.loss and random.random() < conditions.loss):
            return None
        at = now + conditions.delay_s
        if conditions.jitter_s:
            at = max(at + conditions.jitter_s * random.random(), self._free_at)
            self._free_at = at
        return at


class VirtualLink:
    __slots__ = ("backward", "changes", "connection", "forward", "is_up", "lost_an_end", "up_at", "works")

    def __init__(self, a: str, b: str, forward: VirtualConditions, backward: VirtualConditions) -> None:
        self.forward = VirtualDirection(self, a, b, forward)
        self.backward = VirtualDirection(self, b, a, backward)
        self.works = False
        """Both ends live, and neither direction is cut."""
        self.changes = 0
        self.is_up = False
        self.up_at = 0.0
        self.connection = 0
        self.lost_an_end = False
        """An end has died since the ends last heard of the link: the connection cannot go on."""

    @property
    def ends(self) -> tuple[str, str]:
        return self.forward.sender, self.forward.receiver
