"""What became of the messages of a peer, or of a link to one: each is counted once. The ledger balances."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Inbound:
    """What came from a peer. Of `published`, what is not counted below was passed on."""

    published: int = 0
    duplicates: int = 0
    outdated: int = 0
    """Retained values of which a newer one is here, or the very same."""
    refused: int = 0
    """A topic that is not to come this way, or a retained message that there is no room for."""


@dataclass(slots=True)
class Outbound:
    """What was published for a link. What is not counted below waits in its session's outbox."""

    published: int = 0
    relayed: int = 0
    away: int = 0
    """QoS 0 while there was no connection."""
    overflowed: int = 0
    expired: int = 0
    too_large: int = 0
    refused: int = 0
    """The far broker said no, the topic has no name there, or the link's user may no longer read it."""
    discarded: int = 0
    """It waited when the link was deleted, and no other took it."""
