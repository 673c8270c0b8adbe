"""What a mobile broker is told of itself: its fixed brokers, which topics it keeps, and whom it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hedgerow.mobility.delegation.limits import TAKEOVER_AFTER_S

if TYPE_CHECKING:  # A configuration alone does not rank topics.
    from hedgerow.hot.hot_topics import Score

Algorithm = Literal["hot", "naive"]


@dataclass(frozen=True, slots=True)
class MobileSettings:
    fixed: tuple[str, ...]
    """URLs of fixed brokers, in order of preference."""
    address: str = ""
    """HOST:PORT at which clients reach this node; "" is what is told when a link opens."""
    fixed_address: str = ""
    """HOST:PORT that clients are sent to; "" is host and port of the fixed broker's URL."""
    x_s: float = 0.4
    """Between two calculations of the hot topics."""
    y_s: float = 2.0
    """How far back a calculation looks."""
    share: float = 0.5
    """Of the topics with events, the part that is kept."""
    capacity: int | None = None
    """Topics that are kept at most."""
    score: Score = "window"
    """What topics are ranked by."""
    algorithm: Algorithm = "hot"
    rotation: int = 0
    """Which half the naïve algorithm delegates: 0 or 1."""
    moves_clients: bool = True
    """Clients that can be sent to another broker follow their topics."""
    move_after_s: float = 5.0
    """How long a client's topics have to be delegated before it is sent after them."""
    takeover_after_s: float = TAKEOVER_AFTER_S
    """How long a link may be down before everything is taken back."""
    delegates: bool = True
