"""The fabric as status messages tell it: nodes, links, meshes, rates, delays, loss and events.

`receive` takes `$hedgerow/status/NODE` and `$hedgerow/status/NODE/meshes`. They come from other nodes:
unknown keys are ignored, missing ones have defaults, what has a wrong type or version is counted in `ignored`
and dropped, and all that is held is bounded. It asks no clock: `now` is wall-clock time, since a status
carries its sender's, and the difference is the delay that people see (negative where the sender's clock is
ahead).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hedgerow.topics import STATUS_PREFIX
from hedgerow.web.status import HotTopic, LinkStatus, MeshPlace, Status, StatusEvent, read_meshes, read_status

__all__ = ["Fabric", "FabricNode", "HotTopic", "LinkStatus", "MeshPlace", "Rates", "Status", "StatusEvent"]

MESHES_LEVEL = "meshes"

SILENT_S = 5
FORGET_S = 3600
LATE_S = 30
CLOCK_STEP_S = 0.25
SHORTEST_S = 0.001  # between two statuses: times are told no finer, and less would make any rate
HISTORY = 60  # points of a node's sparklines: a minute

# A peer can make up nodes, topics and filters as it likes. What is held takes some five times its JSON.
MAX_NODES = 500
MAX_PAYLOAD = 1 << 20
MAX_HELD = 32 << 20  # bytes of JSON, of all nodes together; beyond it, each has its share once more
MAX_EVENTS = 100  # of one node


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages and bytes a second, between two statuses of a node."""

    received: float = 0.0
    sent: float = 0.0
    dropped: float = 0.0
    bytes_received: float = 0.0
    bytes_sent: float = 0.0


