"""What a sidecar tells people about its broker's clients: what it cannot know of them, and what helps."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from hedgerow.facts import NodeFact
from hedgerow.federation.interests.log_lines import NOTICE_TOPIC, UNSUBSCRIBE_TOPIC
from hedgerow.federation.mesh.announcements import NEW_REGULAR_TOPIC

MOSQUITTO_LINES = ("log_dest topic", "log_type subscribe", "log_type unsubscribe", "log_type notice")
REMEDIES = {UNSUBSCRIBE_TOPIC: "log_type unsubscribe", NOTICE_TOPIC: "log_type notice"}
INSTEAD = f"announce filters by publishing them to {NEW_REGULAR_TOPIC}, or use --assume FILTER"
EVERYTHING = "everything (#)"


@dataclass(slots=True)
class SubscriptionRefused:
    """The broker's SUBACK said no."""

    level: ClassVar[int] = logging.WARNING
    broker: str
    user: str | None
    topic_filter: str
    reason: str

    def __str__(self) -> str:
        right = "$SYS/#" if self.topic_filter.startswith("$SYS/") else self.topic_filter
        return (
            f"the broker at {self.broker} does not let us subscribe to {self.topic_filter} ({self.reason}):"
            f" give {_name(self.user)} the right `topic read {right}`, or {INSTEAD}"
        )


@dataclass(slots=True)
class EverythingUntilKnown(NodeFact):
    """Clients may have been there before us."""

    broker: str
    count: int | None
    """Subscriptions, as the broker counted them some seconds ago."""

    def __str__(self) -> str:
        counted = f" It counted {_subscriptions(self.count)} a moment ago." if self.count else ""
        return (
            f"{EVERYTHING} goes to the broker at {self.broker} until we know what its clients subscribe to:"
            f" no log tells what they subscribed to before we came.{counted}"
        )


@dataclass(slots=True)
class SubscriptionsKnown(NodeFact):
    broker: str
    filters: int

    def __str__(self) -> str:
        instead = f"{self.filters} filters go" if self.filters != 1 else "1 filter goes"
        return (
            f"we know all that the clients of the broker at {self.broker} subscribe to:"
            f" {instead} there from now on instead of {EVERYTHING}"
        )


@dataclass(slots=True)
class SystemTopicsSilent(NodeFact):
    """Subscribed to, and nothing comes: Mosquitto's acl_file refuses no subscription, it withholds."""

    level: ClassVar[int] = logging.WARNING
    broker: str
    user: str | None
    is_everything: bool = False

    def __str__(self) -> str:
        return (
            f"the broker at {self.broker} sends us nothing of $SYS/#, so that we do not know what its clients"
            f" subscribe to{_so_far(self.is_everything)}: give {_name(self.user)} the right"
            f" `topic read $SYS/#` if it is a Mosquitto with an acl_file; or {INSTEAD}"
        )


@dataclass(slots=True)
class LogSilent(NodeFact):
    level: ClassVar[int] = logging.WARNING
    broker: str
    is_everything: bool = False

    def __str__(self) -> str:
        return (
            f"the broker at {self.broker} does not publish its log, so that we do not know what its clients"
            f" subscribe to{_so_far(self.is_everything)}: add these lines to mosquitto.conf:"
            f" {', '.join(MOSQUITTO_LINES)}; or {INSTEAD}"
        )


@dataclass(slots=True)
class LeavingNotLogged(NodeFact):
    """A client of ours unsubscribed and left, and no line came of one of that or of both."""

    level: ClassVar[int] = logging.WARNING
    broker: str
    unheard: tuple[str, ...]
    """Of the log's topics."""
    is_everything: bool = False

    def __str__(self) -> str:
        lines = " and ".join(f"`{REMEDIES[topic]}`" for topic in self.unheard)
        leave_on = ", and leave connection_messages on" if NOTICE_TOPIC in self.unheard else ""
        return (
            f"the broker at {self.broker} publishes who subscribes and not who leaves, so that filters stay"
            f" wanted for ever{_so_far(self.is_everything)}: add {lines} to mosquitto.conf{leave_on}"
        )


@dataclass(slots=True)
class UnknownSubscriptions(NodeFact):
    level: ClassVar[int] = logging.WARNING
    broker: str
    count: int
    is_everything: bool = False

    def __str__(self) -> str:
        known = (
            f"the broker at {self.broker} has {_subscriptions(self.count)} that we do not know,"
            " made before we came or by its own bridges"
        )
        if self.is_everything:
            return (
                f"{known}: {EVERYTHING} goes there until their clients connect again;"
                " to federate less, name it: --assume FILTER"
            )
        return (
            f"{known}: what they want does not come from other brokers until their clients subscribe again,"
            f" unless --assume names it; or {INSTEAD}"
        )


@dataclass(slots=True)
class InterestsForgotten(NodeFact):
    broker: str
    clients: int

    def __str__(self) -> str:
        return (
            f"the broker at {self.broker} was restarted, and {self.clients} clients have not come back to it"
        )


InterestEvent = (
    SubscriptionRefused
    | EverythingUntilKnown
    | SubscriptionsKnown
    | SystemTopicsSilent
    | LogSilent
    | LeavingNotLogged
    | UnknownSubscriptions
    | InterestsForgotten
)


def _name(user: str | None) -> str:
    return f"the user {user}" if user is not None else "clients without a user name"


def _subscriptions(count: int) -> str:
    return "1 subscription" if count == 1 else f"{count} subscriptions"


def _so_far(is_everything: bool) -> str:
    return f" and {EVERYTHING} goes there" if is_everything else ""
