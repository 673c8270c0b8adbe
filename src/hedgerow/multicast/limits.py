"""What a member may be set to, and the times by which members keep up with each other."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
MAX_OUTGOING = 16_384  # topics that a member publishes to: a gateway's are its clients' choice

# RFC 4291 §2.7 and RFC 7346: how far an IPv6 group reaches.
SCOPES = {"interface": 1, "link": 2, "site": 5}

# The headers of IPv6 and UDP, and the topic that a copy carries in addition.
_SPARE_BYTES = 48 + 100
MAX_DATAGRAM_BYTES = 16 * 1024  # On a loopback interface, which would take 64 KiB, more gains nothing.


def datagram_bytes(mtu: int) -> int:
    """The largest frame on a link that takes packets of `mtu` bytes: a datagram in pieces is lost with any
    one of them. IPv6 links take at least 1,280 (RFC 8200 §5)."""
    return min(max(mtu, 1_280) - _SPARE_BYTES, MAX_DATAGRAM_BYTES)


DATAGRAM_BYTES = datagram_bytes(1_500)


@dataclass(slots=True, frozen=True)
class MulticastLimits:
    payload_bytes: int = 256 * 1024
    """The largest message, sent or received."""
    datagram_bytes: int = DATAGRAM_BYTES
    history_bytes: int = 48 * MIB
    """What was published at QoS 1 and 2 is kept for repairs within this"""
    history_s: float = 30.0
    """and no longer than this."""
    waiting_bytes: int = 16 * MIB
    """What arrived behind a gap, and pieces of messages: of all senders together."""
    retained_bytes: int = 16 * MIB
    topics: int = MAX_OUTGOING
    """Topics published to at the same time."""
    groups: int = 4_096
    """Topics that wildcards may join. Each is a socket, and a group on the network's switches."""
    window_bytes: int = MIB
    """What may be under way to one receiver from one sender that it has not acknowledged yet,"""
    patience_s: float = 30.0
    """and how long a frame may wait for that, before its receiver is left behind; 0: nobody is waited for."""
    new_topic_s: float = 0.5
    """How long the messages of a new topic also go to the control group, for those still joining its own."""


# How often members say that they are there, and ask for the topics that wildcards match. Whoever is not
# heard for three times as long is gone.
INTERVAL_S = 5.0
GONE_AFTER_S = 3 * INTERVAL_S

# A question to all is repeated, since nobody knows whether it was lost or nobody had an answer.
ASK_AGAIN_S = (0.1, 0.4)

# Who answers all waits for a random part of this, and not at all if another was first.
ANSWER_WITHIN_S = 0.03

# The end of a stream is told again, less and less often: the last message may be the lost one.
HEARTBEAT_FIRST_S = 0.02
HEARTBEATS_PER_S = 250.0  # of all topics: whoever publishes to a thousand must not say thrice what it said
HEARTBEATS_AT_ONCE = 10

# Whoever notices a gap waits for a random part of this: one of many asks, the others hear it. Fifty
# receivers that all miss a frame ask about twice when a request takes 1 ms to be heard by all.
REPAIR_WITHIN_S = 0.03
REPAIR_AGAIN_S = 0.06
REPAIR_TRIES = 9  # doubling, at most 1 s apart: six seconds in all, where no sender waits for us
REPAIR_SUPPRESSIONS = 2  # How often another's request counts as ours before we ask all the same.
REPAIR_AT_MOST_S = 0.25  # The random wait grows by 1 ms a member, up to this.
REPAIR_UNHEARD_S = 1.0  # Who is away is asked this often.
REPAIR_AT_LATEST_S = 2.0  # Behind a full buffer an answer may take so long: not to be asked for again before.
REPAIR_SLACK_S = 2.0  # How long a request may take to be answered.
REPAIR_PAUSE_S = 0.01  # A frame just sent again is not sent again at once: requests cross repairs.

# A frame stays to be had for at least this long, and publishing waits rather than push it out: a receiver
# that the system did not let run for 0.3 s has then time to ask for what it missed.
HISTORY_AT_LEAST_S = 0.5

# What a frame takes of a window beside its bytes: about what Linux charges a socket's buffer for a small one.
WINDOW_FRAME_BYTES = 768
MIN_WINDOW_BYTES = 16 * 1024
# Where nobody has acknowledged a topic yet, though somebody may be about to: a sender goes no further than
# this with all of those, for no longer than that.
FIRST_WINDOW_BYTES = 128 * 1024
FIRST_ACKNOWLEDGEMENT_S = 0.25
# A receiver acknowledges when a quarter of its window has come, or after this long and 10 ms more for each
# member that it knows: five hundred that all acknowledge each message at once would be a flood.
ACKNOWLEDGE_WITHIN_S = 0.1
ACKNOWLEDGE_AT_MOST_S = 2.0
# Who is waited for is asked, and again after twice as long.
ASK_FIRST_S = 0.05
ASK_AT_MOST_S = 1.0
MAX_RECEIVERS = 1_024  # that a sender waits for: anyone may acknowledge, under any name
MAX_PROGRESSES = 65_536  # of all of them together: one for each stream that a receiver listens to

# A bus that closes stays this long for those who still have to ask.
LINGER_S = 0.4

IDLE_TOPIC_S = 600.0  # A topic that was not published to for so long is announced no more.

# Bounds on what others can make grow.
MAX_SENDERS = 4_096
MAX_UNPROVEN = 256  # senders that have yet to show that they live
MAX_UNPROVEN_BYTES = 64 * 1024  # of frames that wait for that, each
MAX_STREAMS = 16_384
MAX_ANSWERS = 16_384  # last values about to be sent
ANSWERS_AT_ONCE = 64  # datagrams
ANSWERS_PER_S = 3_000.0
MAX_PUBLISHERS = 64  # of one topic, whose leaving is noticed at once
MAX_INTERESTS = 64  # filters of one question: each makes everyone search
INTERESTS_PER_S = 500.0
MAX_PEERS = 256
MAX_UNANSWERED = 3  # HELLOs to a peer that nobody named
MAX_COPIES = 64  # peers that are sent copies
MAX_REPAIRS = 256  # frames sent again for one request: a request of 100 bytes must not cost megabytes
REPAIRS_PER_S = 20_000.0
PROOFS_PER_S = 200.0