@dataclass(slots=True)
class FabricNode:
    """What is known of one node. `status` is the last one received."""

    node_id: str
    topic: str
    """`$hedgerow/status/…` of it: who may read that may see the node."""
    status: Status
    heard_at: float
    delay_s: float
    """Age of the last status when it came."""
    missing: int = 0
    """Statuses that never came, by the gaps in their numbers."""
    rates: Rates | None = None
    """None before the second status, and after a restart."""
    history: deque[Rates] = field(default_factory=lambda: deque(maxlen=HISTORY))
    events: deque[StatusEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    """Oldest first, at most an hour old."""
    meshes: dict[str, MeshPlace] = field(default_factory=dict)
    """By filter."""
    more_filters: int = 0
    counts_gaps: bool = True
    size: int = 0
    meshes_size: int = 0
    meshes_digest: int | None = None

    def is_silent(self, now: float) -> bool:
        return now - self.heard_at > SILENT_S

    @property
    def lost(self) -> int:
        """Messages that the node dropped, and statuses that never came."""
        return self.status.totals.get("dropped", 0) + self.missing


class Fabric:
    """All nodes, by id. `meshes` has for each filter what each node says of it."""

    def __init__(
        self, *, max_nodes: int = MAX_NODES, max_held: int = MAX_HELD, max_payload: int = MAX_PAYLOAD
    ) -> None:
        self.nodes: dict[str, FabricNode] = {}
        self.meshes: dict[str, dict[str, MeshPlace]] = {}
        self.ignored = 0
        """Statuses dropped: wrong version or type, outdated, or more than is held."""
        self._max_nodes = max_nodes
        self._max_held = max_held
        self._max_payload = max_payload
        self._held = 0
        self._forget_at = float("-inf")

    def receive(self, topic: str, payload: bytes, now: float) -> None:
        """A status, or a node's meshes. Anything else is counted and dropped."""
        if now >= self._forget_at:
            self.forget(now)
        node_id, _, rest = topic.removeprefix(STATUS_PREFIX).partition("/")
        try:
            if not topic.startswith(STATUS_PREFIX) or rest not in ("", MESHES_LEVEL) or not node_id:
                raise ValueError("no status topic")
            if len(payload) > self._max_payload:
                raise ValueError("too long")
            if rest:
                self._receive_meshes(node_id, payload)
            else:
                self._receive_status(node_id, topic, payload, now)
        except ValueError:
            self.ignored += 1

    def forget(self, now: float) -> None:
        """Drop nodes that were not heard for FORGET_S, and events older than that."""
        self._forget_at = now + SILENT_S
        for node in list(self.nodes.values()):
            while node.events and node.events[0].at < now - FORGET_S:
                node.events.popleft()
            if now - node.heard_at > FORGET_S:
                self._drop(node)

    def _drop(self, node: FabricNode) -> None:
        self._place_meshes(node, {}, 0, 0)
        self._held -= node.size
        del self.nodes[node.node_id]

    def begin_counting(self) -> None:
        """The subscription to the statuses was made anew: what was said before it is not missing."""
        for node in self.nodes.values():
            node.counts_gaps = False

    def visible(self, may_read: Callable[[str], bool]) -> list[FabricNode]:
        """The nodes that somebody may see, by id."""
        return [self.nodes[node_id] for node_id in sorted(self.nodes) if may_read(self.nodes[node_id].topic)]

    def _receive_status(self, node_id: str, topic: str, payload: bytes, now: float) -> None:
        status = read_status(payload)
        node = self.nodes.get(node_id)
        more = len(payload) - (node.size if node else 0)
        if not self._has_room(len(payload), more) or (node is None and not self._has_place(now)):
            raise ValueError("more than is held")
        if node is None:
            node = self.nodes[node_id] = FabricNode(node_id, topic, status, now, now - status.at)
            last_event = float("-inf")
        else:
            before = node.status
            has_restarted = _has_restarted(before, status)
            if not has_restarted and status.number <= before.number and status.uptime_s <= before.uptime_s:
                raise ValueError("outdated")
            last_event = node.events[-1].number if node.events and not has_restarted else float("-inf")
            _compare(node, before, status, has_restarted)
            node.status, node.heard_at, node.delay_s = status, now, now - status.at
        self._held += more
        node.size = len(payload)
        node.events.extend(
            event for event in status.events if event.number > last_event and event.at > now - FORGET_S
        )

    def _receive_meshes(self, node_id: str, payload: bytes) -> None:
        node = self.nodes.get(node_id)
        if node is None or not self._has_room(len(payload), len(payload) - node.meshes_size):
            raise ValueError("of no node that is known, or more than is held")
        digest = hash(payload)
        if digest == node.meshes_digest:
            return  # Told again for those who came meanwhile. To read a thousand takes 3 ms.
        meshes, more_filters = read_meshes(payload)
        self._place_meshes(node, meshes, more_filters, len(payload))
        node.meshes_digest = digest

    def _has_room(self, size: int, more: int) -> bool:
        """A fair share is always taken: who fills the rest with inventions must not silence the others."""
        fair = self._max_held // self._max_nodes
        return more <= 0 or self._held + more <= self._max_held or size <= fair

    def _has_place(self, now: float) -> bool:
        """The one that was silent longest makes place for one that speaks."""
        if len(self.nodes) >= self._max_nodes:
            longest = min(self.nodes.values(), key=lambda node: node.heard_at)
            if longest.is_silent(now):
                self._drop(longest)
        return len(self.nodes) < self._max_nodes

    def _place_meshes(
        self, node: FabricNode, meshes: dict[str, MeshPlace], more_filters: int, size: int
    ) -> None:
        for topic_filter in node.meshes.keys() - meshes.keys():
            others = self.meshes[topic_filter]
            del others[node.node_id]
            if not others:
                del self.meshes[topic_filter]
        for topic_filter, mesh in meshes.items():
            self.meshes.setdefault(topic_filter, {})[node.node_id] = mesh
        self._held += size - node.meshes_size
        node.meshes, node.more_filters, node.meshes_size = meshes, more_filters, size


def _has_restarted(before: Status, status: Status) -> bool:
    """A status that comes late has an earlier time too, unless the node's clock was lost with its power."""
    back_s = before.uptime_s - status.uptime_s
    return back_s > 0 and (status.at > before.at or back_s > LATE_S)


def _compare(node: FabricNode, before: Status, status: Status, has_restarted: bool) -> None:
    """What two statuses of a node say together: gaps in the numbers, and rates by the sender's own clock."""
    if has_restarted:
        node.rates = None
    else:
        if node.counts_gaps and before.number and status.number:  # 0: asked for at the node itself
            node.missing += max(0, status.number - before.number - 1)
        seconds = status.uptime_s - before.uptime_s
        if abs(status.at - before.at - seconds) < CLOCK_STEP_S:
            seconds = status.at - before.at  # told more precisely, if nobody has set the clock between
        node.rates = _rates(before, status, seconds) if seconds >= SHORTEST_S else None
    if node.rates is not None:
        node.history.append(node.rates)
    node.counts_gaps = True


def _rates(before: Status, status: Status, seconds: float) -> Rates:
    def rate(key: str) -> float:
        return max(0, status.totals.get(key, 0) - before.totals.get(key, 0)) / seconds

    return Rates(rate("received"), rate("sent"), rate("dropped"), rate("bytes_received"), rate("bytes_sent"))
