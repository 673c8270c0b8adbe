"""A part of a running node, and what it may ask of the node.

A node is a broker and a list of parts: its listeners, its store, the bridges, the federation and so on. Each
part is a `Part` and overrides what it has. Its life:

    made     reads its configuration and binds its sockets. There is no broker yet.
    start    in the table's order, with the broker
    serve    whenever it `has_work`, as often as the node flushes, until it is closed: clients' last words too
             are to be stored and passed on; `handle_timer` when its `deadline` has come, while it runs
    stop     in the reverse order, while the broker still serves its clients
    close    in the reverse order, when the clients are gone. Also of a part that was never started.

What is wrong with the configuration raises ConfigError in the first two, and the node does not start.

A part that fails in `serve` or `handle_timer` is logged and left alone, for longer each time; the others go
on. What it shows is left out where it fails to (`NodeContext.ask`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from hedgerow.node.clock import SteadyClock

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hedgerow.broker.access import UserGroups
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.limits import LogBounds
    from hedgerow.errors import ConfigError
    from hedgerow.node.api import ApiRoute
    from hedgerow.node.config import Chapter, Config
    from hedgerow.node.eventlog import EventLog
    from hedgerow.node.failures import Failures
    from hedgerow.node.handlers import Handler, Tree
    from hedgerow.node.lateness import Lateness
    from hedgerow.node.open_sockets import OpenSockets
    from hedgerow.node.passwords import Passwords
    from hedgerow.node.store import Store

NEVER = float("inf")

AnyPart = TypeVar("AnyPart", bound="Part")
Answer = TypeVar("Answer")


class NodeContext(Protocol):
    """The node, as its parts see it."""

    config: Config
    clock: SteadyClock
    started_at: float
    node_id: str
    broker: Broker
    event_log: EventLog
    lateness: Lateness
    sockets: OpenSockets
    failures: Failures
    passwords: Passwords | None
    """Those in force; None where there are none."""
    memberships: UserGroups
    routes: dict[str, Handler]
    """Of the HTTP port, by path."""
    actions: dict[str, Handler]
    """And those for POST."""
    trees: dict[str, Tree]
    """And what answers for whatever is below a path, by that path with its last "/"."""
    shut_down_s: float
    """How long clients have to take their last bytes when the node stops, and again the store."""
    stopping: bool

    @property
    def parts(self) -> Sequence[Part]: ...

    @property
    def urls(self) -> list[str]:
        """Where the node listens."""
        ...

    @property
    def listening(self) -> list[tuple[str, int]]:
        """Hosts and ports at which clients of MQTT may connect."""
        ...

    @property
    def problem(self) -> str | None:
        """Why the node cannot do all of its work at present; None when it can."""
        ...

    def find(self, kind: type[AnyPart]) -> AnyPart | None:
        """The node's part of this class, if it has one."""
        ...

    def ask(self, part: Part, read: Callable[[Part], Answer], otherwise: Answer) -> Answer:
        """What a part shows of itself; `otherwise` where it fails to, which is counted and logged."""
        ...

    def flush(self) -> None:
        """Let the parts and the broker's connections say what they have to say. To be called after each
        change from outside: a thread's answer, a finished dial."""
        ...

    def flush_soon(self) -> None:
        """Flush when this turn of the event loop has read from all sockets that were ready, or before,
        where they brought much. For whatever a socket calls: hundreds of them may in one turn."""
        ...

    def wake_at(self, at: float) -> None:
        """Set the node's one timer. For a `deadline` that came nearer outside of `serve` and
        `handle_timer`."""
        ...

    def give_up(self, error: ConfigError) -> None:
        """What was asked for turned out to be wrong while the node ran, and no time makes it right."""
        ...


class DurableLog(Protocol):
    """What must be on the disk before a batch of the store counts as committed."""

    on_durable: Callable[[], None]
    """Called on the loop when the position that was expected is durable."""

    @property
    def next_position(self) -> int: ...

    @property
    def failure(self) -> str | None:
        """Why not all gets there, while that lasts."""
        ...

    def expect(self, position: int) -> bool:
        """Is everything below `position` durable? If not, `on_durable` is called when it is."""
        ...


class Part:
    log: DurableLog | None = None
    """What the store has to wait for."""
    tells_beside: tuple[str, ...] = ()
    """What it tells beside the node's status, when it has changed: the last levels of the topics."""
    tell_status_s: float = 0.0
    """The node is to tell its status no more often than this."""
    log_bounds: LogBounds | None = None
    """What may wait in the store, once that is open."""

    def __init__(self, node: NodeContext) -> None:
        self.node = node
        self.is_running = False
        """From the end of `start` to the beginning of `stop`. The node sets it."""

    async def open_store(self) -> Store | None:
        """What the node's broker begins with. Raises StoreError."""
        return None

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def close(self) -> None:
        pass

    # What the node asks while it runs

    @property
    def has_work(self) -> bool:
        """Asked at each flush: it must be cheap."""
        return False

    def serve(self) -> None:
        pass

    @property
    def deadline(self) -> float:
        """When `handle_timer` has something to do. Asked after each of the calls above and below."""
        return NEVER

    def handle_timer(self, now: float) -> None:
        pass

    def reload(self, config: Config) -> Callable[[], None]:
        """Read the part's files again, and of its settings in `config` those that take effect without a
        restart. Raises ConfigError, and then nothing is changed in the whole node. What it returns puts them
        in force."""
        return _nothing

    def publication_wait_s(self, username: str | None, address: str, size: int) -> float:
        """How long somebody has to wait who publishes over HTTP; 0: not at all, and it counts."""
        return 0.0

    # What it shows

    @property
    def urls(self) -> list[str]:
        return []

    @property
    def listening(self) -> list[tuple[str, int]]:
        return []

    @property
    def relaying(self) -> list[str]:
        """Hosts and ports whose connections are passed on to another broker."""
        return []

    @property
    def problem(self) -> str | None:
        return None

    def routes(self) -> Mapping[str, Handler]:
        """What it shows at the HTTP port, by path."""
        return {}

    def actions(self) -> Mapping[str, Handler]:
        """And for POST."""
        return {}

    def trees(self) -> Mapping[str, Tree]:
        """And for whatever is below a path."""
        return {}

    def api(self) -> Sequence[ApiRoute]:
        """What it adds to the API (`node/api.py`)."""
        return ()

    def status(self) -> Mapping[str, Any]:
        """Its entries of the node's status. Those of `links` are added to those of other parts."""
        return {}

    def status_beside(self, beside: str) -> Mapping[str, Any]:
        """One of those that it `tells_beside`."""
        raise NotImplementedError

    def health(self) -> Mapping[str, int]:
        """A few figures that people want to know at once when they change."""
        return {}

    def counts(self) -> Mapping[str, int]:
        """And those that change all the time."""
        return {}

    def metrics(self) -> Iterable[Metric]:
        return ()


class PartEntry(NamedTuple):
    """A line of the table of parts."""

    name: str
    made_by: str
    """`MODULE:CLASS`, imported only when it is asked for."""
    is_wanted: Callable[[Config], bool]
    chapter: Chapter[object] | None = None
    """Its room's share of the configuration."""

    def load(self) -> type[Part]:
        module, _, name = self.made_by.partition(":")
        loaded: type[Part] = getattr(import_module(module), name)
        return loaded


def _nothing() -> None:
    pass
