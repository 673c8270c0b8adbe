"""What both sides give out: deliveries for subscribers, facts for people, counts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from hedgerow.errors import counted
from hedgerow.facts import NodeFact
from hedgerow.message import Message
from hedgerow.mobility.delegation.publications import EventBody, GuestSubscription, Roaming


class Notification(NamedTuple):
    """Each of these subscribers is to get the message, at its QoS or the message's, whichever is lower."""

    message: Message
    callbacks: tuple[tuple[str, int], ...]
    is_again: bool = False
    """They may have been at a fixed broker that was lost, and it cannot be asked whether they had it."""
    receipt: tuple[str, int] | None = None
    """Mobile broker and number, for `FixedSide.settle` when they have got it, or it was handed back."""
    number: int = 0
    """At a mobile broker: which of the fixed broker's events it came with; 0: it was published here."""


@dataclass(slots=True)
class DelegationStats:
    ignored: int = 0
    """Publications of the other side that came twice, too late or too early."""
    expired: int = 0
    refused: int = 0
    """Publications that broke a rule."""
    duplicates: int = 0
    """Events that had been here."""
    overflowed: int = 0
    """Events that the other side did not get: too much waited for it, or it takes none so large."""
    unknown_callbacks: int = 0


@dataclass(frozen=True, slots=True)
class DelegationRefused:
    logged_as: ClassVar[str] = "Refused"
    level: ClassVar[int] = logging.WARNING
    history_kind: ClassVar[str] = "refused"
    sender: str
    topic: str
    why: str

    @property
    def address(self) -> str:
        """By which the log's lines are counted: one who is refused all the time hides nobody else."""
        return self.sender

    def __str__(self) -> str:
        return f"{self.sender!r} is refused {self.topic!r}: {self.why}"


@dataclass(frozen=True, slots=True)
class Delegated(NodeFact):
    """The fixed broker has acknowledged it. Which topics are hot, the status tells as well."""

    history_kind: ClassVar[str] = "delegated"
    fixed_broker: str
    topic_filter: str

    def __str__(self) -> str:
        return f"{self.topic_filter!r} is delegated to {self.fixed_broker}"


@dataclass(frozen=True, slots=True)
class Recovered(NodeFact):
    history_kind: ClassVar[str] = "recovered"
    fixed_broker: str
    topic_filter: str

    def __str__(self) -> str:
        return f"{self.topic_filter!r} is recovered from {self.fixed_broker}"


@dataclass(frozen=True, slots=True)
class Introduced(NodeFact):
    """To a fixed broker that knew nothing of this one: no topic is delegated."""

    history_kind: ClassVar[str] = "joined"
    fixed_broker: str

    def __str__(self) -> str:
        return f"{self.fixed_broker} is told of every topic"


@dataclass(frozen=True, slots=True)
class TakenOver(NodeFact):
    level: ClassVar[int] = logging.WARNING
    history_kind: ClassVar[str] = "lost"
    fixed_broker: str
    topics: int
    events: int

    def __str__(self) -> str:
        what = f"{counted(self.topics, 'topic')} and {counted(self.events, 'event')}"
        return f"{self.fixed_broker} is lost: {what} are taken back"


@dataclass(frozen=True, slots=True)
class Left(NodeFact):
    """Everything is recovered from it, and it has forgotten this mobile broker."""

    fixed_broker: str

    def __str__(self) -> str:
        return f"{self.fixed_broker} is left, with nothing delegated there"


