"""What a mobile and a fixed broker write to each other: kinds of publications, and what each of them says.

Topics are `<domain>/<broker id>/<action>`, with the id of the broker that writes. The document's actions and
suffixes, and what we add to carry them safely:

    action                            from    body
    delegate                          mobile  registrations: these topics now have these subscribers
    delegate/addresses                mobile  callbacks that came and went: registrations speak of them
    delegate/unsubscription/single    mobile  topic filter, callback
    delegate/unsubscription/all       mobile  nothing: forget me
    delegate/deactivate/all           mobile  nothing: send everything back
    delegate/deactivate/no            mobile  nothing, or no payload: send me whom I am to serve
    recover                           mobile  topic filters that it matches itself from now on
    recover                           fixed   registrations: what was given back
    event                             mobile  an event that was published there
    notify                            fixed   an event, for the callbacks in it, or to be matched
    serving                           both    a callback, and whether its client is with the sender
    serving/subscription              fixed   what a client that is there subscribes to
    serving/unsubscription            fixed   topic filter, callback: it does so no more
    roaming                           both    a step of a client's session to another broker (`Roaming`)
    hello, acknowledge, nothing,      both    the stream's own (`stream.py`)
    events/acknowledge
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation.bloom import CountingBloomFilter

PLAN_PREFIX = "$hedgerow/plan/"  # and the id of the mobile broker that is to follow the plan


class PublicationKind(IntEnum):
    HELLO = 1
    ACKNOWLEDGE = 2
    NOTHING = 3
    DELEGATE = 4
    UNSUBSCRIPTION_SINGLE = 5
    UNSUBSCRIPTION_ALL = 6
    DEACTIVATE_ALL = 7
    DEACTIVATE_NO = 8
    RECOVER = 9
    RECOVERED = 10
    EVENT = 11
    NOTIFY = 12
    SERVING = 13
    SUBSCRIPTION = 14
    UNSUBSCRIPTION = 15
    EVENTS_ACKNOWLEDGE = 16
    ADDRESSES = 17
    ROAMING = 18


ACTIONS = {
    PublicationKind.HELLO: "hello",
    PublicationKind.ACKNOWLEDGE: "acknowledge",
    PublicationKind.NOTHING: "nothing",
    PublicationKind.DELEGATE: "delegate",
    PublicationKind.UNSUBSCRIPTION_SINGLE: "delegate/unsubscription/single",
    PublicationKind.UNSUBSCRIPTION_ALL: "delegate/unsubscription/all",
    PublicationKind.DEACTIVATE_ALL: "delegate/deactivate/all",
    PublicationKind.DEACTIVATE_NO: "delegate/deactivate/no",
    PublicationKind.RECOVER: "recover",
    PublicationKind.RECOVERED: "recover",
    PublicationKind.EVENT: "event",
    PublicationKind.NOTIFY: "notify",
    PublicationKind.SERVING: "serving",
    PublicationKind.SUBSCRIPTION: "serving/subscription",
    PublicationKind.UNSUBSCRIPTION: "serving/unsubscription",
    PublicationKind.EVENTS_ACKNOWLEDGE: "events/acknowledge",
    PublicationKind.ADDRESSES: "delegate/addresses",
    PublicationKind.ROAMING: "roaming",
}
EVENTS = {PublicationKind.EVENT, PublicationKind.NOTIFY}
"""Of the content plane: the events themselves, under their own topics."""
ACKNOWLEDGEMENTS = {PublicationKind.ACKNOWLEDGE, PublicationKind.EVENTS_ACKNOWLEDGE}
CONTENT = EVENTS | {PublicationKind.NOTHING, PublicationKind.EVENTS_ACKNOWLEDGE}
"""What belongs to the content plane; all else is the process plane's."""
OF_STREAM = ACKNOWLEDGEMENTS | {PublicationKind.HELLO, PublicationKind.NOTHING}
UNNUMBERED = {
    PublicationKind.UNSUBSCRIPTION_SINGLE,
    PublicationKind.UNSUBSCRIPTION_ALL,
    PublicationKind.DEACTIVATE_ALL,
    PublicationKind.DEACTIVATE_NO,
}
"""What is taken without a number in a stream, too, as the document has it."""
OF_GUESTS = {PublicationKind.SUBSCRIPTION, PublicationKind.UNSUBSCRIPTION}
OF_BOTH = {PublicationKind.SERVING, PublicationKind.ROAMING}
FROM_FIXED = OF_STREAM | OF_GUESTS | OF_BOTH | {PublicationKind.RECOVERED, PublicationKind.NOTIFY}
FROM_MOBILE = OF_STREAM | OF_BOTH | (set(PublicationKind) - FROM_FIXED)


