"""What one render of a page is given: who looks, at what, and what only this node knows.

Pages are pure functions of a `View`: they read it and nothing else, ask no clock and change nothing. All that
a `View` carries may come from strangers (names of clients, topics, payloads); pages escape it where they show
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hedgerow.node.backlogs import ReaderFigures
from hedgerow.web.fabric import Fabric, StatusEvent
from hedgerow.web.scan import Scan

MAX_ROWS = 200  # of a table: a page is polled each second, and is read by a person
MAX_SEARCH = 200  # characters that are searched for
MAX_FILTER = 1_024  # characters of a filter that is watched; it is in an address

# In the query of a page, where it is "1".
LIVE = "live"  # the live part alone
PAUSE = "pause"  # not polled

# Where forms are posted. Every form has `token`, and but for the log-out `back`: where to return to.
LOG_IN = "/login"  # user, password; its token is that of a cookie, since nobody is logged in yet
LOG_OUT = "/logout"
PUBLISH = "/actions/publish"  # topic, payload, qos ("0".."2"), retain ("1" or absent)
CLEAR_RETAINED = "/actions/retained/clear"  # topic
DISCONNECT_CLIENT = "/actions/clients/disconnect"  # client_id
END_SESSION = "/actions/clients/end"  # client_id
NEW_BRIDGE = "/actions/bridges/new"  # section: text, as published to $SYS/broker/bridge/new
DELETE_BRIDGE = "/actions/bridges/delete"  # name


def everything(topic: str) -> bool:
    """The right of a viewer at a node without users."""
    return True


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. `token` is that of the session, for forms; "" offers no actions at all."""

    user: str | None = None
    is_administrator: bool = False
    token: str = ""
    may_read: Callable[[str], bool] = everything
    may_write: Callable[[str], bool] = everything
    sees_clients: bool = True
    """Clients and subscriptions of others: administrators, or everybody where the node has no users."""


@dataclass(frozen=True, slots=True)
class ClientRow:
    client_id: str
    user: str | None = None
    address: str = ""
    protocol: str = ""
    """As "MQTT 5", "MQTT 3.1.1"."""
    transport: str = ""
    """As "tcp", "tls", "websocket"."""
    connected: bool = True
    subscriptions: int = 0
    queued: int = 0
    since: float | None = None
    """When it connected, if it is."""


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    client_id: str
    filter: str
    qos: int = 0
    shared: str = ""
    """The share name, or nothing."""


@dataclass(frozen=True, slots=True)
class RetainedRow:
    topic: str
    payload: bytes
    qos: int = 0
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class MessageRow:
    number: int
    """Rises by one within a watch: it is what an element on the page is known by."""
    at: float
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    message_id: str = ""
    """The fabric-wide one, as text; nothing where it has none."""


class Local(Protocol):
    """What only this node knows, cut down to what the viewer may read. Totals count all that matched."""

    def clients(self, search: str, limit: int) -> tuple[Sequence[ClientRow], int]: ...

    def subscriptions(self, search: str, limit: int) -> tuple[Sequence[SubscriptionRow], int]: ...

    def retained(self, topic_filter: str, limit: int) -> tuple[Sequence[RetainedRow], int]: ...

    def events(self, limit: int) -> Sequence[StatusEvent]: ...

    def backlogs(self) -> Sequence[ReaderFigures]:
        """The readers for which most waits, the one with the most first."""
        ...


class EmptyLocal:
    """A `Local` that knows nothing: for log-in pages, and for tests."""

    def clients(self, search: str, limit: int) -> tuple[Sequence[ClientRow], int]:
        return (), 0

    def subscriptions(self, search: str, limit: int) -> tuple[Sequence[SubscriptionRow], int]:
        return (), 0

    def retained(self, topic_filter: str, limit: int) -> tuple[Sequence[RetainedRow], int]:
        return (), 0

    def events(self, limit: int) -> Sequence[StatusEvent]:
        return ()

    def backlogs(self) -> Sequence[ReaderFigures]:
        return ()


@dataclass(frozen=True, slots=True)
class WatchView:
    """The message viewer's subscription, as one render shows it."""

    filter: str
    messages: Sequence[MessageRow] = ()
    """Newest first."""
    left_out: int = 0
    """Messages that came faster than they are shown."""
    problem: str = ""
    """Why there is no subscription: a filter that is none, too many watches."""


@dataclass(frozen=True, slots=True)
class View:
    """`now` is wall-clock time, as the statuses' own."""

    node_id: str
    fabric: Fabric
    now: float
    viewer: Viewer = field(default_factory=Viewer)
    query: Mapping[str, str] = field(default_factory=dict)
    local: Local = field(default_factory=EmptyLocal)
    watch: WatchView | None = None
    notice: str = ""
    """One line about what was just done, or why it was not."""
    has_users: bool = False
    """The node has passwords: then there is a log-out, and empty pages speak of rights."""
    is_live: bool = True
    """htmx is there; without it the browser reloads the page every 5 s."""
    topics: Scan[str, str] | None = None
    """Filters with meshes, as far as they were looked for already."""

    @property
    def is_paused(self) -> bool:
        return self.query.get(PAUSE) == "1"