@dataclass(frozen=True, slots=True)
class ClientMoved:
    """It is served by the fixed broker (or again by the mobile one): what waits for it is to be handed on."""

    level: ClassVar[int] = logging.INFO
    callback: str
    is_at_fixed: bool

    def __str__(self) -> str:
        return f"{self.callback} is {'at the fixed' if self.is_at_fixed else 'back at the mobile'} broker"


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The fixed broker has another client of this id, or does not take this one's user from this broker: the
    client is not to go there."""

    level: ClassVar[int] = logging.INFO
    callback: str

    def __str__(self) -> str:
        return f"{self.callback} stays: the fixed broker has another client of this name, or refuses its user"


@dataclass(frozen=True, slots=True)
class HandedBack(NodeFact):
    history_kind: ClassVar[str] = "recovered"
    mobile_broker: str
    topics: int

    def __str__(self) -> str:
        return f"{self.mobile_broker} has {counted(self.topics, 'topic')} back"


@dataclass(frozen=True, slots=True)
class RenewTopics(NodeFact):
    """A broker without delegation takes over: these clients are to go there and subscribe again."""

    mobile_broker: str
    callbacks: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.callbacks)} clients are to go to {self.mobile_broker}"


@dataclass(frozen=True, slots=True)
class Forgotten(NodeFact):
    mobile_broker: str
    why: str

    def __str__(self) -> str:
        return f"{self.mobile_broker} is forgotten: {self.why}"


@dataclass(frozen=True, slots=True)
class CalledBack:
    """A client that is at the fixed broker is to go home: a topic of it is, or its mobile broker is away."""

    level: ClassVar[int] = logging.INFO
    callback: str

    def __str__(self) -> str:
        return f"{self.callback} is called back to its mobile broker"


@dataclass(frozen=True, slots=True)
class GuestSubscribed:
    """A client subscribed while it was at the fixed broker."""

    level: ClassVar[int] = logging.DEBUG
    wanted: GuestSubscription

    def __str__(self) -> str:
        return f"{self.wanted.callback} subscribes to {self.wanted.topic_filter!r} at the fixed broker"


@dataclass(frozen=True, slots=True)
class GuestUnsubscribed:
    level: ClassVar[int] = logging.DEBUG
    callback: str
    topic_filter: str

    def __str__(self) -> str:
        return f"{self.callback} unsubscribes from {self.topic_filter!r} at the fixed broker"


@dataclass(frozen=True, slots=True)
class RoamingTold:
    """A session on its way from one broker to another. All events that were written before are handled."""

    level: ClassVar[int] = logging.DEBUG
    peer: str
    body: Roaming
    written: int
    """How many events were written before."""

    def __str__(self) -> str:
        return f"{self.peer}: {self.body.callback} {self.body.step.name}"


@dataclass(frozen=True, slots=True)
class MissedWhileAway:
    """An event that waited there for a client whose session comes here."""

    level: ClassVar[int] = logging.DEBUG
    peer: str
    event: EventBody
    number: int

    def __str__(self) -> str:
        return f"{self.peer} has kept {self.event.message.id}"


@dataclass(frozen=True, slots=True)
class Reborn:
    """The stream with this mobile broker began anew: one of the two has forgotten. These events waited for
    it, or may not have been handled there."""

    level: ClassVar[int] = logging.DEBUG
    mobile_broker: str
    left: tuple[Message, ...]

    def __str__(self) -> str:
        return f"{self.mobile_broker} begins anew"


@dataclass(frozen=True, slots=True)
class Registered:
    """A topic filter that this mobile broker had not told before."""

    level: ClassVar[int] = logging.DEBUG
    mobile_broker: str
    topic_filter: str

    def __str__(self) -> str:
        return f"{self.mobile_broker} has subscribers of {self.topic_filter!r}"


@dataclass(frozen=True, slots=True)
class Unregistered:
    level: ClassVar[int] = logging.DEBUG
    mobile_broker: str
    topic_filter: str

    def __str__(self) -> str:
        return f"{self.mobile_broker} has no subscribers of {self.topic_filter!r} any more"


DelegationEvent = (
    DelegationRefused
    | Introduced
    | Delegated
    | Recovered
    | TakenOver
    | Left
    | ClientMoved
    | TurnedAway
    | HandedBack
    | RenewTopics
    | Forgotten
    | CalledBack
    | GuestSubscribed
    | GuestUnsubscribed
    | RoamingTold
    | MissedWhileAway
    | Reborn
    | Registered
    | Unregistered
)