class StreamHeader(NamedTuple):
    epoch: int
    """The sender's stream: a new one when it has lost what it knew."""
    peer_epoch: int
    """The receiver's, for which it is written; 0 in HELLO."""
    link: int
    """In HELLO how often the sender has connected, elsewhere the same number from the receiver's HELLO."""
    number: int
    """Of this publication in the stream; where it has none, of the one before it."""
    acknowledged: int
    """Of the other side's stream, what had been handled when this was written."""
    settled: int = 0
    """Of that, what is done with: no client of the sender waits for it any more."""
    other: int = 0
    """Of the sender's other plane, what it had written when this was written."""
    other_acknowledged: int = 0
    """Of the receiver's other plane, what the sender had handled when this was written."""


class HelloBody(NamedTuple):
    known_epoch: int
    received: int
    """Of the other side's process plane."""
    content_received: int = 0


class Members(NamedTuple):
    """Subscribers of one QoS, of those whose addresses were told before: whom the filter names, but these."""

    qos: int
    filter: CountingBloomFilter
    exceptions: tuple[str, ...]


class Registration(NamedTuple):
    topic_filter: str
    entries: tuple[tuple[str, int], ...]
    """Callback and QoS."""
    members: tuple[Members, ...] = ()
    """More of them, where that is shorter (`subscriber_sets.py`)."""


class AddressChanges(NamedTuple):
    """The mobile broker's subscribers: all at first, then those who came and went."""

    added: tuple[str, ...]
    removed: tuple[str, ...] = ()


class Registrations(NamedTuple):
    topics: tuple[Registration, ...]


class Filters(NamedTuple):
    topic_filters: tuple[str, ...]


class Unsubscription(NamedTuple):
    topic_filter: str
    callback: str


class GuestSubscription(NamedTuple):
    """With all that a client may ask for, since it holds when the client is home again."""

    topic_filter: str
    """Or `$share/NAME/FILTER`."""
    callback: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int | None = None


class Serving(NamedTuple):
    callback: str
    is_here: bool
    username: str | None = None
    """As whom the client logged in at its mobile broker, which says so when the client is on its way."""


class RoamingStep(IntEnum):
    """Of the way of a session from one broker to another."""

    HERE = 1
    """From a mobile broker: the client is connected there, and what is kept for it elsewhere is to come."""
    NONE = 2
    """Nothing is to come: the answer to HERE, to OFFER if it is not taken, and to GIVE."""
    OFFER = 3
    """Its subscriptions. Whoever offers goes on serving it until the other side is READY."""
    READY = 4
    """The other side is subscribed: the rest is to come."""
    END = 5
    """All that waited has been written, as events that were missed."""
    KEPT = 6
    """And it is kept: whoever offered has it no more."""
    GIVE = 7
    """From a fixed broker: the client is elsewhere, and what is kept for it is to be offered."""


class Roaming(NamedTuple):
    callback: str
    """As the mobile broker names the client, whichever side writes."""
    step: RoamingStep
    number: int
    """Of the HERE or the OFFER that it is about. With GIVE: of the last HERE that is known."""
    username: str | None = None
    """With HERE and OFFER: as whom the client proved itself."""
    is_more: bool = False
    """With HERE: the client has begun anew. With OFFER: more subscriptions follow. With END, and with NONE
    as the answer to HERE: another mobile broker may have more. With GIVE: it is to be ended instead."""
    expiry_s: int = 0
    """With OFFER: so long the session lasts without its client."""
    subscriptions: tuple[GuestSubscription, ...] = ()
    """With OFFER."""
    had: tuple[MessageId, ...] = ()
    """With END: what the client has got lately, and another broker may have as well."""
    written: int = 0
    """With NONE as the answer to HERE: how many events had been written before HERE was read."""


class EmptyBody(NamedTuple):
    pass


class EventBody(NamedTuple):
    message: Message
    callbacks: tuple[tuple[str, int], ...] = ()
    """To be notified by the receiver, which need not match."""
    served: tuple[str, ...] = ()
    """Notified already: not to be notified again, whatever matches."""
    is_to_match: bool = False
    """The receiver has subscribers of its own for it."""
    is_handed_on: bool = False
    """It was matched before, and only its way changed: its subscriber is with the receiver now."""
    is_again: bool = False
    """It was written before, to a fixed broker that was lost: whoever was there may have got it."""
    is_missed: bool = False
    """It waited for a client whose session comes from elsewhere, and is part of that."""


Body = (
    HelloBody
    | Registrations
    | AddressChanges
    | Filters
    | Unsubscription
    | GuestSubscription
    | Serving
    | Roaming
    | EmptyBody
    | EventBody
)
