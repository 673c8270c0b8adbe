"""What a member counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class MulticastStats:
    published: int = 0
    delivered: int = 0
    datagrams_sent: int = 0
    datagrams_received: int = 0
    copies_sent: int = 0
    """Datagrams to single peers that do not hear our multicast."""
    malformed: int = 0
    other_topic: int = 0
    """Frames of another topic at the same address, told by the CRC."""
    forged: int = 0
    """No key of ours opens them, or they were changed on their way."""
    clear: int = 0
    """In clear, to a member that has a key."""
    sealed: int = 0
    """Sealed, to a member that has no key."""
    replayed: int = 0
    unproven: int = 0
    """Frames of senders that never showed that they live."""
    duplicates: int = 0
    too_large: int = 0
    repairs_requested: int = 0
    repairs_suppressed: int = 0
    """Requests not made because another member made them."""
    repairs_sent: int = 0
    repairs_refused: int = 0
    lost: int = 0
    """Frames of QoS 1 streams that nobody could send again."""
    missed: int = 0
    """Messages that this member missed, by the word of their sender or, where that is silent, the frames."""
    acknowledgements_sent: int = 0
    acknowledgements_received: int = 0
    left_behind: int = 0
    """Receivers that were not waited for any longer."""
    not_taken: int = 0
    """Messages that such receivers missed: they were told how many."""
    fragments_discarded: int = 0
    dropped: int = 0
    """Valid, but beyond a limit of ours."""
